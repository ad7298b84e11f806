"""The order of events of a run on a GPU."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Final

from embedlib.engines.gpus import check_wanted, list_gpus
from embedlib.errors import EngineUnavailableError
from embedlib.measuring.process import ContestantFailedError
from embedlib.packages.installing import install_line
from tests.acceptance.gpu import blocks
from tests.acceptance.gpu.budget import SECONDS, Budget
from tests.acceptance.gpu.children import GpuChild, StartProcess
from tests.acceptance.gpu.gate_block import gate
from tests.acceptance.gpu.journal import Journal, Line
from tests.acceptance.gpu.models import SHAPES
from tests.acceptance.gpu.options import Device, GpuOptions
from tests.acceptance.gpu.peers_block import peers
from tests.acceptance.gpu.session import GpuSession
from tests.acceptance.gpu.variants_block import variants
from tests.acceptance.gpu.verdicts import QUESTIONS

Block = Callable[[GpuSession, str], None]

STEPS: Final[Mapping[str, Block]] = MappingProxyType(
    {
        "ceilings": blocks.ceilings,
        "gate": gate,
        "bulk": blocks.bulk,
        "query": blocks.query,
        "mixed": blocks.mixed,
        "clients": blocks.clients,
        "variants": variants,
        "peers": peers,
        "start": blocks.starts,
    }
)
OF_ONE_MODEL: Final = ("bulk", "query", "mixed", "clients", "variants")
"""Measured one after the other with the model in memory."""
UNGATED: Final = ("ceilings", "gate")
PACKAGES: Final[Mapping[Device, tuple[str, ...]]] = MappingProxyType(
    {"cuda": ("torch", "triton"), "cpu": ("torch",)}
)
"""What every process imports."""


def run_gpu_bench(
    options: GpuOptions,
    write: Callable[[str], None],
    *,
    circumstances: Mapping[str, Any],
    report: Callable[[str], None] = lambda _: None,
    start: StartProcess = GpuChild,
    clock: Callable[[], float] = time.monotonic,
) -> list[Line]:
    """Run what the options say, and return all lines, which have been written by then.

    Args:
        options: what to run.
        write: writes a line of JSON and flushes it.
        circumstances: facts to keep with the result.
        report: called with progress, one line at a time.
        start: starts the process of a contestant.
        clock: returns the time in seconds.

    Raises:
        EngineUnavailableError: there is no GPU, or a package is missing.
    """
    gpu = ""
    if options.device == "cuda":
        gpus = list_gpus()
        check_wanted(gpus, ())
        gpu = gpus[0].uuid
    _check_packages(options.device)
    journal = Journal(write, clock)
    journal.add("begin", **circumstances)
    plan = plan_of(options)
    wishes_s = [SECONDS[block] * SHAPES[model].share for block, model in plan]
    budget = Budget(options.minutes * 60, wishes_s, clock)
    with ExitStack() as stack:
        session = GpuSession(options, journal, budget, stack, start, gpu)
        former = ""
        for block, model in plan:
            if model != former:
                session.children.end_all()
                former = model
            budget.begin_block()
            report(f"{block}, {model}: {max(0.0, budget.left_s):.0f} s")
            _run_block(session, block, model)
    for question in QUESTIONS:
        tells_speed = options.device == "cuda"
        journal.add("verdict", **question.answer(journal.lines, tells_speed=tells_speed))
    return journal.lines


def _check_packages(device: Device) -> None:
    """Check for the packages that every process needs, before any is started.

    Raises:
        EngineUnavailableError: a package is missing.
    """
    for package in PACKAGES[device]:
        if importlib.util.find_spec(package) is None:
            raise EngineUnavailableError(
                f"the package {package} is missing; {install_line('cuda')}"
            )


def plan_of(options: GpuOptions) -> list[tuple[str, str]]:
    """Return (block, model) in order: the most important first."""
    models, wanted = options.models, options.blocks
    plan = [("ceilings", model) for model in models if "ceilings" in wanted]
    if set(wanted) - set(UNGATED):
        plan += [("gate", model) for model in models]
    for model in models:
        plan += [(block, model) for block in OF_ONE_MODEL if block in wanted]
    plan += [("peers", model) for model in models if "peers" in wanted]
    if "start" in wanted:  # writing and compiling takes long, and the first is the largest
        plan.append(("start", models[0]))
    return plan


def _run_block(session: GpuSession, block: str, model: str) -> None:
    """Run a block and record its failure, so that the next block runs."""
    if session.budget.left_s <= 0:
        session.journal.add(block, model=model, skipped="the time of the run is over")
    elif block not in UNGATED and not session.passed.get(model):
        session.journal.add(block, model=model, skipped="the gate failed: no speed is measured")
    else:
        try:
            STEPS[block](session, model)
        except ContestantFailedError as error:
            session.journal.add(block, model=model, failed=str(error))
        except Exception as error:  # not foreseen; the next blocks run all the same
            failed = f"{type(error).__name__}: {error}"
            session.journal.add(block, model=model, failed=failed)
