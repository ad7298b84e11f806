"""The NVIDIA GPUs of this machine, and what they can compute; uses no GPU library."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from embedlib.errors import EngineUnavailableError

QUERY: Final = "uuid,name,memory.total,memory.free,driver_version,compute_cap"
TIMEOUT_S: Final = 20
LISTED_GPU: Final = re.compile(r"GPU \d+:.*\(UUID: (GPU-[^)]+)\)")
LISTED_MIG: Final = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
"""Lines of `nvidia-smi -L`: a GPU, and below it the MIG devices that it is divided into."""
MIB: Final = 1 << 20

MIN_CAPABILITY: Final = (8, 0)
"""Compute capability from which the matrix units compute in bfloat16: Ampere."""
MIN_FP8_CAPABILITY: Final = (8, 9)
"""Compute capability from which the matrix units compute in FP8: Ada."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver describes it."""

    name: str
    total_bytes: int | None
    """None if the driver does not report it."""
    free_bytes: int | None
    driver: str
    compute_capability: tuple[int, int]
    uuid: str = ""
    """Empty for a MIG device, the only one of its process."""

    @property
    def has_fp8(self) -> bool:
        """Whether its matrix units compute in FP8."""
        return self.compute_capability >= MIN_FP8_CAPABILITY


def list_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use; `cuda:N` is the N-th of them.

    They are in bus order, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID; between GPUs of
    one model the order makes no difference.

    Raises:
        EngineUnavailableError: there is no driver, or it does not respond; the message is only the
            reason, which follows an engine's name.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise EngineUnavailableError("no NVIDIA GPU was found (there is no nvidia-smi)")
    answer = _ask(tool, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in row.split(",")] for row in answer.stdout.splitlines()]
    by_uuid = {row[0]: _gpu(row) for row in rows if len(row) == QUERY.count(",") + 1}
    if answer.returncode and not by_uuid:  # it also warns by its status, below a good list
        raise EngineUnavailableError(_failure(answer))
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(by_uuid.values())
    parents = _mig_parents(tool) if "MIG-" in setting else {}
    return _visible(setting, by_uuid, parents)


def _ask(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run nvidia-smi.

    Raises:
        EngineUnavailableError: it cannot be run, or does not respond.
    """
    try:
        return subprocess.run(
            [tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailableError(
            f"the GPUs are unknown: nvidia-smi failed ({type(error).__name__}); run it to see why"
        ) from error


def _failure(answer: subprocess.CompletedProcess[str]) -> str:
    """Return in one line why nvidia-smi listed no GPU."""
    lines = [line.strip() for line in f"{answer.stdout}\n{answer.stderr}".splitlines()]
    told = [line for line in lines if line]
    if any("is not a valid field" in line for line in told):
        return f"the GPUs are unknown: the driver is too old ({told[0]}); upgrade it"
    last = told[-1] if told else "without a word"
    return f"the GPUs are unknown: nvidia-smi ended with {answer.returncode}: {last}"


def check_wanted(gpus: Sequence[Gpu], wanted: Sequence[str]) -> None:
    """Check that the devices of the options exist.

    Raises:
        EngineUnavailableError: there is no GPU, or a device is not one of them.
    """
    if not gpus:
        raise EngineUnavailableError(
            "no NVIDIA GPU was found (nvidia-smi and CUDA_VISIBLE_DEVICES leave none)"
        )
    for name in wanted:
        if name == "cpu":
            raise EngineUnavailableError("it computes on NVIDIA GPUs, not on cpu")
        if name != "all" and gpu_index(name) >= len(gpus):
            raise EngineUnavailableError(
                f"there is no {name}; this process sees {len(gpus)} GPUs, from cuda:0 on"
            )


def check_capability(gpu: Gpu) -> None:
    """Check that a GPU computes in bfloat16.

    Raises:
        EngineUnavailableError: it is too old.
    """
    if gpu.compute_capability < MIN_CAPABILITY:
        raise EngineUnavailableError(
            f"{gpu.name} is too old: compute capability "
            f"{version_text(gpu.compute_capability)}, at least {version_text(MIN_CAPABILITY)} is "
            "needed"
        )


def check_fp8(device: str, gpu: Gpu) -> None:
    """Check that a GPU computes in FP8.

    Raises:
        EngineUnavailableError: it does not.
    """
    if not gpu.has_fp8:
        raise EngineUnavailableError(
            f"{device}: {gpu.name} has no FP8 (compute capability "
            f"{version_text(gpu.compute_capability)}, FP8 needs "
            f"{version_text(MIN_FP8_CAPABILITY)}); precision = 'bf16' runs on it"
        )


def precisions_text(gpus: Sequence[Gpu]) -> str:
    """Return in words what GPUs that work together compute in."""
    return "FP8 or bfloat16" if all(gpu.has_fp8 for gpu in gpus) else "bfloat16"


def gpu_index(device: str) -> int:
    """Return N of `cuda:N`; `cuda` is the first."""
    return int(device.partition(":")[2] or 0)


def version_text(version: tuple[int, int]) -> str:
    """Return a compute capability, or the first two numbers of a version, as text: 9.0."""
    return f"{version[0]}.{version[1]}"


def _gpu(row: list[str]) -> Gpu:
    uuid, name, total, free, driver, capability = row
    major, _, minor = capability.partition(".")
    return Gpu(
        name=name,
        total_bytes=int(total) * MIB if total.isdigit() else None,
        free_bytes=int(free) * MIB if free.isdigit() else None,
        driver=driver,
        compute_capability=(int(major), int(minor)) if major.isdigit() else (0, 0),
        uuid=uuid,
    )


def _visible(setting: str, by_uuid: Mapping[str, Gpu], parents: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    Source: CUDA C++ Programming Guide, environment variables: entries are indices or prefixes of
    UUIDs; CUDA ignores every entry from the first invalid one on.

    Args:
        setting: the variable's value.
        by_uuid: all GPUs of the machine.
        parents: the UUID of the GPU by that of a MIG device.
    """
    visible: list[Gpu] = []
    for entry in map(str.strip, setting.split(",")):
        if entry.startswith("MIG-"):
            names = [gpu for mig, gpu in parents.items() if mig.startswith(entry)]
            found = [_mig(by_uuid[gpu]) for gpu in names if gpu in by_uuid]
            if not found:
                logging.getLogger(__name__).warning(
                    "CUDA_VISIBLE_DEVICES names %s, which `nvidia-smi -L` does not list; it is not "
                    "used",
                    entry,
                )
        elif entry.isdigit():
            found = list(by_uuid.values())[int(entry) : int(entry) + 1]
        else:
            found = [gpu for uuid, gpu in by_uuid.items() if entry and uuid.startswith(entry)]
        if not found:
            break
        visible.append(found[0])
    return visible


def _mig(parent: Gpu) -> Gpu:
    """Return a MIG device: it computes as its GPU does, and has an unknown part of its memory."""
    return replace(parent, total_bytes=None, free_bytes=None, uuid="")


def _mig_parents(tool: str) -> dict[str, str]:
    """Return the UUID of the GPU by that of each MIG device; empty if nvidia-smi tells none."""
    try:
        lines = _ask(tool, "-L").stdout.splitlines()
    except EngineUnavailableError:
        return {}
    parents, gpu = {}, ""
    for line in lines:
        if found := LISTED_GPU.match(line):
            gpu = found[1]
        elif found := LISTED_MIG.match(line):
            parents[found[1]] = gpu
    return parents
