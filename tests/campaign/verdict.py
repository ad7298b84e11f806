"""What a judge says of one drawn case, and how it judges an exception."""

from __future__ import annotations

import random
import shutil
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedlib.errors import EmbedlibError

LONGEST_MESSAGE = 4000
"""Characters of a message that a reader of one line still reads, with room for long paths."""


@dataclass(frozen=True)
class Verdict:
    """How a case ended.

    Attributes:
        kind: "refused", "same", "foreign exception" and so on: a column of the table.
        what: what was drawn, and for a finding what happened; one line.
        is_finding: whether the library broke a promise.
        counts: how often something was done in the case, by name: kills, for example.
        is_told: whether it is printed like a finding, with the line that draws it again.
    """

    kind: str
    what: str
    is_finding: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    is_told: bool = False


Judge = Callable[[random.Random], Verdict]
"""Draws one case with this generator, runs it and says how it ended."""
OpenJudge = Callable[[Path], AbstractContextManager[Judge]]
"""Prepares what all cases of a part share, in an empty folder."""


class CallersError(Exception):
    """Raised by hostile arguments: passing it on is right where the caller's code was running."""


def finding(kind: str, what: str) -> Verdict:
    return Verdict(kind, what, is_finding=True)


def reference_fails(error: BaseException, what: str) -> Verdict:
    """Return the verdict where the reference raised: nothing is known of the folder then."""
    return Verdict("reference fails", f"{what}: {describe(error)}", is_told=True)


def judge_error(error: BaseException, what: str) -> Verdict:
    """Say whether an exception is one that users were promised: ours, in one line."""
    if isinstance(error, CallersError):
        return Verdict("caller's own exception", what)
    if not isinstance(error, EmbedlibError):
        return finding("foreign exception", f"{what}: {describe(error)}")
    message = str(error)
    if len(message.splitlines()) != 1:
        return finding(f"message of {len(message.splitlines())} lines", f"{what}: {message!r:.300}")
    if len(message) > LONGEST_MESSAGE:
        return finding("message too long", f"{what}: {len(message)} characters: {message:.100}")
    return Verdict("refused", f"{what}: {message}")


def describe(error: BaseException) -> str:
    """Return type, message and place of an exception in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "embedlib" in frame.filename.rpartition("/")[0]]
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}({one_line(error)}){place}"


def one_line(value: Any) -> str:
    """Return the start of a value's text, whatever is in it."""
    return ascii(str(value))[1:200]


def judge_at(place: Path, judge: Callable[[random.Random, Path], Verdict]) -> Judge:
    """Return a judge whose cases are all written at one place, which each leaves empty."""

    def judge_one(rng: random.Random) -> Verdict:
        try:
            return judge(rng, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    return judge_one
