"""What folders and modules that embedlib does not compute are, and what to take instead.

What is known of families and classes without a row stands in families/refused.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from embedlib.errors import ModelNotFoundError
from embedlib.models.reading.model_file import has_file

_SPARSE: Final = (
    "belongs to a sparse model of another kind than those that load: a Transformer with a "
    "SpladePooling, a SparseStaticEmbedding, or a Router of these"
)
_TOKENS: Final = (
    "belongs to a ColBERT model, and config_sentence_transformers.json is not that of one: its "
    'model_type is "MultiVectorEncoder", or "ColBERT" of PyLate'
)
_POOLED_TOKENS: Final = (
    "averages vectors of tokens that are alike, which embedlib does not; LateOn and "
    "GTE-ModernColBERT load without it"
)
MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("SpladePooling", "MLMTransformer", "SparseStaticEmbedding"), _SPARSE),
        "SparseAutoEncoder": _SPARSE,
        "MultiVectorMask": _TOKENS,
        "HierarchicalTokenPooling": _POOLED_TOKENS,
        **dict.fromkeys(
            ("Router", "Asym"),
            "has one model for queries and another for documents; load the folder of one of them",
        ),
    }
)
"""By the class of a module of sentence-transformers."""

QUANTIZED: Final = (
    "a model that is not quantized: load the one it was made from, with precision='int8' to save "
    "memory on a CPU"
)
"""What `quantization_config` may be."""


def explain_module(kind: str, package: str) -> str | None:
    """Return what a model with such a module is; None if nothing is known of it.

    Args:
        kind: the module's class.
        package: the package that its class is from.
    """
    return _TOKENS if package == "pylate" else MODULES.get(kind)


def no_config(directory: Path, folder: Path) -> ModelNotFoundError:
    """Return the error for a folder without config.json."""
    message = f"{directory}: there is no config.json"
    if has_file(directory / "adapter_config.json", folder):
        message = (
            f"{directory}: adapter_config.json is an adapter without its model; merge the two with "
            "peft, model.merge_and_unload().save_pretrained(NEW_FOLDER), and load that"
        )
    elif any(directory.glob("*.gguf")):
        message = (
            f"{directory}: holds GGUF, a file of llama.cpp, and no config.json; load the model it "
            "was made from"
        )
    return ModelNotFoundError(message)
