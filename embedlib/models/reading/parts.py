"""What model folders of all kinds have: the transformer, its tokenizer, the list of modules.

Source: the files that sentence-transformers 6.2 and transformers 5.5 read and write, and older key
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from embedlib.errors import ModelNotFoundError, ModelUnsupportedError
from embedlib.models.reading.adapted import check_not_adapted
from embedlib.models.reading.config_file import positions_key, positions_source, read_encoder
from embedlib.models.reading.general_file import is_cross_encoder, is_late
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.model_file import has_file, name_in
from embedlib.models.reading.module_files import load_config
from embedlib.models.reading.module_list import (
    MASKED,
    SPLADE,
    ZEMBED,
    ZEMBED_SUFFIX,
    read_module_list,
)
from embedlib.models.reading.refusals import ADAPTER, held_instead
from embedlib.models.reading.settings_file import (
    EMBEDDING_KEYS,
    LATE_KEYS,
    MASKED_KEYS,
    SCORING_KEYS,
    read_settings,
)
from embedlib.models.spec import Encoder

LATE_WAY: Final = (
    "embedlib search --rerank, embedlib serve, or encode_query and encode_document of Embedder"
)
"""What takes a late-interaction model, to rank as well."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The files and parts that models of all kinds have."""

    folder: Path
    has_modules: bool
    """Whether the folder has modules.json, and so the files of sentence-transformers."""
    general: JsonObject
    """config_sentence_transformers.json; may be empty."""
    transformer_dir: Path
    config: JsonObject
    encoder: Encoder
    tokenizer_config: JsonObject
    settings: JsonObject
    """Settings of the transformer module of sentence-transformers; may be empty."""
    modules: list[tuple[str, Path, JsonObject]]
    """Class name, directory and config.json of each module after the transformer."""
    is_masked: bool
    """Whether the class of the transformer has the head of a masked language model."""
    suffix: str
    """What the class of the transformer writes behind every text."""


def read_parts(
    folder: Path,
    with_head: bool,
    is_compiled: bool,
    entries: Sequence[tuple[str, Path]] | None,
) -> Parts:
    """Read the transformer, and list the modules after it."""
    check_not_adapted(folder)
    has_modules = has_file(folder / "modules.json", folder)
    # Without modules.json, sentence-transformers reads neither of its own two files.
    general = JsonObject("", {})
    if has_modules:
        general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
        _check_kind(folder, general, with_head)
    is_late_model = is_late(general)
    if entries is None:
        entries = read_module_list(folder, with_head, is_late=is_late_model) if has_modules else []
    kinds = [kind for kind, _ in entries]
    suffix = ""
    if kinds[:1] == [ZEMBED]:
        if (suffix := general.text("suffix") or "") != ZEMBED_SUFFIX:
            raise general.refuse("suffix", quote(ZEMBED_SUFFIX))
        values = {key: general.values[key] for key in general.values if key != "suffix"}
        general = replace(general, values=values)
    # A modular head stands on the same transformer as an embedding.
    if with_head and "Pooling" not in kinds:
        keys = SCORING_KEYS
    else:
        keys = LATE_KEYS if is_late_model else MASKED_KEYS if SPLADE in kinds else EMBEDDING_KEYS
    transformer_dir = entries[0][1] if entries else folder
    config = _read_config(transformer_dir, folder, is_compiled)
    return Parts(
        folder=folder,
        has_modules=has_modules,
        general=general,
        transformer_dir=transformer_dir,
        config=config,
        encoder=read_encoder(config),
        tokenizer_config=JsonObject.load(transformer_dir / "tokenizer_config.json", folder),
        settings=read_settings(transformer_dir, folder, keys)
        if has_modules
        else JsonObject("", {}),
        modules=[(kind, path, load_config(kind, path, folder)) for kind, path in entries[1:]],
        is_masked=MASKED in kinds,
        suffix=suffix,
    )


def _read_config(transformer_dir: Path, folder: Path, is_compiled: bool) -> JsonObject:
    """Return config.json; that of an engine directory without its `quantization_config`."""
    if not has_file(transformer_dir / "config.json", folder):
        held = held_instead(transformer_dir, folder) or "there is no config.json"
        raise ModelNotFoundError(f"{transformer_dir}: {held}")
    adapter = transformer_dir / "adapter_config.json"
    if has_file(adapter, folder):
        raise ModelUnsupportedError(f"{name_in(adapter, folder)}: {ADAPTER}")
    config = JsonObject.load(transformer_dir / "config.json", folder)
    if not is_compiled:
        return config
    # embedlib.json describes the weights.
    values = {key: config.values[key] for key in config.values if key != "quantization_config"}
    return replace(config, values=values)


def transformer_fields(parts: Parts) -> dict[str, Any]:
    """Return the fields of `ModelSpec` that describe the transformer and its tokenizer."""
    tokens, source = max_seq_tokens(parts)
    return {
        "encoder": parts.encoder,
        "max_seq_tokens": tokens,
        "max_seq_tokens_source": source,
        "lowercase": parts.settings.boolean("do_lower_case", False),
        "suffix": parts.suffix,
    }


def _check_kind(folder: Path, general: JsonObject, with_head: bool) -> None:
    """Reject a sentence-transformers model of the wrong kind."""
    is_reranker = is_cross_encoder(general)
    if is_reranker and not with_head:
        raise no_embedder(general, "model_type")
    if with_head and not is_reranker:
        said = "no model_type"
        if "model_type" in general:
            said = f"model_type = {quote(general.values['model_type'])}"
        raise no_scorer(folder, f"{general.name} has {said}", _way_of(general))


def _way_of(general: JsonObject) -> str:
    """Return what takes a model that makes embeddings, in Python and on the command line."""
    if is_late(general):
        return LATE_WAY
    if general.text("model_type") == "SparseEncoder":
        return "embedlib index --sparse, or output_value='sparse' of Embedder"
    return "Embedder, or embedlib encode"


def no_scorer(folder: Path, said: str, way: str) -> ModelUnsupportedError:
    """Return the error for a model that makes embeddings and is loaded as a reranker or classifier.

    Args:
        folder: of the model.
        said: what its files say.
        way: what takes it.
    """
    return ModelUnsupportedError(f"{folder} makes embeddings, not scores ({said}); use {way}")


def no_embedder(file: JsonObject, key: str) -> ModelUnsupportedError:
    """Return the error for a reranker or classifier that is loaded as an embedding model."""
    return ModelUnsupportedError(
        f"{file.name}: {key} = {quote(file.values[key])} is a reranker or classifier; "
        "use Reranker or Classifier (embedlib rerank, embedlib classify)"
    )


def length_key(tokenizer_config: JsonObject) -> str:
    """Return the key of the length limit, which older releases of transformers called max_len."""
    return "model_max_length" if "model_max_length" in tokenizer_config else "max_len"


def max_seq_tokens(parts: Parts) -> tuple[int, str]:
    """Return the maximum length of a sequence, and the file and key that set it.

    The transformer module's `max_seq_length` overrides the tokenizer's limit. Neither may exceed
    the positions that the model was trained for.

    Source: `Transformer.__init__` in sentence-transformers, base/modules/transformer.py. It lets
    `max_seq_length` exceed the positions; if they are learned, it fails on the first such text.
    """
    config, settings, tokenizer_config = parts.config, parts.settings, parts.tokenizer_config
    source = f"{config.name}: {positions_source(config)}"
    limits: list[tuple[float, str]] = [(parts.encoder.max_tokens, source)]
    key = length_key(tokenizer_config)
    if "max_seq_length" in settings:
        source = f"{settings.name}: max_seq_length"
        limits.insert(0, (settings.integer("max_seq_length"), source))
    elif key in tokenizer_config:
        # transformers writes 10**30 for "no limit"; the number of positions is then the smaller.
        limits.insert(0, (tokenizer_config.number(key), f"{tokenizer_config.name}: {key}"))
    tokens, source = min(limits, key=lambda limit: limit[0])
    if tokens < 1:
        raise config.refuse(positions_key(config), "room for at least one token")
    return int(tokens), source
