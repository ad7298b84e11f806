"""Reads what a late-interaction model (ColBERT) does to queries and documents, in two layouts.

sentence-transformers 6 spreads it over the settings of the transformer and a MultiVectorMask.
PyLate writes it into config_sentence_transformers.json, and implies the mask and the unit length.
`stanford.py` reads the third layout.

Source: `MultiVectorEncoder` of sentence-transformers 6.2, multi_vector_encoder/model.py, which
reads all three, and `QueryExpansionConfig` in its base/modules/transformer.py; the keys that
`ColBERT.save` of PyLate 1.6 writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embedlib.config import LateSimilarity
from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.general_file import GENERAL_KEYS, is_pylate, prompts_by_name
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.late_fields import (
    PUNCTUATION,
    QUERY_TOKENS,
    LateFiles,
    checked,
    expansion_token,
    length_limit,
)
from embedlib.models.reading.module_files import TOKEN_VECTORS, output_dim, read_module
from embedlib.models.reading.parts import Parts, max_seq_tokens
from embedlib.models.spec import LateInteraction, Module, Normalize, QueryExpansion

PYLATE_KEYS: Final = frozenset(
    {
        "query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words",
        "do_query_expansion", "attend_to_expansion_tokens", "truncate_dim",
    }
)  # fmt: skip
"""That PyLate adds to config_sentence_transformers.json."""

SIMILARITIES: Final[Mapping[str, LateSimilarity]] = {"maxsim": "maxsim", "meanmaxsim": "meanmaxsim"}
PYLATE_SIMILARITIES: Final[Mapping[str, LateSimilarity]] = {
    **SIMILARITIES,
    "MaxSim": "maxsim",
    "cosine": "maxsim",
    "dot": "maxsim",
}
"""The last two: what PyLate wrote while it took them from SentenceTransformer, without using it."""


def read_late(parts: Parts) -> LateFiles:
    """Read a folder of sentence-transformers or PyLate.

    The default prompt changes nothing: queries and documents have one each, were it empty.

    Raises:
        ModelUnsupportedError: a key is unknown, or its value is not implemented.
    """
    dim = parts.encoder.hidden_size
    modules: list[Module] = []
    module_dirs = []
    masks = []
    for kind, path, config in parts.modules:
        if kind == "MultiVectorMask":
            masks.append(config)
            continue
        if kind == "Normalize" and "module_input_name" not in config:
            raise config.refuse("module_input_name", "token_embeddings")
        modules.append(read_module(kind, config, dim, inputs=TOKEN_VECTORS))
        module_dirs.append(path)
        dim = output_dim(modules[-1], dim)
    if is_pylate(parts.general):
        if masks:
            raise ModelUnsupportedError(
                f"{parts.general.name}: is of PyLate, which has no MultiVectorMask in modules.json"
            )
        if not any(isinstance(module, Normalize) for module in modules):
            modules.append(Normalize())
            module_dirs.append(parts.folder)
        late, prompts = _read_pylate(parts)
    elif len(masks) == 1:
        late = _read_native(parts, masks[0])
        prompts = prompts_by_name(parts.general)
    else:
        raise ModelUnsupportedError(
            f"modules.json: has {len(masks)} modules MultiVectorMask; accepted: one"
        )
    return LateFiles(
        late=late, prompts=prompts, modules=tuple(modules), module_dirs=tuple(module_dirs)
    )


def _read_native(parts: Parts, mask: JsonObject) -> LateInteraction:
    """Return what the settings of sentence-transformers 6 say."""
    settings = parts.settings
    parts.general.check_keys(GENERAL_KEYS)
    expansion = _expansion(parts)
    query = length_limit(parts, settings, "query_length")
    if expansion is not None:
        is_fixed = settings.child("query_expansion").text("strategy") == "fixed"
        given = settings.optional_integer("query_length", None, minimum=1)
        if given is not None and given < expansion.min_tokens:
            raise settings.refuse("query_length", f"at least {expansion.min_tokens}, as expanded")
        query = expansion.min_tokens if is_fixed else max(query, expansion.min_tokens)
    late = LateInteraction(
        query_tokens=query,
        document_tokens=length_limit(parts, settings, "document_length"),
        expansion=expansion,
        similarity=parts.general.optional_choice("similarity_fn_name", SIMILARITIES, "maxsim"),
        **_read_mask(mask),
    )
    return checked(late, parts.encoder, settings)


def _read_pylate(parts: Parts) -> tuple[LateInteraction, dict[str, str]]:
    """Return what PyLate wrote, and the prompts: a prefix in front of that of its role."""
    general = parts.general
    prompts = prompts_by_name(general)
    general.check_keys(GENERAL_KEYS | PYLATE_KEYS)
    general.check_fixed("truncate_dim", (None,))
    markers = []
    for key, role in (("query_prefix", "query"), ("document_prefix", "document")):
        if key in general.values:
            prefix = general.text(key) or ""
            markers.append(prefix)
            prompts[role] = prefix + prompts.get(role, "").removeprefix(prefix)
    does_expand = general.boolean("do_query_expansion", True)
    given = general.optional_integer("query_length", None, minimum=1)
    query = given or (QUERY_TOKENS if does_expand else max_seq_tokens(parts)[0])
    expansion = None
    if does_expand:
        attends = general.boolean("attend_to_expansion_tokens", False)
        token = expansion_token(parts, general)
        expansion = QueryExpansion(min_tokens=query, token=token, is_attended=attends)
    late = LateInteraction(
        query_tokens=min(query, parts.encoder.max_tokens),
        document_tokens=length_limit(parts, general, "document_length"),
        expansion=expansion,
        skipped_words=_skipped_words(general, PUNCTUATION),
        markers=tuple(marker for marker in markers if marker.split()),
        similarity=general.optional_choice("similarity_fn_name", PYLATE_SIMILARITIES, "maxsim"),
    )
    return checked(late, parts.encoder, general), prompts


def _expansion(parts: Parts) -> QueryExpansion | None:
    """Return the `query_expansion` of the transformer's settings; None if it is null."""
    values = parts.settings.child("query_expansion")
    if not values.values:
        return None
    values.check_keys({"strategy", "attend", "token", "length"})
    values.choice("strategy", dict.fromkeys(("fixed", "min")))
    return QueryExpansion(
        min_tokens=values.integer("length"),
        token=expansion_token(parts, values, values.text("token")),
        is_attended=values.boolean("attend", False),
    )


def _read_mask(mask: JsonObject) -> dict[str, Any]:
    """Return the fields of `LateInteraction` that a MultiVectorMask sets."""
    mask.check_keys({"skiplist_words", "skiplist_tasks", "keep_only_token_ids"})
    mask.check_fixed("keep_only_token_ids", (None, []))
    tasks = mask.values.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(tasks, list) or not all(task in ("query", "document") for task in tasks):
        raise mask.refuse("skiplist_tasks", "a list of query and document")
    return {
        "skipped_words": _skipped_words(mask, ()),
        "skips_in_queries": "query" in tasks,
        "skips_in_documents": "document" in tasks,
    }


def _skipped_words(file: JsonObject, usual: tuple[str, ...]) -> tuple[str, ...]:
    words = file.values.get("skiplist_words")
    if words is None:
        return usual
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise file.refuse("skiplist_words", "a list of words")
    return tuple(words)
