"""Compiles a model in processes that are killed at an instant which is counted, not timed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from embedlib.config import Config
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files
from tests.waiting import WAIT_SECONDS


def compile_until(folder: Path, cache: Path, last_event: int | None = None) -> int:
    """Compile to fp8 in a process that is killed at this event; return how many events it had.

    An event is a call or a return in the package, on any thread, from the first write on.
    """
    # Forked from a process that has imported what it takes: that takes longer than it.
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([__name__])
    num_events = forking.Value("i", 0)
    process = forking.Process(target=_compile, args=(folder, cache, last_event, num_events))
    process.start()
    process.join(WAIT_SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL)
    return num_events.value


def _compile(folder: Path, cache: Path, last_event: int | None, num_events: Any) -> None:
    events, has_begun = itertools.count(), threading.Event()

    def note(frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_name == "_write_files":
            has_begun.set()
        if has_begun.is_set() and "embedlib" in frame.f_globals["__name__"]:
            num_events.value = next(events)
            if num_events.value == last_event:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(note)
    sys.setprofile(note)
    compile_model(read_model_files(folder), "fp8", (), Config(engine_cache_dir=cache))
    sys.setprofile(None)
