"""Write the stored weights of sentence-transformers' SparseEncoder for tiny sparse models.

Run by hand, in an environment with the library, from the repository's root:

    pip install sentence-transformers==6.2.0 transformers==5.23.0 torch==2.13.0
    python -m tests.goldens.make_sparse
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny_models.sparse import (
    SPARSE_VARIANTS,
    write_router,
    write_sparse_model,
    write_token_weights,
)

HERE = Path(__file__).parent / "sparse"
TEXTS = json.loads((HERE.parent / "texts.json").read_text(encoding="utf-8"))
PACKAGES = ("sentence-transformers", "transformers", "torch", "tokenizers")


def dense_rows(model: Any, role: str) -> np.ndarray:
    """Return float32[N, V]: the weights of all texts that are not blank."""
    texts = [text for text in TEXTS if text.strip()]
    encode = getattr(model, f"encode_{role}")
    rows: np.ndarray = encode(texts).to_dense().numpy()
    return rows


def main() -> None:
    """Write a file of arrays, and the provenance."""
    HERE.mkdir(exist_ok=True)
    kind = import_module("sentence_transformers").SparseEncoder
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = {
            name: write_sparse_model(Path(temporary) / name, name) for name in SPARSE_VARIANTS
        }
        folders["router"] = write_router(Path(temporary) / "router")
        folders["table"] = write_token_weights(Path(temporary) / "table")
        for name, folder in folders.items():
            # Weights in 16 bits are computed in float32, as embedlib does.
            model = kind(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
            for role in ("query", "document") if name == "router" else ("document",):
                arrays[f"{name}/{role}"] = dense_rows(model, role)
    np.savez_compressed(HERE / "sentence-transformers.npz", **arrays)  # type: ignore[arg-type]
    facts = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    (HERE / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
