"""Write the stored outputs of sentence-transformers and model2vec for tiny static models.

Run by hand, in an environment with the two libraries, from the repository's root:

    pip install sentence-transformers==6.2.0 transformers==5.23.0 model2vec==0.10.0 torch==2.13.0
    python -m tests.goldens.make_static [sentence-transformers | model2vec]

A name makes one half, for an environment that has one of the libraries.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from random import Random

import numpy as np

from embedlib.testing.models.tokenizers import FOREIGN, LETTERS, SIGNS, WORDS
from tests.tiny_models.static import write_model2vec, write_static_model

HERE = Path(__file__).parent / "static"
ST, M2V = "sentence-transformers", "model2vec"
MODEL2VEC = {
    "float32": {"normalize": True},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "int8", "normalize": True},
    "mapped": {"is_mapped": True, "normalize": True, "max_length": None},
}
"""Arguments of `write_model2vec`."""


def draw_texts() -> list[str]:
    """Return texts; none is empty, and some have tokens that the tokenizer does not know."""
    stored = json.loads((HERE.parent / "texts.json").read_text(encoding="utf-8"))
    random = Random(0)
    words = [*WORDS, *LETTERS, *SIGNS, *FOREIGN, "☃", "ﬁsh", "Runs", "ÉTÉ", "\n", "vectorized"]
    drawn = [" ".join(random.choices(words, k=random.randint(1, 24))) for _ in range(240)]
    return [text for text in [*stored, *drawn] if text.strip()]


def sentence_transformers_outputs(texts: list[str]) -> dict[str, np.ndarray]:
    """Return vectors with and without Normalize, and token ids."""
    kind = import_module("sentence_transformers").SentenceTransformer
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, normalize in (("plain", False), ("normalized", True)):
            folder = write_static_model(Path(temporary) / name, normalize=normalize)
            arrays[name] = kind(str(folder), device="cpu").encode(texts)
    return arrays


def model2vec_outputs(texts: list[str]) -> dict[str, np.ndarray]:
    """Return the vectors of every kind of table."""
    kind = import_module("model2vec").StaticModel
    with tempfile.TemporaryDirectory() as temporary:
        return {
            name: kind.from_pretrained(
                write_model2vec(Path(temporary) / name, **arguments)  # type: ignore[arg-type]
            )
            .encode(texts)
            .astype(np.float32)
            for name, arguments in MODEL2VEC.items()
        }


def main() -> None:
    """Write a file per library, and the provenance."""
    HERE.mkdir(exist_ok=True)
    texts = draw_texts()
    content = json.dumps(texts, indent=0, ensure_ascii=False) + "\n"
    (HERE / "texts.json").write_text(content, encoding="utf-8")
    path = HERE / "provenance.json"
    facts = json.loads(path.read_text()) if path.exists() else {}
    makers = {ST: sentence_transformers_outputs, M2V: model2vec_outputs}
    for name in sys.argv[1:] or makers:
        np.savez_compressed(HERE / f"{name}.npz", **makers[name](texts))
        facts[name] = {
            "date": datetime.now(timezone.utc).date().isoformat(),
            "packages": {
                package: importlib.metadata.version(package)
                for package in (name, "tokenizers", "numpy")
            },
        }
    path.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
