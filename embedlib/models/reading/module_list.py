"""Reads modules.json: which modules a model has, in which order, and where their files are.

Source: the classes of sentence-transformers 6.2, and the names that older releases wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading import refusals
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.model_file import is_file_name, load_json

STATIC: Final = "StaticEmbedding"
"""The only module of an embedding model that stands in place of Transformer and Pooling."""

TOKEN_WEIGHTS: Final = "SparseStaticEmbedding"
"""The only module of a sparse model that has no transformer."""

SPLADE: Final = "SpladePooling"
"""The only module of a sparse model behind its transformer."""

MASKED: Final = "MLMTransformer"
"""A Transformer with the head of a masked language model, before sentence-transformers 5.4."""

AFTER_POOLING: Final = ("Dense", "LayerNorm", "Normalize", "Dropout")

QUANTIZER: Final = "st_quantize.FlexibleQuantizer"
"""The module of pplx-embed-v1, whose code is in its folder; computed here as `RoundTanh`."""

ZEMBED: Final = "ZembedTransformer"
"""The Transformer of zembed-1, whose code is in its folder: it writes a suffix behind texts."""

ZEMBED_SUFFIX: Final = "<|im_end|>\n"
"""Source: `suffix` in config_sentence_transformers.json of zembed-1, as its class has it."""

SUFFIXED: Final = f"modeling_zembed.{ZEMBED}"

_OF_OWN_CODE: Final = tuple(name.rpartition(".")[2] for name in (QUANTIZER, SUFFIXED))

NO_KWARGS: Final[tuple[object, ...]] = ([], {}, None)
"""`kwargs` lists arguments of `encode` that the module receives; adapters use it."""

MAX_PATH_PARTS: Final = 8
"""Of a module's path; known models have at most 2."""

PYLATE_DENSE: Final = ("pylate.models.Dense.Dense", "pylate.models.Dense")
"""One class: folders of older releases, as that of answerai-colbert-small-v1, name its module."""

OF_TOKENS: Final = ("Dense", "Normalize", "MultiVectorMask", "Dropout")
"""The modules behind the Transformer of a late-interaction model."""


def read_module_list(
    folder: Path, with_head: bool, *, is_late: bool = False
) -> list[tuple[str, Path]]:
    """Return the class name and directory of every module that changes a vector, in order.

    An embedding model has a Transformer, a Pooling and others, or a StaticEmbedding and others; a
    sparse model has a Transformer and a SpladePooling, or a SparseStaticEmbedding alone. A reranker
    has a Transformer alone; or with a LogitScore, if it answers with a token; or with a Pooling and
    others, of which the last makes the scores. A late-interaction model (`is_late`) has a
    Transformer and others, none of which is a Pooling.
    """
    entries: list[tuple[str, Path]] = []
    for entry in read_entries(folder):
        before = [kind for kind, _ in entries]
        accepted = OF_TOKENS if is_late and before else accepted_after(before, with_head)
        kind = module_kind(entry, accepted, is_late=is_late)
        takes = (["quantization"],) if kind == "FlexibleQuantizer" else ()
        entry.check_fixed("kwargs", (*NO_KWARGS, *takes))
        path = PurePosixPath(entry.text("path") or "")
        if not all(is_file_name(part) for part in path.parts) or len(path.parts) > MAX_PATH_PARTS:
            raise entry.refuse("path", "a path inside the model folder")
        if kind == "Dropout":  # works only in training
            JsonObject.load(folder / path / "config.json", folder).check_keys({"dropout"})
            continue
        entries.append((kind, folder / path))
    is_table = bool(entries) and entries[0][0] in (STATIC, TOKEN_WEIGHTS)
    if not entries or (not is_table and len(entries) < 2 - with_head):
        raise ModelUnsupportedError(
            f"modules.json: has {len(entries)} modules; accepted: Transformer, Pooling, …"
        )
    return entries


def read_entries(folder: Path) -> list[JsonObject]:
    """Return the entries of modules.json; their class, path and kwargs are not checked."""
    name = "modules.json"
    content = load_json(folder / name, folder)
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ModelUnsupportedError(
            f"{name}: holds {quote(content)}; a list of objects is expected"
        )
    entries = [JsonObject(f"{name}: [{place}]", values) for place, values in enumerate(content)]
    names: set[str] = set()
    for entry in entries:
        entry.check_keys({"idx", "name", "path", "type", "kwargs"})
        _check_own_name(entry, names)
    return entries


def _check_own_name(entry: JsonObject, names: set[str]) -> None:
    """Refuse a name that an earlier module has, and add it to the names.

    Source: `_load_config_modules` of sentence-transformers 6.2, which keeps only the last of them.
    """
    name = entry.text("name")
    if name in names:
        raise entry.refuse("name", "a name that no other module has")
    if name is not None:
        names.add(name)


def module_kind(
    entry: JsonObject, accepted: Sequence[str], *, is_late: bool = False, key: str = "type"
) -> str:
    """Return the class name of a module.

    Its package differs between releases: `sentence_transformers.models.Pooling`,
    `sentence_transformers.sentence_transformer.modules.pooling.Pooling`.

    Args:
        entry: its entry in modules.json.
        accepted: the classes that it may have.
        is_late: whether a Dense of PyLate is accepted, which is like that of sentence-transformers;
            else the modules of pplx-embed-v1 and zembed-1 are.
        key: where the entry names the class.

    Raises:
        ModelUnsupportedError: there is no such class, or it may not stand there.
    """
    name = entry.text(key) or ""
    first, _, rest = name.partition(".")
    kind = rest.rpartition(".")[2]
    others = PYLATE_DENSE if is_late else (QUANTIZER, SUFFIXED)
    is_known = name in others or (first == "sentence_transformers" and kind not in _OF_OWN_CODE)
    if not is_known or kind not in accepted:
        reason = refusals.OF_TOKENS if first == "pylate" else refusals.MODULES.get(kind)
        if reason is not None:
            raise ModelUnsupportedError(f"{entry.name}: {key} = {quote(name)} {reason}")
        names = ", ".join(
            f"sentence_transformers.….{name}" for name in accepted if name not in _OF_OWN_CODE
        )
        raise entry.refuse(key, names or "nothing behind it")
    return kind


def accepted_after(before: Sequence[str], with_head: bool) -> tuple[str, ...]:
    """Return the classes that a module may have behind these."""
    if not before:
        others = (MASKED, STATIC, TOKEN_WEIGHTS, ZEMBED)
        return ("Transformer",) if with_head else ("Transformer", *others)
    if before[-1] == "Transformer":
        return ("Pooling", "LogitScore") if with_head else ("Pooling", SPLADE)
    if before[-1] == MASKED:
        return (SPLADE,)
    if before[-1] == ZEMBED:
        return ("Pooling",)
    if before[-1] == "Pooling" and not with_head:
        return (*AFTER_POOLING, "FlexibleQuantizer")
    is_last = before[-1] in ("LogitScore", SPLADE, TOKEN_WEIGHTS, "FlexibleQuantizer")
    return () if is_last else AFTER_POOLING
