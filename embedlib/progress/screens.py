"""Where progress is shown: as a bar on a terminal, as a line now and then in a log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

LOG_SECONDS = 10.0
"""Time between two lines in a log; work that takes less prints none."""

_NOTEBOOK_COLUMNS = 100


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How far the work has come."""

    done: int = 0
    total: int | None = None
    """None: unknown."""
    note: str = ""
    """What else to tell, such as "3 rows unchanged"."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a screen shows of a phase."""

    activity: str
    unit: str
    """Plural of what is counted, such as "texts"; "B": bytes; "": nothing is counted."""
    reading: Reading
    seconds: float
    """Since the phase began."""
    rate: float
    """Units per second."""

    def as_bar(self, columns: int) -> str:
        """Return the line for a terminal, at most this many characters."""
        from tqdm import tqdm

        if not self.unit:
            return f"{self.activity} [{tqdm.format_interval(self.seconds)}]"[:columns]
        line: str = tqdm.format_meter(
            self.reading.done,
            self.reading.total,  # type: ignore[arg-type]  # the stubs lack None: unknown
            self.seconds,
            ncols=columns,
            prefix=self.activity,
            unit=self.unit if self.unit == "B" else f" {self.unit}",
            unit_scale=self.unit == "B",
            rate=self.rate or None,
            postfix=self.reading.note or None,
        )
        return line.replace("s/ ", "s/")[:columns]  # of slow work: 2.56s/docs

    def as_line(self) -> str:
        """Return the line for a log."""
        parts = [f"{self.activity}: {self._amount()}{duration(self.seconds)}"]
        if self.unit and self.reading.done:
            parts.append(f"{self._number(self.rate, 1)}/s")
        if self.reading.total is not None and self.rate and self.reading.done < self.reading.total:
            parts.append(f"{duration((self.reading.total - self.reading.done) / self.rate)} left")
        if self.reading.note:
            parts.append(self.reading.note)
        return ", ".join(parts)

    def _amount(self) -> str:
        if not self.unit or (self.reading.done == 0 and self.reading.total is None):
            return ""
        done, total = self.reading.done, self.reading.total
        of = "" if total is None else f"{self._number(done, is_bare=True)} of "
        return f"{of}{self._number(done if total is None else total)} in "

    def _number(self, value: float, digits: int = 0, *, is_bare: bool = False) -> str:
        if self.unit == "B":
            return f"{value / 1e6:,.1f} MB"
        return f"{value:,.{digits}f}" + ("" if is_bare else f" {self.unit}")


class Screen(Protocol):
    """Where progress is shown."""

    def show(self, look: Look) -> None:
        """Show how far a phase is."""

    def end(self, look: Look) -> None:
        """Show a phase for the last time."""

    def say(self, line: str) -> None:
        """Print a line that stays."""


class Bar:
    """A terminal: one line that is drawn again and again, below the lines that stay."""

    def __init__(self, stream: TextIO, columns: int, delay: float = 0.0) -> None:
        """Draw on a terminal of so many columns, and phases only after `delay` seconds."""
        self._stream = stream
        self._columns = columns - 1  # in the last column some terminals begin a new line
        self._delay = delay
        self._drawn = ""

    def show(self, look: Look) -> None:
        """Draw the line."""
        if look.seconds >= self._delay:
            self._draw(look.as_bar(self._columns))

    def end(self, look: Look) -> None:
        """Leave what was counted; remove a mere clock."""
        if look.unit and (self._drawn or look.seconds >= self._delay):
            self._draw(look.as_bar(self._columns) + "\n")
        else:
            self._draw("")
        self._drawn = ""

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        drawn = self._drawn
        self._draw(f"{line}\n")
        self._drawn = ""
        self._draw(drawn)

    def _draw(self, line: str) -> None:
        if line or self._drawn:
            padding = " " * max(0, len(self._drawn) - len(line.rstrip("\n")))
            text = line.rstrip("\n") + padding
            ending = "\n" if line.endswith("\n") else ""
            self._stream.write(f"\r{text}{ending}" if self._drawn else f"{text}{ending}")
            self._stream.flush()
        self._drawn = line


class Log:
    """A log: a line every ten seconds, unless it would be the one before."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        """Print to a stream; the first line comes ten seconds from now."""
        self._stream = stream
        self._clock = clock
        self._said_at = clock()
        self._said = ""

    def show(self, look: Look) -> None:
        """Print a line if the last one was long ago and told less."""
        if self._clock() - self._said_at >= LOG_SECONDS and (line := look.as_line()) != self._said:
            self.say(line)

    def end(self, look: Look) -> None:
        """Print nothing: what comes next says that it is over."""

    def say(self, line: str) -> None:
        """Print a line; the next one about progress comes ten seconds later."""
        self._said_at = self._clock()
        self._said = line
        self._stream.write(f"{line}\n")
        self._stream.flush()


def open_screen(stream: TextIO | None, delay: float = 0.0) -> Screen | None:
    """Return the screen for a stream; None: the stream is closed.

    Args:
        stream: usually standard error.
        delay: a bar appears only after so many seconds of a phase.
    """
    if stream is None:
        return None
    columns = terminal_columns(stream)
    return Bar(stream, columns, delay) if columns else Log(stream, time.monotonic)


def terminal_columns(stream: TextIO | None) -> int:
    """Return the width of a terminal, or of the output of a notebook; 0: it is neither.

    Programs that record a session, such as `script` under cron, open terminals of 0 columns, on
    which no bar can be drawn.
    """
    # A notebook's stream is no terminal, but draws a line again after a carriage return.
    if type(stream).__module__.startswith("ipykernel."):
        return _NOTEBOOK_COLUMNS
    try:
        if stream is None or not stream.isatty():
            return 0
        return os.get_terminal_size(stream.fileno()).columns
    # A stand-in for a terminal, without a file descriptor; closed; a logger's, with `write` alone.
    except (OSError, ValueError, AttributeError):
        return 0


def duration(seconds: float) -> str:
    """Return a time in words: seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
