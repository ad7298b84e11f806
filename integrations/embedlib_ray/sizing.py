"""How many workers a cluster gets, and what each reserves of its machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedlib.checks import COUNT, optional
from embedlib.errors import ConfigError

MEMORY_MARGIN = 1.25
"""What a process reserves, as a multiple of what it took to load: batches come on top."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a node of the cluster offers to Ray."""

    node: str
    """Ray's id of it."""
    address: str
    num_cpus: float
    num_gpus: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The workers of a load.

    Attributes:
        shares: of each process with a model, one on a machine or a GPU, how many workers share it.
        num_cpus: what Ray sets aside for each process.
        num_gpus: the same of GPUs.
        room_bytes: memory that Ray has for each process.
    """

    shares: tuple[int, ...]
    num_cpus: float
    num_gpus: int
    room_bytes: int

    @property
    def num_workers(self) -> int:
        """How many in all."""
        return sum(self.shares)

    @property
    def actor_cpus(self) -> float:
        """What Ray sets aside for each worker if it is a process beside the one with the model."""
        return _as_ray_takes(self.num_cpus / max(self.shares))

    def fits_once(self, machines: Sequence[Machine]) -> bool:
        """Whether no machine has CPUs for two processes; then Ray puts no two on one."""
        return all(2 * self.num_cpus > machine.num_cpus for machine in machines)

    def memory_for(self, taken_bytes: int) -> int:
        """Return what a process reserves, by what the first one took to load.

        Not more than there is: it would wait forever for a machine that the first one did not need.
        """
        return min(int(taken_bytes * MEMORY_MARGIN), self.room_bytes)


def plan_workers(machines: Sequence[Machine], num_workers: int | None, *, on_cpu: bool) -> Plan:
    """Return one worker for each GPU, or for each machine if there is none.

    A process computes on all cores of its machine, but sets aside one CPU fewer than the smallest
    machine has: other tasks of the cluster, such as those that read a Ray dataset, need one. More
    workers than machines share these processes, so that no machine holds the weights twice.

    Args:
        machines: those that are alive.
        num_workers: how many were asked for; None: as many as suit the machines.
        on_cpu: whether the model was asked to run on CPUs.

    Raises:
        ConfigError: the number is wrong, or no machine has a CPU for workers.
    """
    num_workers = optional(COUNT).take("ray_workers", num_workers)
    num_gpus = 0 if on_cpu else int(sum(machine.num_gpus for machine in machines))
    if num_gpus:
        with_gpu = [machine for machine in machines if machine.num_gpus]
        room = min(machine.memory_bytes / machine.num_gpus for machine in with_gpu)
        return Plan(
            shares=_shares(num_workers or num_gpus, num_gpus),
            num_cpus=1,
            num_gpus=1,
            room_bytes=int(room),
        )
    able = [machine for machine in machines if machine.num_cpus > 0]
    if not able:
        raise ConfigError(
            "no machine of the cluster offers a CPU to Ray; start one with ray start --num-cpus"
        )
    smallest = min(machine.num_cpus for machine in able)
    return Plan(
        shares=_shares(num_workers or len(able), len(able)),
        num_cpus=_as_ray_takes(max(smallest - 1, 0)),
        num_gpus=0,
        room_bytes=int(min(machine.memory_bytes for machine in able) / 2),
    )


def describe_lack(
    num_replicas: int, replica_cpus: float, gateway_cpus: float, machines: Sequence[Machine]
) -> str:
    """Return a line about CPUs that a server waits for; empty: the machines have them.

    Args:
        num_replicas: that start at once.
        replica_cpus: of each.
        gateway_cpus: of the process in front of them.
        machines: those that are alive.
    """
    cpus = [machine.num_cpus for machine in machines]
    fitting = [int(each / replica_cpus) for each in cpus]
    left = [each - num * replica_cpus for each, num in zip(cpus, fitting, strict=True)]
    room = sum(fitting)
    if room > num_replicas or (room == num_replicas and max(left) >= gateway_cpus):
        return ""
    listed = " + ".join(f"{each:g}" for each in cpus)
    return (
        f"waiting for CPUs: {num_replicas} replicas with {replica_cpus:g} each, for queries and "
        f"for bulk of each model, and a gateway with {gateway_cpus:g} do not fit the cluster's "
        f"{listed}; add machines, or set fewer for each (--ray-cpus, replica_cpus)"
    )


def _as_ray_takes(num_cpus: float) -> float:
    """Return a number of CPUs, rounded down from 1 on: Ray takes fractions only below that."""
    return float(int(num_cpus)) if num_cpus >= 1 else num_cpus


def _shares(num_workers: int, num_places: int) -> tuple[int, ...]:
    """Divide workers among machines or GPUs."""
    each, more = divmod(num_workers, num_places)
    return tuple(each + (place < more) for place in range(min(num_workers, num_places)))
