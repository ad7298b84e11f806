"""Is it right? Asked before how fast it is, of a few layers of every model.

A check returns what was found, what is allowed and whether that is kept. Vectors have unit length.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from embedlib.engines.base import Engine, Lane
from embedlib.engines.cuda.limits import ALWAYS_SHORT_TOKENS
from embedlib.testing import make_batch
from embedlib.vectors.arrays import Vectors
from tests.acceptance.gpu.models import Precision
from tests.acceptance.gpu.texts import NUM_MARKED_IDS, Ids, texts_of

NUM_LAYERS: Final = 4
LENGTHS: Final = (1, 2, 15, 16, 17, 63, 64, 65, 130, 300)
"""Around the sizes of recordings and tiles; together more than any recording holds that bulk may
use, so that the same text is computed from a recording when it is alone and launched step by step
when it is not."""
MAX_MIX_ERROR: Final[Mapping[Precision, float]] = MappingProxyType({"bf16": 1e-4, "fp8": 2e-3})
"""1 - cosine between a text alone and the same text in any mix. Libraries sum products of other
sizes up in another order, and here and there a number is rounded the other way, in FP8 by a
sixteenth. Emulated, with as little as 1e-5 of a row's size added to every product, models of 1024
columns give 2e-5 and 5e-4. In FP8 it is no more with 3e-3, what the short sum of another kernel may
differ by, nor with the columns of the largest model."""
MAX_REFERENCE_ERROR: Final = 1e-3
"""1 - cosine of bfloat16 to the reference, float32 on the same weights."""
MAX_FP8_ERROR: Final = 5e-3
"""1 - cosine of FP8 to bfloat16. Emulated, four layers of the sizes measured here give 1e-3; a
wrong scale gives tenths."""
MAX_FP8_OUTLIER_ERROR: Final = 0.02
"""The same where one channel is huge, and the noise of that channel with it."""


def gate_texts(vocab_size: int) -> list[Ids]:
    """Return the texts of all checks."""
    return texts_of(LENGTHS, vocab_size)


def alone(engine: Engine, texts: Sequence[Ids]) -> Vectors:
    """Return float32[N, D], every text computed alone; long ones launched step by step."""
    return np.concatenate(
        [
            run(engine, [text], Lane.QUERY if len(text) <= ALWAYS_SHORT_TOKENS else Lane.BULK)
            for text in texts
        ]
    )


def run(engine: Engine, texts: Sequence[Ids], lane: Lane) -> Vectors:
    """Return float32[N, D] of one batch."""
    done = threading.Event()
    pending = engine.submit(make_batch(texts, lane), done.set)
    done.wait()
    return pending.result()


def check_mixes(engine: Engine, vocab_size: int, allowed: float) -> dict[str, Any]:
    """A text has the same vector alone and in any mix, from a recording or launched."""
    texts = gate_texts(vocab_size)
    expected = alone(engine, texts)
    errors = []
    backwards = list(range(len(texts)))[::-1]
    short = [index for index, text in enumerate(texts) if len(text) < 64]
    for order in (range(len(texts)), backwards, short, short * 3):
        for lane in Lane:
            found = run(engine, [texts[index] for index in order], lane)
            errors.append(_error(found, expected[list(order)]))
    # numpy's maximum, as Python's passes over NaN.
    return _outcome("the same alone and in any mix", np.max(errors), allowed)


def check_poison(engine: Engine, vocab_size: int, allowed: float) -> dict[str, Any]:
    """A text that is not a number, or has huge activations, changes no other one.

    Neither in its batch, nor behind it where its numbers are left in memory. It fills that memory,
    so that a row that is read and should not be gives itself away.
    """
    texts = gate_texts(vocab_size)
    expected = alone(engine, texts)
    errors = []
    for mark in range(1, NUM_MARKED_IDS + 1):
        bad = [np.full(len(text), vocab_size - mark, np.int32) for text in texts]
        together = [text for pair in zip(texts, bad, strict=True) for text in pair]
        found = [run(engine, together, Lane.BULK)[::2]]
        alone(engine, bad)  # into the memory of recordings
        found.append(alone(engine, texts))
        run(engine, bad * 2, Lane.BULK)
        found.append(run(engine, texts, Lane.BULK))
        errors += [_error(vectors, expected) for vectors in found]
    name = "untouched by NaN and huge tokens beside it"
    return _outcome(name, np.max(errors), allowed)


def check_close(name: str, found: Vectors, expected: Vectors, allowed: float) -> dict[str, Any]:
    """Vectors point the same way as others."""
    return _outcome(name, _error(found, expected), allowed)


def _error(found: Vectors, expected: Vectors) -> float:
    """Return the largest 1 - cosine."""
    cosines = (found * expected).sum(axis=1) / (
        np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    )
    return float(1 - cosines.min())


def _outcome(name: str, worst: float, allowed: float) -> dict[str, Any]:
    found = float(worst)
    # JSON has no NaN, and a NaN passes nothing.
    passed = math.isfinite(found) and found <= allowed
    shown = found if math.isfinite(found) else str(found)
    return {"check": name, "found": shown, "allowed": allowed, "passed": passed}


Check = Callable[[Engine, int, float], dict[str, Any]]
CHECKS: Final[tuple[Check, ...]] = (check_mixes, check_poison)
"""For every precision alone."""
