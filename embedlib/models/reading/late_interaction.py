"""Reads what a late-interaction model (ColBERT) does to queries and documents, in three layouts.

sentence-transformers 6 spreads it over the settings of the transformer and a MultiVectorMask.
PyLate writes it into config_sentence_transformers.json, and implies the mask and the unit length.
Stanford's ColBERT writes `artifact.metadata` beside config.json, and keeps the projection among the
transformer's weights.

Source: `MultiVectorEncoder` of sentence-transformers 6.2, multi_vector_encoder/model.py, which
reads all three, and `QueryExpansionConfig` in its base/modules/transformer.py; the keys that
`ColBERT.save` of PyLate 1.6 writes; colbert/infra/config/settings.py of Stanford's ColBERT.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from embedlib.config import LateSimilarity
from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.added_tokens import read_token
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.module_files import TOKEN_VECTORS, output_dim, read_module
from embedlib.models.reading.tokenizer_classes import CLASSES, class_name
from embedlib.models.spec import (
    Dense,
    Encoder,
    LateInteraction,
    Module,
    Normalize,
    QueryExpansion,
)

STANFORD_CLASS: Final = "HF_ColBERT"
STANFORD_NAME: Final = "artifact.metadata"
STANFORD_TENSOR: Final = "linear"
"""The stem of the projection's tensor in model.safetensors."""
PUNCTUATION: Final = tuple(string.punctuation)
STANFORD_DIM: Final = 128
QUERY_TOKENS: Final = 32
"""Length of a query where a file of PyLate or Stanford does not say."""

GENERAL_KEYS: Final = frozenset(
    {
        "__version__", "requirements", "model_type", "prompts", "default_prompt_name",
        "similarity_fn_name",
    }
)  # fmt: skip
PYLATE_KEYS: Final = frozenset(
    {
        "query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words",
        "do_query_expansion", "attend_to_expansion_tokens", "truncate_dim",
    }
)  # fmt: skip
"""That PyLate adds to config_sentence_transformers.json."""

SIMILARITIES: Final[Mapping[str, LateSimilarity]] = MappingProxyType(
    {"maxsim": "maxsim", "meanmaxsim": "meanmaxsim"}
)
PYLATE_SIMILARITIES: Final[Mapping[str, LateSimilarity]] = MappingProxyType(
    {**SIMILARITIES, "MaxSim": "maxsim", "cosine": "maxsim", "dot": "maxsim"}
)
"""The last two: what PyLate wrote while it took them from SentenceTransformer, without using it."""

STANFORD_KEYS: Final = frozenset(
    {
        "query_token_id", "doc_token_id", "query_maxlen", "doc_maxlen", "mask_punctuation",
        "attend_to_mask_tokens", "dim", "similarity", "interaction", "relu",
        # Of training, indexing and searching.
        "query_token", "doc_token", "overwrite", "root", "experiment", "index_root", "name", "rank",
        "nranks", "amp", "gpus", "avoid_fork_if_possible", "checkpoint", "triples", "collection",
        "queries", "index_name", "bsize", "accumsteps", "lr", "maxsteps", "save_every", "resume",
        "warmup", "warmup_bert", "nway", "use_ib_negatives", "reranker", "distillation_alpha",
        "ignore_scores", "model_name", "index_path", "index_bsize", "nbits", "kmeans_niters",
        "ncells", "centroid_score_threshold", "ndocs", "load_index_with_mmap", "meta", "version",
    }
)  # fmt: skip


def is_late(general: JsonObject) -> bool:
    """Return whether config_sentence_transformers.json is that of a late-interaction model."""
    kind = general.text("model_type")
    return kind in ("MultiVectorEncoder", "ColBERT") or _is_pylate(general)


def is_stanford(config: JsonObject) -> bool:
    """Return whether config.json, without a modules.json beside it, is that of Stanford's class."""
    return config.values.get("architectures") == [STANFORD_CLASS]


def _is_pylate(general: JsonObject) -> bool:
    """Whether PyLate wrote the folder; earlier releases gave no `model_type`."""
    kind = general.text("model_type")
    is_open = kind in (None, "SentenceTransformer")
    return kind == "ColBERT" or (is_open and "query_prefix" in general.values)


@dataclass(frozen=True, kw_only=True)
class LateFiles:
    """What a folder says of a late-interaction model, besides the transformer."""

    late: LateInteraction
    prompts: dict[str, str]
    modules: tuple[Module, ...]
    module_dirs: tuple[Path, ...]
    tensors: Mapping[int, str] = field(default_factory=dict)
    """As `ModelFiles.module_tensors`."""


def mask_token(tokenizer_config: JsonObject, config: JsonObject) -> str | None:
    """Return the tokenizer's mask token; None if neither a file nor its class names one."""
    named = read_token(tokenizer_config, "mask_token")
    if named is not None:
        return str(named)
    row = CLASSES.get(class_name(tokenizer_config, config))
    default = row.defaults.get("mask_token") if row else None
    return None if default is None else str(default)


def read_late(
    folder: Path,
    general: JsonObject,
    settings: JsonObject,
    entries: Sequence[tuple[str, Path, JsonObject]],
    encoder: Encoder,
    limit: int,
    mask: str | None,
) -> LateFiles:
    """Read a folder of sentence-transformers or PyLate.

    Args:
        folder: the model folder.
        general: config_sentence_transformers.json.
        settings: of the transformer.
        entries: class, directory and config.json of the modules behind the transformer.
        encoder: the transformer.
        limit: maximum length of a text, if the files say no other.
        mask: the tokenizer's mask token.

    Raises:
        ModelUnsupportedError: a key is unknown, or its value is not implemented.
    """
    dim = encoder.hidden_size
    modules: list[Module] = []
    module_dirs = []
    masks = []
    for kind, path, config in entries:
        if kind == "MultiVectorMask":
            masks.append(config)
            continue
        if kind == "Normalize" and "module_input_name" not in config:
            raise config.refuse("module_input_name", "token_embeddings")
        modules.append(read_module(kind, config, dim, inputs=TOKEN_VECTORS))
        module_dirs.append(path)
        dim = output_dim(modules[-1], dim)
    if _is_pylate(general):
        if masks:
            raise ModelUnsupportedError(
                f"{general.name}: is of PyLate, which has no MultiVectorMask in modules.json"
            )
        if not any(isinstance(module, Normalize) for module in modules):
            modules.append(Normalize())
            module_dirs.append(folder)
        late, prompts = _read_pylate(general, encoder, limit, mask)
    elif len(masks) == 1:
        late = _read_native(general, settings, masks[0], encoder, limit, mask)
        prompts = _prompts(general)
    else:
        raise ModelUnsupportedError(
            f"modules.json: has {len(masks)} modules MultiVectorMask; accepted: one"
        )
    return LateFiles(
        late=late, prompts=prompts, modules=tuple(modules), module_dirs=tuple(module_dirs)
    )


def _read_native(
    general: JsonObject,
    settings: JsonObject,
    rows: JsonObject,
    encoder: Encoder,
    limit: int,
    mask: str | None,
) -> LateInteraction:
    """Return what the settings of sentence-transformers 6 say."""
    general.check_keys(GENERAL_KEYS)
    expansion = _expansion(settings.child("query_expansion"), mask)
    query = _length(settings, "query_length", encoder, limit)
    if expansion is not None:
        is_fixed = settings.child("query_expansion").text("strategy") == "fixed"
        if settings.values.get("query_length") is not None and query < expansion.min_tokens:
            raise settings.refuse("query_length", f"at least {expansion.min_tokens}, as expanded")
        query = expansion.min_tokens if is_fixed else max(query, expansion.min_tokens)
    late = LateInteraction(
        query_tokens=query,
        document_tokens=_length(settings, "document_length", encoder, limit),
        expansion=expansion,
        similarity=general.choice("similarity_fn_name", SIMILARITIES, "maxsim"),
        **_read_mask(rows),
    )
    return _checked(late, encoder, settings)


def read_stanford(
    folder: Path, config: JsonObject, encoder: Encoder, limit: int, mask: str | None
) -> LateFiles:
    """Read a folder of Stanford's ColBERT, whose prompts start with a marker.

    Args:
        folder: the model folder; it may have no `artifact.metadata`.
        config: config.json.
        encoder: the transformer.
        limit: maximum length of a text.
        mask: the tokenizer's mask token.

    Raises:
        ModelUnsupportedError: a key is unknown, or its value is not implemented.
    """
    metadata = JsonObject.load(folder / STANFORD_NAME, folder)
    metadata.check_keys(STANFORD_KEYS)
    metadata.check_fixed("similarity", ("cosine", None))
    metadata.check_fixed("interaction", ("colbert", None))
    metadata.check_fixed("relu", (False, None))
    prompts = {
        "query": (metadata.text("query_token_id") or "[unused0]") + " ",
        "document": (metadata.text("doc_token_id") or "[unused1]") + " ",
    }
    query = metadata.optional_integer("query_maxlen", None, minimum=1) or QUERY_TOKENS
    late = LateInteraction(
        query_tokens=_in_positions(query, encoder),
        document_tokens=_length(metadata, "doc_maxlen", encoder, limit),
        expansion=QueryExpansion(
            min_tokens=query,
            token=_token(None, mask, metadata),
            is_attended=metadata.boolean("attend_to_mask_tokens", False),
        ),
        skipped_words=PUNCTUATION if metadata.boolean("mask_punctuation", True) else (),
        markers=tuple(prompts.values()),
    )
    projection = Dense(
        in_features=encoder.hidden_size,
        out_features=metadata.integer("dim", STANFORD_DIM),
        has_bias=False,
        activation="identity",
    )
    return LateFiles(
        late=_checked(late, encoder, config),
        prompts=prompts,
        modules=(projection, Normalize()),
        module_dirs=(folder, folder),
        tensors={0: STANFORD_TENSOR},
    )


def _read_pylate(
    general: JsonObject, encoder: Encoder, limit: int, mask: str | None
) -> tuple[LateInteraction, dict[str, str]]:
    """Return what PyLate wrote, and the prompts: a prefix in front of that of its role."""
    prompts = _prompts(general)
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
    query = given or (QUERY_TOKENS if does_expand else limit)
    expansion = None
    if does_expand:
        attends = general.boolean("attend_to_expansion_tokens", False)
        token = _token(None, mask, general)
        expansion = QueryExpansion(min_tokens=query, token=token, is_attended=attends)
    words = PUNCTUATION
    if "skiplist_words" in general:
        words = _words(general, "skiplist_words")
    late = LateInteraction(
        query_tokens=_in_positions(query, encoder),
        document_tokens=_length(general, "document_length", encoder, limit),
        expansion=expansion,
        skipped_words=words,
        markers=tuple(marker for marker in markers if marker.split()),
        similarity=general.choice("similarity_fn_name", PYLATE_SIMILARITIES, "maxsim"),
    )
    return _checked(late, encoder, general), prompts


def _token(named: str | None, mask: str | None, file: JsonObject) -> str:
    """Return the token that fills a short query."""
    token = named or mask
    if token is None:
        raise ModelUnsupportedError(
            f"{file.name}: queries are filled up with the mask token, and tokenizer_config.json "
            "has no mask_token"
        )
    return token


def _expansion(values: JsonObject, mask: str | None) -> QueryExpansion | None:
    """Return the `query_expansion` of the transformer's settings; None if it is null."""
    if not values.values:
        return None
    values.check_keys({"strategy", "attend", "token", "length"})
    values.check_fixed("strategy", ("fixed", "min"))
    if "strategy" not in values:
        raise values.refuse("strategy", "fixed, min")
    return QueryExpansion(
        min_tokens=values.integer("length"),
        token=_token(values.text("token"), mask, values),
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
        "skipped_words": _words(mask, "skiplist_words") if "skiplist_words" in mask else (),
        "skips_in_queries": "query" in tasks,
        "skips_in_documents": "document" in tasks,
    }


def _words(file: JsonObject, key: str) -> tuple[str, ...]:
    words = file.values[key]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise file.refuse(key, "a list of words")
    return tuple(words)


def _prompts(general: JsonObject) -> dict[str, str]:
    table = general.child("prompts")
    return {name: table.text(name) or "" for name in table.values}


def _length(file: JsonObject, key: str, encoder: Encoder, default: int) -> int:
    """Return a length limit, no more than the transformer has positions for."""
    length = file.optional_integer(key, None, minimum=1)
    return _in_positions(default if length is None else length, encoder)


def _in_positions(num_tokens: int, encoder: Encoder) -> int:
    return min(num_tokens, encoder.num_positions - encoder.position_offset)


def _checked(late: LateInteraction, encoder: Encoder, file: JsonObject) -> LateInteraction:
    """Refuse a query expansion that this transformer cannot have.

    Raises:
        ModelUnsupportedError: its tokens would stand on the other side, have no position, or see
            nothing of the query.
    """
    expansion = late.expansion
    if expansion is None:
        return late
    reason = None
    if encoder.is_causal:
        reason = "stands behind a text, and this transformer reads from left to right"
    elif expansion.min_tokens > _in_positions(expansion.min_tokens, encoder):
        reason = f"is longer than the {_in_positions(expansion.min_tokens, encoder)} positions"
    elif not expansion.is_attended:
        windows = [window for window in encoder.windows if window is not None]
        if windows and expansion.min_tokens - 1 > min(windows):
            reason = f"is longer than the {min(windows)} tokens that a token sees on either side"
    if reason is not None:
        raise ModelUnsupportedError(
            f"{file.name}: the query expansion to {expansion.min_tokens} tokens {reason}"
        )
    return late
