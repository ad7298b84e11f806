"""The workers of a load, and which of them takes the next call.

Ray starts the workers and moves what they are given. What is decided here is only that no machine
has the model twice, that no worker has more calls than it can overlap, and what happens to a call
whose worker died: it is tried again, by itself, so that a text which kills workers takes no other
shard with it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import (
    ActorHandleNotFoundError,
    ActorUnavailableError,
    ActorUnschedulableError,
    RayActorError,
)

from embedlib.errors import (
    ClosedError,
    ConfigError,
    EmbedlibError,
    EngineRunError,
    InputError,
    first_line,
)
from embedlib_ray.failures import cause_of, is_ray_itself
from embedlib_ray.worker import CALLS, Counts

ATTEMPTS = 3
"""How often a call is tried, and how often a worker may fail to start."""
_FINAL = (ConfigError, InputError, EngineRunError)
"""What is wrong with a call itself: another worker would say the same."""
_RETRY_SECONDS = 0.5
"""Between two attempts to reach a machine that does not answer, or to find another one."""
_CLOSE_SECONDS = 30.0
_LOOK_SECONDS = 1.0
"""Between two looks whether the connection has ended, with which Ray forgets what it was asked."""
_ENDED = "the connection to the Ray cluster has ended; open other workers with RayEmbedder(...)"

Start = Callable[[Collection[str]], tuple[Any, str] | None]
"""Starts an actor on a machine that is none of these, and returns its handle, and its machine or ""
where Ray chooses; None: there is no other one now."""
OpenCall = Callable[[Any, int], Any]
"""Begins to open the actor of a place, from 0; returns what to wait for."""


@dataclass(eq=False)
class _Task:
    method: str
    arguments: tuple[Any, ...]
    future: Future[Any]
    failed_at: list[int] = field(default_factory=list)
    """Numbers of places, one for each attempt."""


@dataclass(eq=False)
class _Place:
    """A process with a model; started as often as it dies. Some workers share it."""

    number: int
    num_workers: int
    handle: Any = None
    """None: it was ended, or waits for a machine."""
    machine: str = ""
    is_ready: bool = False
    is_opening: bool = False
    is_waiting: bool = False
    """Whether it looks for a machine again in a moment."""
    is_lost: bool = False
    """Whether it is given up, until the next load."""
    has_worked: bool = False
    """Whether its actor was ready."""
    num_failures: int = 0
    """How often it could not be opened, one after the other."""
    opened_for: int = 0
    then: Future[None] | None = None
    """What waits for the first worker of a load."""
    tasks: list[_Task] = field(default_factory=list)


class WorkerPool:
    """Calls of methods of workers, as futures. Its thread is `embedlib-ray`."""

    def __init__(self, start: Start, open_call: OpenCall, tell: Callable[[str], None]) -> None:
        """Make a pool without workers; `grow` starts them.

        Args:
            start: starts an actor.
            open_call: opens it.
            tell: takes a line for the user.
        """
        self._start = start
        self._open_call = open_call
        self._tell = tell
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._places: list[_Place] = []
        self._waiting: deque[_Task] = deque()
        self._suspects: deque[_Task] = deque()
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._broken: EmbedlibError | None = None
        self._is_closed = False
        self._purpose = 0
        self.num_retries = 0
        self._thread = threading.Thread(target=self._run, name="embedlib-ray", daemon=True)
        self._thread.start()

    def grow(self, first: Any, machine: str, shares: Sequence[int]) -> None:
        """Take an actor that is open already, and start the others.

        Args:
            first: the actor.
            machine: where it is.
            shares: of each actor, how many workers share it.
        """
        self._places = [_Place(number, share) for number, share in enumerate(shares)]
        begun = self._places[0]
        begun.handle, begun.machine, begun.is_ready, begun.has_worked = first, machine, True, True
        for place in self._places[1:]:
            self._inbox.put(partial(self._open, place))

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of any worker, which returns its result and its counts."""
        task = _Task(method, arguments, Future())
        self._put(lambda: self._add(task))
        return task.future

    def reopen(self) -> None:
        """Open all workers again, with what `open_call` does now; waits for the first one.

        Raises:
            EmbedlibError: none can be opened.
        """
        first: Future[None] = Future()
        self._put(lambda: self._reopen(first))
        first.result()

    def close_sinks(self) -> None:
        """Close the sink of every worker, and wait for all; those that are opened now are ended.

        Raises:
            EmbedlibError: one of them failed, or the connection has ended.
        """
        _check_connected()
        for place in self._places:
            if not (place.is_ready or place.is_lost):
                self._end(place)
        refs = [place.handle.close_sink.remote() for place in self._places if place.is_ready]
        for ref in refs:
            try:
                ray.get(ref)
            except RayActorError:
                pass  # what it wrote before is durable
            except Exception as error:
                raise cause_of(error) from None

    @property
    def num_ready(self) -> int:
        """Workers that take calls now."""
        return sum(place.num_workers for place in self._places if place.is_ready)

    def totals(self) -> tuple[int, int, int]:
        """Return the texts, tokens and truncated texts of all workers."""
        with self._lock:
            counts = list(self._counts.values())
        return (
            sum(each.num_texts for each in counts),
            sum(each.num_tokens for each in counts),
            sum(each.num_truncated for each in counts),
        )

    def close(self) -> None:
        """End the workers, and fail what waits."""
        with self._lock:
            self._is_closed = True
            self._inbox.put(None)
        self._thread.join(_CLOSE_SECONDS)
        for place in self._places:
            self._end(place)

    def _end(self, place: _Place) -> None:
        place.is_ready, place.is_lost = False, True
        if place.handle is not None and ray.is_initialized():  # else Ray would start a cluster
            with suppress(ActorHandleNotFoundError):  # of a connection before this one
                ray.kill(place.handle, no_restart=True)
        place.handle = None

    def _put(self, step: Callable[[], None]) -> None:
        """Let the thread take a step; none comes behind its last one, where it would be lost."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the workers were closed; open others with RayEmbedder(...)")
            _check_connected()
            self._inbox.put(step)

    # What follows runs on the thread of the pool.

    def _run(self) -> None:
        while (step := self._next_step()) is not None:
            try:
                step()
                self._assign()
            except EmbedlibError as error:
                self._break(error)
            except Exception as error:  # a bug, or the end of the cluster: nothing may wait forever
                self._break(EmbedlibError(f"the Ray cluster does not work: {first_line(error)}"))
        self._break(ClosedError("the workers were closed"))

    def _next_step(self) -> Callable[[], None] | None:
        """Return what to do next; None: the pool was closed."""
        try:
            return self._inbox.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return _check_connected

    def _add(self, task: _Task) -> None:
        if self._broken is not None:
            task.future.set_exception(self._broken)
        else:
            self._waiting.append(task)

    def _assign(self) -> None:
        ready = [place for place in self._places if place.is_ready]
        # A suspect has a worker for itself, which gets nothing else before.
        alone = self._for_suspect(ready)
        if alone is not None and not alone.tasks:
            self._call(alone, self._suspects.popleft())
        for _ in range(CALLS * max((place.num_workers for place in ready), default=0)):
            for place in sorted(ready, key=lambda place: len(place.tasks) / place.num_workers):
                has_suspect = any(task.failed_at for task in place.tasks)
                is_full = len(place.tasks) >= CALLS * place.num_workers
                if place is alone or has_suspect or is_full:
                    continue
                while self._waiting:
                    task = self._waiting.popleft()
                    if not task.future.cancelled():
                        self._call(place, task)
                        break

    def _for_suspect(self, ready: Sequence[_Place]) -> _Place | None:
        """Return who takes the next suspect: one that has not failed with it, if there is any."""
        while self._suspects and self._suspects[0].future.done():
            self._suspects.popleft()  # of a load that has failed: the next one may write elsewhere
        if not self._suspects or not ready:
            return None
        failed_at = self._suspects[0].failed_at
        return min(ready, key=lambda place: place.number in failed_at)

    def _call(self, place: _Place, task: _Task) -> None:
        place.tasks.append(task)
        _check_connected()
        reference = getattr(place.handle, task.method).remote(*task.arguments)
        self._when_done(reference, lambda done: self._finish(place, task, done))

    def _when_done(self, reference: Any, then: Callable[[Future[Any]], None]) -> None:
        reference.future().add_done_callback(lambda done: self._inbox.put(lambda: then(done)))

    def _finish(self, place: _Place, task: _Task, done: Future[Any]) -> None:
        with suppress(ValueError):  # the pool may have broken meanwhile
            place.tasks.remove(task)
        error = done.exception()
        if error is None:
            result, counts = done.result()
            with self._lock:
                self._counts[counts.worker] = counts
            with suppress(InvalidStateError):  # cancelled, or the same
                task.future.set_result(result)
            return
        self._try_again(place, task, error)
        if is_ray_itself(error):
            self._open(place)

    def _try_again(self, place: _Place, task: _Task, error: BaseException) -> None:
        cause = cause_of(error)
        task.failed_at.append(place.number)
        is_final = task.method == "embed" and isinstance(cause, _FINAL)
        if len(task.failed_at) < ATTEMPTS and not is_final and self._broken is None:
            self.num_retries += 1
            self._suspects.append(task)
        else:
            with suppress(InvalidStateError):
                task.future.set_exception(cause)

    def _open(self, place: _Place, then: Future[None] | None = None) -> None:
        """Open the actor of a place; start it first, if it has none and a machine is free."""
        place.then = then or place.then
        place.is_ready = False
        if place.is_opening or place.is_lost:
            return
        _check_connected()
        if place.handle is None:
            started = self._start({each.machine for each in self._places if each.handle})
            if started is None:
                self._open_later(place)
                return
            place.handle, place.machine = started
        self._when_done(
            self._open_call(place.handle, place.number),
            lambda done: self._opened(place, done),
        )
        place.is_opening, place.opened_for = True, self._purpose

    def _open_later(self, place: _Place) -> None:
        if place.is_waiting:
            return

        def again() -> None:
            place.is_waiting = False
            if not place.is_ready:  # a new load may have opened it meanwhile
                self._open(place)

        place.is_waiting = True
        timer = threading.Timer(_RETRY_SECONDS, lambda: self._inbox.put(again))
        timer.daemon = True
        timer.start()

    def _opened(self, place: _Place, done: Future[Any]) -> None:
        place.is_opening = False
        if place.is_lost:  # ended meanwhile
            return
        then, error = place.then, done.exception()
        if place.opened_for != self._purpose:
            self._open(place)
            return
        if error is None:
            place.is_ready = place.has_worked = True
            place.num_failures, place.then = 0, None
            if then is not None and not then.done():
                then.set_result(None)
            return
        is_dead = is_ray_itself(error) and not isinstance(error, ActorUnavailableError)
        if is_dead:
            place.handle = None
        if isinstance(error, ActorUnavailableError | ActorUnschedulableError):
            self._open_later(place)  # its machine does not answer, or has gone
            return
        if not (is_dead and place.has_worked):
            place.num_failures += 1
        place.has_worked = place.has_worked and not is_dead
        if place.num_failures < ATTEMPTS and (is_dead or then is None):
            self._open(place)
            return
        cause = cause_of(error)
        place.is_lost = True
        self._tell(f"a worker is lost: {cause}")
        if all(each.is_lost or each.handle is None for each in self._places):
            self._break(cause)

    def _reopen(self, first: Future[None]) -> None:
        self._purpose += 1
        self._broken = None
        for place in self._places:
            place.is_lost, place.num_failures = False, 0
            self._open(place, first)

    def _break(self, error: EmbedlibError) -> None:
        self._broken = self._broken or error
        in_work = [task for place in self._places for task in place.tasks]
        futures = [task.future for task in (*self._waiting, *self._suspects, *in_work)]
        futures += [place.then for place in self._places if place.then is not None]
        for future in futures:
            with suppress(InvalidStateError):  # it is done, or cancelled at this moment
                future.set_exception(self._broken)
        for tasks in (self._waiting, self._suspects, *(place.tasks for place in self._places)):
            tasks.clear()


def _check_connected() -> None:
    """Refuse to ask Ray, which would start a cluster of its own if there is no connection.

    Raises:
        ConfigError: there is none.
    """
    if not ray.is_initialized():
        raise ConfigError(_ENDED)
