"""Prepares a model for this machine: which faster precision passes the fidelity gate here.

What can be measured within seconds is measured before the engine is made (`prepare_now`); what
takes longer goes on beside the work, for later loads (`start_later`). All run in another process,
`fidelity.preparing_process`: it can be ended at any moment, it takes no memory that the engine
needs later, and nothing that happens to it reaches this one. Whatever goes wrong costs speed, never
an answer; but where no precision can be loaded before it was measured (`prepare_needed`), it costs
the load.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from embedlib.config import Config
from embedlib.engines.kind import EnginePlan
from embedlib.engines.precision import known_versions, to_prepare
from embedlib.errors import EmbedlibError, EngineBuildError
from embedlib.models.compiled.report_cache import has_given_up, waited_place
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import ModelFiles
from embedlib.progress.phases import telling
from embedlib.session.ending import Close
from embedlib.session.estimates import (
    QUICK,
    QUICK_PAIRS,
    flop_per_second,
    measuring_seconds,
    quick_texts_for,
)
from embedlib.session.giving_way import GivingWay

MOST_SECONDS: Final = 1800.0
"""Longest estimate where no precision can be loaded without having been measured."""
LONGEST_SECONDS: Final = 2 * MOST_SECONDS
"""The wait itself: on a machine that computes more slowly than was estimated."""
END_SECONDS: Final = 2.0
"""Longest wait for a process that was killed."""

START: Final = (
    "import os, sys; hasattr(os, 'setpgid') and os.setpgid(0, 0); sys.path[:] = sys.argv[1:]; "
    "from embedlib.fidelity.preparing_process import main; main(sys.stdin, sys.stdout); os._exit(0)"
)
"""Runs the other process with the import path of this one. It ends without the interpreter's own
end, which would abort while a thread reads the input. A process group of its own keeps Ctrl-C at a
terminal from it: it ends by the end of its input. A session of its own would as well, but Linux
shares out cores among sessions first, so that there the lowest priority takes half of the machine.
Source: sched(7), the autogroup feature."""
SENT_OPTIONS: Final = (
    *("prompts", "default_prompt_name", "examples", "template", "max_seq_tokens"),
    *("threads", "cache_folder", "engine_cache_dir"),
)
"""Options that decide what is measured, or where it is stored."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the other process is to measure; JSON values."""

    model: str
    precisions: tuple[str, ...]
    """Best first; it stops at the first one that passes."""
    is_background: bool
    """Whether it may take long: it then also searches for layers to keep, at low priority."""
    options: dict[str, Any]
    """Fields of `Config`."""
    max_text_tokens: int = QUICK[0].max_tokens
    """Where documents are cut if a load waits."""
    is_needed: bool = False
    """Whether nothing can be loaded before: it may take all of the free memory then, and goes on
    where one that was ended has stopped."""


def prepare_now(opened: OpenedModel, files: ModelFiles, plan: EnginePlan) -> bool:
    """Measure what can be measured in seconds; return whether the plan may be another one now."""
    config, max_seconds = opened.config, opened.config.prepare_seconds
    left = _left(opened, files, plan, with_search=False) if max_seconds else ()
    # A coarser form of what the model runs in is a tenth faster: it is measured beside the work.
    planned, forms = plan.precision.name, plan.kind.coarser_forms
    precisions = tuple(name for name in left if forms.get(name) != planned)
    if not precisions:
        return False
    rate = flop_per_second(config.num_threads)
    texts = quick_texts_for(files.spec, len(precisions), rate, max_seconds)
    waited = waited_place(files, plan.engine, plan.hardware, config)
    if texts is None or _has_waited(waited, max_seconds):
        return False
    logger = logging.getLogger(__name__)
    with telling(f"Preparing {opened.name} for this machine, once"):
        logger.info("preparing %s for this machine, once: %s", opened.name, ", ".join(precisions))
        task = _task(opened, plan, precisions, is_background=False)
        process = _start(replace(task, max_text_tokens=texts.max_tokens))
        if process is None:
            return False
        try:
            process.wait(max_seconds)
            logger.info("prepared %s: %s", opened.name, _answer(process))
        except subprocess.TimeoutExpired:
            logger.info("preparing %s takes longer than %g s", opened.name, max_seconds)
            with suppress(OSError):
                waited.parent.mkdir(parents=True, exist_ok=True)
                waited.write_text(f"{max_seconds}\n", encoding="ascii")
        finally:
            _end(process, plan, config)
    return True


def _has_waited(place: Path, max_seconds: float) -> bool:
    """Return whether a load has waited in vain, for as long as this one may wait."""
    try:
        return float(place.read_text(encoding="ascii")) >= max_seconds
    except (OSError, ValueError):
        return False


def prepare_needed(opened: OpenedModel, files: ModelFiles, plan: EnginePlan) -> str:
    """Measure a precision for a load that can have no other; return what was found, in one line.

    Args:
        opened: the model.
        files: its files.
        plan: with the precision that needs no report, which does not fit into memory.

    Returns:
        Empty: nothing can be measured here.
    """
    left = _left(opened, files, plan, with_search=False)
    # A coarser form saves no memory: whether it passes too is measured beside the work.
    precisions = tuple(name for name in left if name not in plan.kind.coarser_forms)
    if not precisions:
        return ""
    texts = (QUICK if files.spec.head is None else QUICK_PAIRS)[-1]
    rate = flop_per_second(opened.config.num_threads)
    seconds = measuring_seconds(files.spec, len(precisions), rate, texts)
    if seconds > MOST_SECONDS:
        return ""
    minutes = math.ceil(seconds / 60)
    line = f"Preparing {opened.name} for this machine, once, about {minutes} min"
    logger = logging.getLogger(__name__)
    logger.warning("%s: %s must be measured before it is taken", line, " or ".join(precisions))
    with telling(line):
        task = _task(opened, plan, precisions, is_background=False)
        task = replace(task, max_text_tokens=texts.max_tokens, is_needed=True)
        process = _start(task)
        if process is None:
            return ""
        try:
            process.wait(LONGEST_SECONDS)
            found = _answer(process)
        except subprocess.TimeoutExpired:
            found = f"measuring takes longer than {LONGEST_SECONDS / 60:g} min"
        finally:
            _end(process, plan, opened.config)
    logger.info("prepared %s: %s", opened.name, found)
    return found


def start_later(opened: OpenedModel, files: ModelFiles, plan: EnginePlan) -> Close | None:
    """Start to measure beside the work what a plan leaves open; return what ends it."""
    precisions = _left(opened, files, plan, with_search=True)
    process = precisions and _start(_task(opened, plan, precisions, is_background=True))
    if not process:
        return None
    logger = logging.getLogger(__name__)
    try:
        giving_way = GivingWay(process, opened.config.num_threads)
    except BaseException as error:
        _end(process, plan, opened.config)
        if not isinstance(error, EngineBuildError):
            raise
        logger.info("no faster precision is measured: %s", error)  # no more threads
        return None
    logger.info(
        "%s is measured in %s at low priority, for later loads", opened.name, ", ".join(precisions)
    )

    def close(timeout: float | None) -> None:
        giving_way.close()
        _end(process, plan, opened.config)

    return close


def _left(
    opened: OpenedModel, files: ModelFiles, plan: EnginePlan, *, with_search: bool
) -> tuple[str, ...]:
    """Return the precisions that can be measured here and were not.

    Args:
        opened: the model.
        files: its files.
        plan: made with the precision "auto".
        with_search: also those that failed, if nobody has searched layers to keep.
    """
    config, kind, hardware = opened.config, plan.kind, plan.hardware

    def is_given_up(precision: str) -> bool:
        return has_given_up(files, precision, kind.name, hardware, config)

    is_asked = config.prepare and config.precision == "auto" and opened.manifest is None
    if not is_asked or not _better(plan):
        return ()
    if not (_can_start_python() and _can_write(config.engine_cache_path)):
        return ()
    try:
        versions = known_versions(kind, hardware, files, config)
        return to_prepare(plan, files, versions, is_given_up, with_search=with_search)
    except (EmbedlibError, OSError) as error:  # the model's files changed under our feet
        logging.getLogger(__name__).info("no faster precision is measured: %s", error)
        return ()


def _better(plan: EnginePlan) -> list[str]:
    """Return the precisions that `auto` would prefer to the planned one and may measure."""
    place = plan.tried.index(plan.precision.name) if plan.precision.name in plan.tried else 0
    return [name for name in plan.tried[:place] if name in plan.kind.faster_with]


def _can_start_python() -> bool:
    """Whether `sys.executable` is an interpreter, and not a program with one inside."""
    return not getattr(sys, "frozen", False) and "py" in Path(sys.executable or "").name.lower()


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return True
    except OSError as error:
        logging.getLogger(__name__).info(
            "no faster precision is measured: %s cannot be written: %s", folder, error.strerror
        )
        return False


def _task(
    opened: OpenedModel, plan: EnginePlan, precisions: Sequence[str], *, is_background: bool
) -> Task:
    config = replace(opened.config, token=None)
    options = {name: _plain(getattr(config, name)) for name in SENT_OPTIONS}
    is_on_hub = opened.revision is not None and opened.folder.is_dir()  # no pack
    return Task(
        model=opened.name if is_on_hub else str(opened.folder.resolve()),
        precisions=tuple(precisions),
        is_background=is_background,
        options={
            **options,
            "revision": opened.revision if is_on_hub else None,
            "local_files_only": True,
            "engine": plan.engine,
            "engine_cache_dir": str(config.engine_cache_path.resolve()),
        },
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.resolve())
    if isinstance(value, (list, tuple)):
        return [dict(item) for item in value]
    return dict(value) if hasattr(value, "items") else value


def _start(task: Task) -> subprocess.Popen[str] | None:
    """Start the other process; it ends by itself when this one does."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", START, *(path for path in sys.path if isinstance(path, str))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError as error:  # no memory, no more processes
        logging.getLogger(__name__).info("no faster precision is measured: %s", error.strerror)
        return None
    assert process.stdin is not None, "it is a pipe"
    with suppress(OSError):  # it has ended already
        process.stdin.write(json.dumps(asdict(task)) + "\n")
        process.stdin.flush()
    return process


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None, "it is a pipe"
    answer = process.stdout.read().strip()
    status = process.returncode or 0
    how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
    return answer or f"the process that measures {how}"


def _end(process: subprocess.Popen[str], plan: EnginePlan, config: Config) -> None:
    """End a process at once, and free what belongs to it."""
    is_running = process.poll() is None
    if is_running:  # before, too: another process may wait for what this one holds
        _forget(process, plan, config)
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    if is_running:
        _forget(process, plan, config)


def _forget(process: subprocess.Popen[str], plan: EnginePlan, config: Config) -> None:
    if plan.kind.forget_process is not None:
        with suppress(OSError):  # the process must end in any case
            plan.kind.forget_process(process.pid, config)
