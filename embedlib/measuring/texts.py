"""Texts for measurements: the documentation of Python's library, which every machine has."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedlib.errors import SourceError

if TYPE_CHECKING:
    import tokenizers

QUERIES = (
    "how do I open a file for writing",
    "sort a list in reverse order",
    "what is a weak reference good for",
    "parse the arguments of a command line",
    "what is the difference between bytes and str",
    "read numbers from a csv file",
    "when does a generator come to its end",
    "run code in another process",
    "convert a date to a string",
    "why is my thread blocked",
    "join two paths on any system",
    "count the different words of a text",
    "send an email with an attachment",
    "round a decimal number up",
    "cancel a task after some time",
    "find a module by its dotted name",
)
"""Short questions of about nine tokens; all differ, so that no cache of results helps."""

RERANK_QUERY = "how do I copy a folder and everything that is in it"

_MIN_CHARACTERS = 20  # shorter ones are mostly "Return x.", the same again and again
_BLOCK_TEXTS = 200
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


def docstrings(num_texts: int) -> list[str]:
    """Return documentation strings of Python's own library, each once, the same on every call.

    Files come in the order of a hash of their names: mixed, so that the first texts are not all
    about one module, but the same on every machine with the same Python.
    """
    return list(islice(_docstrings(Path(sysconfig.get_path("stdlib"))), num_texts))


def docstring_pieces(
    num_pieces: int, num_tokens: int, tokenizer: tokenizers.Tokenizer
) -> list[str]:
    """Return pieces of the same text as `docstrings`, each of about `num_tokens` tokens."""
    pieces: list[str] = []
    for text in _blocks():
        spans = tokenizer.encode(text, add_special_tokens=False).offsets
        for start in range(0, len(spans) - num_tokens + 1, num_tokens):
            if len(pieces) == num_pieces:
                return pieces
            pieces.append(text[spans[start][0] : spans[start + num_tokens - 1][1]])
    return pieces


def texts_of_about(num_tokens: int, num_texts: int, tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Return pieces of the same text whose lengths spread around `num_tokens`.

    Lengths are normally distributed with a third of their mean as deviation, the same on every
    call: of one length, no batch would have padding. There are fewer where the documentation is too
    short for as many.
    """
    random = np.random.default_rng(0)
    drawn = random.normal(num_tokens, num_tokens / 3, num_texts)
    lengths = np.clip(drawn.round(), max(1, num_tokens // 4), 2 * num_tokens).astype(int).tolist()
    texts: list[str] = []
    text, spans = "", list[tuple[int, int]]()
    for block in _blocks():
        text += "\n\n" if text else ""
        offsets = tokenizer.encode(block, add_special_tokens=False).offsets
        spans += [(begin + len(text), end + len(text)) for begin, end in offsets]
        text += block
        start = 0
        while len(texts) < num_texts and start + lengths[len(texts)] <= len(spans):
            end = start + lengths[len(texts)]
            texts.append(text[spans[start][0] : spans[end - 1][1]])
            start = end
        if len(texts) == num_texts:
            break
        if start:  # otherwise the next text is longer than this block: it goes on with the next one
            text, spans = "", []
    return texts


def _blocks() -> Iterator[str]:
    """Yield documentation strings, many joined to one text."""
    texts = _docstrings(Path(sysconfig.get_path("stdlib")))
    while block := list(islice(texts, _BLOCK_TEXTS)):
        yield "\n\n".join(block)


def _docstrings(root: Path) -> Iterator[str]:
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths = (Path(folder, name) for name in files if name.endswith(".py"))
        names += [path.relative_to(root).as_posix() for path in paths]
    seen = set()
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        for text in _file_docstrings(root / name):
            if len(text) >= _MIN_CHARACTERS and text not in seen:
                seen.add(text)
                yield text


def _file_docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # Python ships a few files with syntax errors, for its own tests
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield inspect.cleandoc(text)


def read_lines(path: Path, num_texts: int | None = None) -> list[str]:
    """Return the first texts of a file, one per line, without empty lines; None: all of them.

    Raises:
        SourceError: the file cannot be read or has no text in it.
    """
    try:
        # As a source of lines: str.splitlines divides texts at form feeds and the like, too.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            lines = (line.removesuffix("\n").removesuffix("\r") for line in file if line.strip())
            texts = list(islice(lines, num_texts))
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    if not texts:
        raise SourceError(f"{path}: has no text in it; give a file with one text per line")
    return texts
