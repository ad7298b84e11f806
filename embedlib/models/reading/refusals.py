"""What folders and modules that embedlib does not compute are, and what to take instead.

What is known of families and classes without a row stands in families/refused.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from embedlib.errors import ModelError
from embedlib.models.catalog import catalog
from embedlib.models.reading.model_file import has_file, load_json

_SPARSE: Final = (
    "belongs to a sparse model of another kind than those that load: a Transformer with a "
    "SpladePooling, a SparseStaticEmbedding, or a Router of these"
)
OF_TOKENS: Final = (
    "belongs to a ColBERT model, and config_sentence_transformers.json is not that of one: its "
    'model_type is "MultiVectorEncoder", or "ColBERT" of PyLate'
)
"""Of a module of a late-interaction model, and of every one of PyLate."""
_POOLED_TOKENS: Final = (
    "averages vectors of tokens that are alike, which embedlib does not; LateOn and "
    "GTE-ModernColBERT load without it"
)
MODULES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("SpladePooling", "MLMTransformer", "SparseStaticEmbedding"), _SPARSE),
    "SparseAutoEncoder": _SPARSE,
    "MultiVectorMask": OF_TOKENS,
    "HierarchicalTokenPooling": _POOLED_TOKENS,
    "JasperTransformer": "averages neighbouring tokens inside the model, which embedlib does not; "
    "Qwen3-Embedding-0.6B is the nearest that loads",
    **dict.fromkeys(
        ("Router", "Asym"),
        "has one model for queries and another for documents; load the folder of one of them",
    ),
}
"""By the class of a module of sentence-transformers, or of a folder's own code."""

QUANTIZED: Final = (
    "a model that is not quantized: load the one it was made from, with precision='int8' to save "
    "memory on a CPU"
)
"""What `quantization_config` may be."""

_MERGE: Final = (
    "merge the two with peft, model.merge_and_unload().save_pretrained(NEW_FOLDER), and load that"
)
ADAPTER: Final = (
    "is an adapter, which transformers adds to the model where peft is installed and else leaves "
    f"out; {_MERGE}; or delete the file, if the weights have the adapter already"
)
"""Of adapter_config.json beside config.json. Source: `from_pretrained` of transformers."""


def held_instead(directory: Path, folder: Path) -> str | None:
    """Return what a folder without config.json holds, and what to take; None if it is not known.

    Args:
        directory: the one without config.json.
        folder: the model's, which it is part of.
    """
    if has_file(directory / "adapter_config.json", folder):
        return f"adapter_config.json is an adapter without {_adapted(directory, folder)}; {_MERGE}"
    if files := sorted(directory.glob("*.gguf")):
        return (
            "holds GGUF, a file of llama.cpp, and no config.json; load the model it was made "
            f"from{_named_like(files[0].stem)}"
        )
    return None


def _adapted(directory: Path, folder: Path) -> str:
    """Return which model an adapter changes, as far as it says so."""
    try:
        config = load_json(directory / "adapter_config.json", folder)
    except ModelError:
        config = None
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return f"its model, {name!r}" if isinstance(name, str) and name else "its model"


def _named_like(stem: str) -> str:
    """Return the published model whose name a file's name begins with, or where to look for it."""
    plain = stem.lower().replace("_", "-")
    names = [entry.name for entry in catalog()]
    alike = [name for name in names if plain.startswith(name.rpartition("/")[2].lower())]
    if not alike:
        return "; `embedlib models` lists what loads"
    return f": by its name {max(alike, key=len)}, which loads"
