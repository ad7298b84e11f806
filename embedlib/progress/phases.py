"""Shows how far some work has come, on a screen (`screens`).

The work reports nothing. A thread looks at it twice a second, so that a clock ticks also while
nothing is finished.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from embedlib.errors import visible_line
from embedlib.progress.screens import Look, Reading, Screen, open_screen, terminal_columns

TICK_SECONDS = 0.5
"""Time between two looks at the work: every second of a bar's clock is shown."""

RATE_SECONDS = 30.0
"""The rate is measured over this time, since rows that need no work come first and go fast."""

Watch = Callable[[str, str, Callable[[], Reading]], None]
"""Called when a phase begins, with the arguments of `Progress.watch`."""


def ignore_progress(activity: str, unit: str, read: Callable[[], Reading]) -> None:
    """Show nothing; a `Watch`."""


SHOWN: ContextVar[Progress | None] = ContextVar("SHOWN", default=None)
"""The progress of the running command: what is shown beside it is shown on its screen."""


class Progress:
    """Shows the phases of some work, one after the other; a context manager.

    Any thread may call `say`.
    """

    def __init__(self, screen: Screen | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Show on this screen; None: show nothing.

        Args:
            screen: where to show it.
            clock: returns seconds.
        """
        self._screen = screen
        self._clock = clock
        self._phase: _Phase | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, activity: str, unit: str = "", read: Callable[[], Reading] = Reading) -> None:
        """End the phase before and show this one from now on.

        Args:
            activity: what goes on, such as "Encoding".
            unit: plural of what is counted; "B": bytes; "": only the clock is shown.
            read: returns how far it has come; called on another thread.
        """
        with self._lock:
            self._end_phase()
            self._phase = _Phase(activity, unit, read, self._clock())

    def watch_counts(self, activity: str, unit: str) -> Callable[[int, int], None]:
        """Show a phase that tells how far it has come.

        Returns:
            The function to call with how much is done, and of how much.
        """
        reading = Reading()

        def report(num_done: int, num_all: int) -> None:
            nonlocal reading
            reading = Reading(done=min(num_done, num_all), total=num_all)

        self.watch(activity, unit, lambda: reading)
        return report

    def pause(self) -> None:
        """End the phase before; show nothing until the next one."""
        with self._lock:
            self._end_phase()

    def say(self, line: str) -> None:
        """Print a line that stays, if there is a screen."""
        with self._lock, self._unless_closed():
            if self._screen is not None:
                self._screen.say(visible_line(line))

    def tick(self) -> None:
        """Look at the work and show it."""
        with self._lock, self._unless_closed():
            if self._screen is not None and self._phase is not None:
                self._screen.show(self._phase.look(self._clock()))

    def __enter__(self) -> Progress:
        """Start to look at the work."""
        if self._screen is not None:
            # A daemon: a terminal that takes no output must not keep a program from ending.
            thread = threading.Thread(target=self._run, name="embedlib-progress", daemon=True)
            with suppress(RuntimeError):  # no more threads: only the ends of phases are shown
                thread.start()
                self._thread = thread
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Show the last phase for the last time."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._end_phase()

    def _run(self) -> None:
        while not self._is_over.wait(TICK_SECONDS):
            self.tick()

    def _end_phase(self) -> None:
        phase, self._phase = self._phase, None
        with self._unless_closed():
            if self._screen is not None and phase is not None:
                self._screen.end(phase.look(self._clock()))

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Show nothing any more after an error: work must not fail because nobody can watch it."""
        try:
            yield
        # The terminal is gone or the log's disk full; closed; a logger's stream has `write` alone.
        except (OSError, ValueError, AttributeError):
            self._screen = None


def shown_progress() -> Progress:
    """Return the progress of the running command; elsewhere one that shows nothing."""
    return SHOWN.get() or Progress(None)


class _Phase:
    """Some work, and how fast it has been lately."""

    def __init__(
        self, activity: str, unit: str, read: Callable[[], Reading], started: float
    ) -> None:
        self._activity = activity
        self._unit = unit
        self._read = read
        self._started = started
        self._marks = deque([(started, 0)])

    def look(self, now: float) -> Look:
        """Return what to show now."""
        reading = self._read()
        while len(self._marks) > 1 and self._marks[1][0] <= now - RATE_SECONDS:
            self._marks.popleft()
        since, before = self._marks[0]
        self._marks.append((now, reading.done))
        return Look(
            activity=self._activity,
            unit=self._unit,
            reading=reading,
            seconds=now - self._started,
            rate=max(0.0, (reading.done - before) / (now - since)) if now > since else 0.0,
        )


@contextmanager
def telling(line: str, unit: str = "", read: Callable[[], Reading] = Reading) -> Iterator[None]:
    """Show what goes on while a model loads, on the screen of the running command or a terminal.

    Args:
        line: what goes on.
        unit: as for `Progress.watch`.
        read: as for `Progress.watch`.
    """
    shown = SHOWN.get()
    if shown is not None:
        shown.watch(line, unit, read)
        try:
            yield
        finally:
            shown.watch("Loading")
    elif terminal_columns(sys.stderr):
        with Progress(open_screen(sys.stderr)) as progress:
            progress.watch(line, unit, read)
            yield
    else:
        yield
