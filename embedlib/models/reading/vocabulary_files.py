"""The files of a vocabulary without tokenizer.json, as transformers 4 wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from embedlib.models.reading.model_file import has_file

VOCABULARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "WordPiece": ("vocab.txt",),
    "BPE": ("vocab.json", "merges.txt"),
    "Unigram": ("sentencepiece.bpe.model",),
}
"""The files of a vocabulary, by the class in `tokenizers.models`."""


def vocabulary_files(directory: Path, folder: Path) -> list[Path]:
    """Return the files that may stand in the place of tokenizer.json; none if that is there.

    Args:
        directory: holds the tokenizer's files.
        folder: the model folder; messages name files relative to it.
    """
    if has_file(directory / "tokenizer.json", folder):
        return []
    paths = [directory / name for names in VOCABULARIES.values() for name in names]
    return [path for path in paths if has_file(path, folder)]
