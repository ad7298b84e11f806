"""Folders with the vocabulary in files of its own, as transformers 4 wrote them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Final

SENTENCE_PIECES: Final = "sentencepiece.bpe.model"


def field(number: int, kind: int, content: bytes) -> bytes:
    """Return a field of a message; lengths of up to 16,383 bytes."""
    if kind == 2:
        size = len(content)
        content = bytes([size & 127 | 128, size >> 7]) + content
    return bytes([number << 3 | kind]) + content


def sentence_piece(text: str, score: float, kind: int = 1) -> bytes:
    parts = field(1, 2, text.encode()) + field(2, 5, struct.pack("<f", score))
    return field(1, 2, parts + field(3, 0, bytes([kind])))


def without_json(folder: Path) -> Path:
    """Write the vocabulary of tokenizer.json as transformers 4 did, and remove that file."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.unlink()
    model = content["model"]
    if model["type"] == "WordPiece":
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    elif model["type"] == "BPE":
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]))
    else:
        own = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
        pieces = [sentence_piece(*piece) for piece in (*own, *model["vocab"][4:-1])]
        denormalizer = field(5, 2, field(2, 2, b"no map of characters"))
        (folder / SENTENCE_PIECES).write_bytes(b"".join([*pieces, denormalizer]))
    return folder
