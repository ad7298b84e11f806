"""Write the stored outputs of sentence-transformers and PyLate for tiny late-interaction models.

Run by hand, from the repository's root, in the environment of tests/frameworks (.ci/frameworks):

    python tests/goldens/make_late.py sentence-transformers

and in one with PyLate, whose other dependencies it does without here:

    pip install torch==2.13.0 transformers==5.3.0 scikit-learn scipy accelerate
    pip install ujson pandas datasets
    pip install --no-deps sentence-transformers==5.3.0 pylate==1.6.0
    python tests/goldens/make_late.py pylate
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from embedlib.testing.models.late import LATE
from embedlib.testing.models.tokenizers import FOREIGN, LETTERS, SIGNS, WORDS
from embedlib.testing.models.write import write_tiny_model

HERE = Path(__file__).parent / "late"
ST, PYLATE = "sentence-transformers", "pylate"
PYLATE_VARIANTS = ("late-modernbert", "late-pylate", "late-stanford")
UNUSED_OF_PYLATE = ("fastkmeans", "fast_plaid")
Encode = Callable[[Sequence[str], bool], list[np.ndarray]]


def draw_texts() -> list[str]:
    """Return texts of every length, some with tokens that are skipped or unknown."""
    random = Random(8)
    words = [*WORDS, *LETTERS, *SIGNS, *FOREIGN, "☃", "Runs", "ÉTÉ", "[MASK]", "[Q]", "vectorized."]
    drawn = [" ".join(random.choices(words, k=random.randint(1, 20))) for _ in range(24)]
    return ["", ".", "hello world", "the data base, of a small city?", *drawn]


def sentence_transformers_encoder(folder: Path) -> tuple[Encode, Any]:
    """Return how `MultiVectorEncoder` encodes, and its similarity."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu", model_kwargs={"dtype": "float32"})

    def encode(texts: Sequence[str], is_query: bool) -> list[np.ndarray]:
        method = model.encode_query if is_query else model.encode_document
        return [method(text, convert_to_numpy=True) for text in texts]

    return encode, model.similarity


def pylate_encoder(folder: Path) -> tuple[Encode, Any]:
    """Return how PyLate's `ColBERT` encodes, and its scores."""
    for name in UNUSED_OF_PYLATE:
        sys.modules.setdefault(name, MagicMock())
    from pylate import models, scores

    model = models.ColBERT(str(folder), device="cpu", local_files_only=True)

    def encode(texts: Sequence[str], is_query: bool) -> list[np.ndarray]:
        # One by one: PyLate pads a batch with mask tokens, which attend to what is there.
        return [
            model.encode([text], is_query=is_query, show_progress_bar=False)[0] for text in texts
        ]

    return encode, scores.colbert_scores


def outputs(library: str) -> dict[str, np.ndarray]:
    """Return the vectors of all texts in both roles, one behind the other, and their numbers."""
    texts = draw_texts()
    arrays: dict[str, np.ndarray] = {}
    for name in LATE if library == ST else PYLATE_VARIANTS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = write_tiny_model(Path(temporary) / name, name)
            make = sentence_transformers_encoder if library == ST else pylate_encoder
            encode, _ = make(folder)
            for role in ("query", "document"):
                rows = encode(texts, role == "query")
                arrays[f"{name} {role} counts"] = np.array([len(row) for row in rows], np.int32)
                arrays[f"{name} {role}"] = np.concatenate(rows).astype(np.float32)
    return arrays


def main(library: str) -> None:
    """Write the outputs of one library, and what made them."""
    HERE.mkdir(exist_ok=True)
    np.savez_compressed(HERE / f"{library}.npz", **outputs(library))
    (HERE / "texts.json").write_text(json.dumps(draw_texts(), ensure_ascii=False, indent=1) + "\n")
    path = HERE / "provenance.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    packages = (*{ST, library}, "transformers", "torch", "tokenizers", "numpy")
    known[library] = {
        "command": f"python tests/goldens/make_late.py {library}",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "settings": "float32, each text on its own",
    }
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
