"""Cases run in a child process with bounds on memory and time.

A crash or a hang ends the child, not the campaign: the parent says so of the case that ran, and
starts another child for the next one.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import tempfile
import traceback
import warnings
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.campaign.table import Part
from tests.campaign.verdict import Judge, OpenJudge, Verdict, finding

SETUP_SECONDS = 300.0


def run(part: Part, seeds: Iterable[int]) -> Generator[tuple[int, Verdict], None, None]:
    """Yield the verdict of every seed."""
    with ExitStack() as stack:
        child: Child | None = None
        for seed in seeds:
            if child is None:
                child = stack.enter_context(Child(part))
            verdict = child.judge(seed)
            yield seed, verdict
            if not child.is_alive:
                child = None


class Child:
    """A process that judges the cases of one part."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._folder = tempfile.TemporaryDirectory(prefix="embedlib-campaign-")
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(theirs, part, self._folder.name))
        self._process.start()
        theirs.close()
        self.is_alive = True
        self._prepared: Verdict | None = self._answer("the preparation", SETUP_SECONDS)

    def judge(self, seed: int) -> Verdict:
        """Run one case; a child that did not answer in time is killed."""
        if self._prepared is not None:
            self._end()
            return self._prepared
        self._pipe.send(seed)
        answer: Verdict = self._answer(f"seed {seed}", self._part.case_seconds)
        return answer

    def _answer(self, what: str, seconds: float) -> Any:
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
            kind = "hang"
        except (EOFError, ConnectionError):
            kind = "crash"
        self._end()
        return finding(kind, f"{what}: no answer in {seconds:g} s, exit {self._process.exitcode}")

    def _end(self) -> None:
        self.is_alive = False
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_alive:
            self._pipe.send(None)
            self._process.join(20)
        self._end()
        self._pipe.close()
        self._folder.cleanup()


def _serve(pipe: Connection, part: Part, folder: str) -> None:
    """Judge the seeds that come through a pipe until None comes."""
    _be_quiet()
    limit = part.memory_gib << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
    try:
        open_judge: OpenJudge = import_module(f"tests.campaign.{part.name}").open_judge
        with open_judge(Path(folder)) as judge:
            pipe.send(None)  # ready
            while (seed := _next_seed(pipe)) is not None:
                pipe.send(_judge(judge, seed))
    except BaseException as error:
        pipe.send(_failed(error))


def _judge(judge: Judge, seed: int) -> Verdict:
    try:
        return judge(random.Random(seed))
    except TimeoutError as error:
        return finding("hang", str(error))
    except BaseException as error:
        return _failed(error)


def _failed(error: BaseException) -> Verdict:
    """Return the verdict of a fault of the judge, which must not pass for a refusal."""
    lines = "".join(traceback.format_exception(error)[-3:]).split("\n")
    return finding("judge failed", " / ".join(line.strip() for line in lines))


def _next_seed(pipe: Connection) -> int | None:
    try:
        seed: int | None = pipe.recv()
        return seed
    except EOFError:  # the parent was killed
        return None


def _be_quiet() -> None:
    """Send progress bars, logs and warnings nowhere: there are thousands of calls."""
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
