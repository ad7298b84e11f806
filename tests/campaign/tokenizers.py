"""One edit to the tokenizer files of a folder: the token ids are transformers', or it is refused.

Some of the folders lose tokenizer.json after it, and have the vocabulary in files of its own.

Where transformers is not installed, the folder must be refused in one line or load.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from embedlib import Embedder
from embedlib.errors import InputError
from tests.campaign import reference
from tests.campaign.tokenizer_edits import BASES, TEXTS, one_edit, write_base
from tests.campaign.verdict import Judge, Verdict, finding, judge_at, judge_error, reference_fails
from tests.campaign.vocabularies import without_json

WITHOUT_JSON: Final = 0.5
"""The share of folders, of the kinds below, that lose tokenizer.json."""
KINDS: Final = ("bert", "bert-saved", "mpnet", "roberta", "xlm-roberta", "distilbert")


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge that writes every folder at the same place."""
    reference.prepare()
    yield judge_at(folder / "model", judge_edit)


def judge_edit(rng: random.Random, place: Path) -> Verdict:
    """Write a folder, edit it once, and compare token ids."""
    base = rng.choice(list(BASES))
    write_base(place, base)
    what = f"{base}: {one_edit(rng, place)}"
    if rng.random() < WITHOUT_JSON and base in KINDS:
        with suppress(OSError, ValueError, LookupError, TypeError):  # not a file any more
            without_json(place)
            what += ", then its vocabulary alone"
    try:
        with Embedder(place, precision="float32", on_truncate="ignore") as embedder:
            ours = [_ids(embedder, text) for text in TEXTS]
    except Exception as error:
        return judge_error(error, what)
    if not reference.is_installed():
        return Verdict("loaded", what)
    try:
        theirs = _reference_ids(place)
    except BaseException as error:  # the Rust part of transformers' tokenizers panics
        return reference_fails(error, what)
    for text, got, expected in zip(TEXTS, ours, theirs, strict=True):
        if got is not None and got != expected:
            return finding("other ids", f"{what}: {text[:30]!r} is {got[:20]}, not {expected[:20]}")
    return Verdict("same ids", what)


def _ids(embedder: Embedder, text: str) -> list[int] | None:
    """Return the ids of a text; None if it is refused, as one without tokens is."""
    try:
        embedder.encode(text)
    except InputError:
        return None
    ids: list[int] = embedder.tokenizer.encode(text).ids
    return ids


def _reference_ids(place: Path) -> list[list[int]]:
    """Return the ids by the tokenizer that transformers makes of a folder."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(place), local_files_only=True)
    return [tokenizer(text, truncation=False)["input_ids"] for text in TEXTS]
