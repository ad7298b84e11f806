"""Changes of model, one after the other, each killed some times; then the rows are compared."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from tests.acceptance.model_change import processes
from tests.acceptance.model_change.processes import REFUSED, ClientJob, Found, LoadJob
from tests.campaign.stored import Stored, difference

PATIENCE_S: Final = 300.0
"""After this a load, or a client, hangs."""
_LOOK_S: Final = 0.002


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done.

    Attributes:
        url: the destination whose model is changed.
        fresh: the URL of another destination, of this number, for a load that nothing happens to.
        read: reads the rows of a destination by its own library.
        folder: for notes.
        kills: how many processes are killed, at least.
        clients: that search all the time; every second one keeps its search over the change.
        num_documents: in the source.
        texts_per_second: how fast the models are.
        pause_s: of a client between two questions.
        seed: of every draw.
    """

    url: str
    fresh: Callable[[int], str]
    read: Callable[[str], Stored]
    folder: Path
    kills: int
    clients: int
    num_documents: int
    texts_per_second: float
    pause_s: float
    seed: int


@dataclass
class Findings:
    """What was done, and what was wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    """By what the load was doing."""
    num_changes: int = 0
    num_refused: int = 0
    """Loads that had to be run again, since the server had not noticed the kill yet."""
    searches: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    """What the last load told."""
    complaints: list[str] = field(default_factory=list)


class ModelChanges:
    """The processes of a run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._forking: Any = multiprocessing.get_context("forkserver")
        self._forking.set_forkserver_preload(list(processes.IMPORTS))
        self._edition = self._forking.Value("i", 0)
        self._opened = self._forking.Array("i", [-1] * plan.clients)
        self._clients: list[tuple[BaseProcess, Any]] = []
        self._load_s = self._end_s = 1.0
        self.found = Findings()

    def run(self) -> Findings:
        """Change the model until enough loads were killed."""
        self._to_the_end(self._load("m0"))
        self._start_clients()
        try:
            number = 0
            while self.found.kills.total() < self._plan.kills and not self.found.complaints:
                number += 1
                self._change(f"m{number}", number)
        finally:
            self._stop_clients()
        return self.found

    def _change(self, model: str, number: int) -> None:
        """Change the model, kill that some times, and drop what is kept."""
        fresh = self._plan.fresh(number)
        self._to_the_end(self._load(model, fresh))
        for _ in range(self._dice.randrange(2, 6)):
            self._kill(self._load(model))
        self._to_the_end(self._load(model))
        self.found.num_changes += 1
        complaint = difference(self._plan.read(self._plan.url), self._plan.read(fresh))
        if complaint:
            self.found.complaints.append(f"after the change to {model}: {complaint}")
        self._open_again()
        if self._dice.random() < 0.5:
            self._kill(self._drop())
        self._to_the_end(self._drop())

    def _load(self, model: str, url: str = "") -> Callable[[Path], BaseProcess]:
        """Return what changes the model of the destination, or loads another one."""
        plan = self._plan

        def start(notes: Path) -> BaseProcess:
            pace = plan.texts_per_second
            job = LoadJob(url or plan.url, model, plan.num_documents, pace, not url, notes)
            return self._start(processes.load, job)

        return start

    def _drop(self) -> Callable[[Path], BaseProcess]:
        return lambda notes: self._start(processes.drop, self._plan.url, notes)

    def _start(self, function: Callable[..., None], *arguments: Any) -> BaseProcess:
        process: BaseProcess = self._forking.Process(target=function, args=arguments, daemon=True)
        process.start()
        return process

    def _to_the_end(self, start: Callable[[Path], BaseProcess]) -> None:
        """Run a load until it ends without an error; learn how long it takes."""
        for _ in range(30):
            notes = self._new_notes()
            process = start(notes)
            began = self._wait_for(notes, "began", process)
            finishing = self._wait_for(notes, "finishing", process)
            process.join(PATIENCE_S)
            if process.exitcode == 0:
                self._load_s = max(finishing - began, 0.1)
                self._end_s = max(time.monotonic() - finishing, 0.05)
                lines = notes.read_text(encoding="utf-8").splitlines()
                told = [line for line in lines if line.startswith("told ")]
                self.found.told = told or self.found.told
                return
            if process.exitcode != REFUSED:
                process.kill()
                said = notes.read_text(encoding="utf-8").splitlines()[-1:]
                self.found.complaints.append(f"a load ended with {process.exitcode}: {said}")
                return
            self.found.num_refused += 1
            threading.Event().wait(0.5)
        self.found.complaints.append("30 loads were refused one after the other")

    def _kill(self, start: Callable[[Path], BaseProcess]) -> None:
        """Kill a load at a drawn instant: while rows are written, or at its end."""
        notes = self._new_notes()
        process = start(notes)
        at_end = self._dice.random() < 0.6
        self._wait_for(notes, "finishing" if at_end else "began", process)
        process.join(self._dice.uniform(0, 1.2 * (self._end_s if at_end else self._load_s)))
        if process.exitcode is None:
            said = notes.read_text(encoding="utf-8")
            stage = "after the rows" if "finishing" in said else "while rows were written"
            stage = "after the switch" if "searches that begin now" in said else stage
            process.kill()
            self.found.kills[stage] += 1
        elif process.exitcode not in (0, REFUSED):
            said = notes.read_text(encoding="utf-8").splitlines()[-1:]
            self.found.complaints.append(f"a load ended with {process.exitcode}: {said}")
        process.join()

    def _new_notes(self) -> Path:
        path = self._plan.folder / f"notes-{time.monotonic_ns()}"
        path.touch()
        return path

    @staticmethod
    def _wait_for(notes: Path, line: str, process: BaseProcess) -> float:
        """Wait until a load has noted a line, or has ended; return when that was."""
        end = time.monotonic() + PATIENCE_S
        while line not in notes.read_text(encoding="utf-8") and process.exitcode is None:
            process.join(_LOOK_S)
            assert time.monotonic() < end, f"a load hangs before {line!r}"
        return time.monotonic()

    def _start_clients(self) -> None:
        plan = self._plan
        for place in range(plan.clients):
            ours, theirs = self._forking.Pipe(duplex=False)
            job = ClientJob(
                *(plan.url, plan.num_documents, place % 2 == 0, plan.seed + place, plan.pause_s)
            )
            process = self._start(processes.ask, job, self._edition, self._opened, place, theirs)
            self._clients.append((process, ours))
        self._wait_until_opened()

    def _open_again(self) -> None:
        """Let every client open its search again, so that none needs the old rows."""
        self._edition.value += 1
        self._wait_until_opened()

    def _wait_until_opened(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while min(self._opened, default=0) < self._edition.value:
            assert time.monotonic() < end, "a client does not open its search"
            threading.Event().wait(_LOOK_S)

    def _stop_clients(self) -> None:
        self._edition.value = -1
        for process, pipe in self._clients:
            if pipe.poll(PATIENCE_S):
                found: Found = pipe.recv()
                self.found.searches.update(found.searches)
                self.found.complaints += found.complaints
            else:
                self.found.complaints.append("a client hangs")
            process.kill()
            process.join()
