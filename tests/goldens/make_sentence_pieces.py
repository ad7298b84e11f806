"""Write sentence_pieces.json: a small file of SentencePiece, and XLMRobertaTokenizer's ids with it.

Run by hand, where the packages below are installed:

    python tests/goldens/make_sentence_pieces.py

The file is trained with four rules of its own for characters, so that its map has a kilobyte.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import random
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from sentencepiece import SentencePieceTrainer
from transformers import XLMRobertaTokenizer

PACKAGES = ("sentencepiece", "transformers", "tokenizers")
WORDS = (
    *("the", "of", "and", "query", "text", "word", "vector", "river", "city", "quick", "brown"),
    *("fox", "hello", "world", "你好", "世界"),
)
RULES = {"\ufb01": "fi", "\uff21": "a", "\u200b": " ", "\u00ad": ""}
SIGNS = [
    *"abcXYZ é你世界 \t\n.,-\uff13",
    *RULES,
    "the ",
    "River",
    "quick",
    "<mask>",
    " <mask>",
    "</s>",
]


def main() -> None:
    """Train, tokenize, and write the file with the releases that did it."""
    drawn = random.Random(3)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lines = (" ".join(drawn.choices(WORDS, k=12)) for _ in range(500))
        (folder / "texts").write_text("\n".join(lines), encoding="utf-8")
        codes = [[f"{ord(sign):X}" for sign in text] for rule in RULES.items() for text in rule]
        pairs = zip(codes[::2], codes[1::2], strict=True)
        rules = "".join(f"{' '.join(old)}\t{' '.join(new)}\n" for old, new in pairs)
        (folder / "rules.tsv").write_text(rules)
        SentencePieceTrainer.train(
            input=str(folder / "texts"),
            model_prefix=str(folder / "made"),
            vocab_size=60,
            character_coverage=1.0,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(folder / "rules.tsv"),
            minloglevel=2,
        )
        model = (folder / "made.model").read_bytes()
        (folder / "sentencepiece.bpe.model").write_bytes(model)
        tokenizer = XLMRobertaTokenizer.from_pretrained(scratch)
        texts = ["", "".join(RULES)] + [
            "".join(drawn.choices(SIGNS, k=drawn.randint(1, 12))) for _ in range(100)
        ]
        ids = [tokenizer(text)["input_ids"] for text in texts]
    content = {
        "command": "python tests/goldens/make_sentence_pieces.py",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "model": base64.b64encode(model).decode(),
        "texts": texts,
        "ids": ids,
    }
    path = Path(__file__).parent / "sentence_pieces.json"
    path.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
