"""How many workers a cluster gets, and what each reserves of its machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from embedlib.errors import ConfigError, shown

MEMORY_MARGIN = 1.25
"""What a worker reserves, as a multiple of what it took to load: batches come on top."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a node of the cluster offers to Ray."""

    address: str
    num_cpus: float
    num_gpus: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The workers of a load.

    Attributes:
        num_workers: how many in all.
        num_cpus: what Ray sets aside for each.
        num_gpus: the same of GPUs.
        num_per_machine: how many share the cores of a machine.
        room_bytes: memory that Ray has for each.
    """

    num_workers: int
    num_cpus: float
    num_gpus: int
    num_per_machine: int
    room_bytes: int

    def memory_for(self, taken_bytes: int) -> int:
        """Return what a worker reserves, by what the first one took to load.

        Not more than there is: it would wait forever for a machine that the first one did not need.
        """
        return min(int(taken_bytes * MEMORY_MARGIN), self.room_bytes)


def plan_workers(machines: Sequence[Machine], num_workers: int | None, *, on_cpu: bool) -> Plan:
    """Return one worker for each GPU, or for each machine if there is none.

    A worker computes on all cores of its machine, but sets aside fewer than all: other tasks of the
    cluster, such as those that read a Ray dataset, would wait for them forever.

    Args:
        machines: those that are alive.
        num_workers: how many were asked for; None: as many as suit the machines.
        on_cpu: whether the model was asked to run on CPUs.

    Raises:
        ConfigError: the number is wrong, or no machine has a CPU for workers.
    """
    if num_workers is not None and (type(num_workers) is not int or num_workers < 1):
        raise ConfigError(
            f"ray_workers = {shown(num_workers)}; it must be a whole number of at least 1"
        )
    num_gpus = 0 if on_cpu else int(sum(machine.num_gpus for machine in machines))
    if num_gpus:
        num = num_workers or num_gpus
        with_gpu = [machine for machine in machines if machine.num_gpus]
        room = min(machine.memory_bytes / machine.num_gpus for machine in with_gpu)
        return Plan(
            num_workers=num, num_cpus=1, num_gpus=1, num_per_machine=1, room_bytes=int(room)
        )
    able = [machine for machine in machines if machine.num_cpus > 0]
    if not able:
        raise ConfigError(
            "no machine of the cluster offers a CPU to Ray; start one with ray start --num-cpus"
        )
    num = num_workers or len(able)
    per_machine = ceil(num / len(able))
    smallest = min(machine.num_cpus for machine in able)
    whole = int(smallest - 1) // per_machine
    num_cpus = float(whole) if whole else smallest / 2 / per_machine
    return Plan(
        num_workers=num,
        num_cpus=num_cpus,
        num_gpus=0,
        num_per_machine=per_machine,
        room_bytes=int(min(machine.memory_bytes for machine in able) / (per_machine + 1)),
    )


def threads_for(num_cores: int, num_per_machine: int) -> int | None:
    """Return the threads of one of several workers of a machine; None: it has all cores."""
    return None if num_per_machine == 1 else max(1, num_cores // num_per_machine)
