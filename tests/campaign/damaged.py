"""Damaged model folders: refused in one line, or computed as the files still say.

The process that reads them has bounds on memory and time: a crash, a hang and a demand for memory
show as such. Vectors of a damaged folder that is taken must be finite; where sentence-transformers
is installed, they must be its vectors.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib import Embedder, Reranker
from embedlib.testing.models.write import write_tiny_model
from tests.campaign import reference
from tests.campaign.damage import damage
from tests.campaign.verdict import Judge, Verdict, describe, finding, judge_error, reference_fails

BASES: Final = ("bert-cls-dense", "qwen3", "mistral", "bert-reranker")
"""With Dense and LayerNorm; a decoder; shards; a head."""
TEXTS: Final = ("hello world", "The quick brown fox", "a", "ünïcödé 漢字", "words " * 30)
TOLERANCE: Final = 1e-4


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge that knows the vectors of the folders before they are damaged."""
    reference.prepare()
    healthy = {base: write_tiny_model(folder / base, base) for base in BASES}
    expected = {base: _compute(place, base) for base, place in healthy.items()}

    def judge(rng: random.Random) -> Verdict:
        base = rng.choice(BASES)
        place = folder / "damaged"
        shutil.copytree(healthy[base], place)
        try:
            return judge_damage(rng, place, base, expected[base])
        finally:
            _remove(place)

    yield judge


def judge_damage(
    rng: random.Random, place: Path, base: str, expected: NDArray[np.float32]
) -> Verdict:
    """Damage a folder and load it."""
    what = f"{base}: {damage(rng, place)}"
    try:
        vectors = _compute(place, base)
    except Exception as error:
        return judge_error(error, what)
    except BaseException as error:
        return finding("foreign exception", f"{what}: {describe(error)}")
    if not np.isfinite(vectors).all():
        return finding("not finite", what)
    if reference.error_of(vectors, expected) <= TOLERANCE:
        return Verdict("as undamaged", what)
    return compare_with_reference(place, base, vectors, what)


def compare_with_reference(
    place: Path, base: str, vectors: NDArray[np.float32], what: str
) -> Verdict:
    """Judge the vectors of a damaged folder that differ from the healthy one's."""
    if not reference.is_installed():
        return Verdict("others, not compared", what)
    is_scorer = base.endswith("reranker")
    try:
        peer = reference.open_reference(place, is_scorer=is_scorer)
        inputs: Any = _pairs() if is_scorer else list(TEXTS)
        theirs = peer.predict(inputs) if is_scorer else _like(vectors, peer.encode(inputs))
    except Exception as error:
        return reference_fails(error, what)
    if not np.isfinite(theirs).all():  # extreme weights, added in another order
        return Verdict("reference fails", f"{what}: not finite")
    if reference.error_of(vectors, theirs) <= TOLERANCE:
        return Verdict("as the reference", what)
    return finding("different", what)


def _like(vectors: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale truncated vectors to unit length, as embedlib does and the reference does not."""
    lengths = np.linalg.norm(theirs, axis=1, keepdims=True)
    is_unit = np.allclose(np.linalg.norm(vectors, axis=1), 1)
    return theirs / np.maximum(lengths, 1e-12) if is_unit else theirs


def _compute(place: Path, base: str) -> NDArray[np.float32]:
    vectors: NDArray[np.float32]
    if base.endswith("reranker"):
        with Reranker(place, precision="float32", on_truncate="ignore") as reranker:
            vectors = reranker.predict(_pairs())
    else:
        with Embedder(place, precision="float32", on_truncate="ignore") as embedder:
            vectors = embedder.encode(list(TEXTS))
    return vectors


def _pairs() -> list[tuple[str, str]]:
    return [(TEXTS[0], text) for text in TEXTS]


def _remove(place: Path) -> None:
    """Remove a folder whose permissions may be damaged, too, or that is no folder any more."""
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        return
    for path in (place, *place.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(place, ignore_errors=True)
