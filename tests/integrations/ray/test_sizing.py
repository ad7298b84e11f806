"""How many workers a cluster gets; Ray itself is tested by .ci/ray."""

from __future__ import annotations

import pytest

from embedlib.errors import ConfigError
from embedlib_ray.sizing import Machine, plan_workers, threads_for

GIB = 1 << 30


def machine(num_cpus: float, num_gpus: float = 0) -> Machine:
    return Machine(address="a", num_cpus=num_cpus, num_gpus=num_gpus, memory_bytes=8 * GIB)


@pytest.mark.parametrize(
    ("cpus", "asked", "num_workers", "num_cpus", "per_machine"),
    [
        ((16, 16), None, 2, 15, 1),
        ((16, 4), None, 2, 3, 1),
        ((16, 16), 4, 4, 7, 2),
        ((2,), None, 1, 1, 1),
        ((2,), 2, 2, 0.5, 2),
        ((1,), None, 1, 0.5, 1),
        ((0, 8), None, 1, 7, 1),
    ],
)
def test_workers_leave_a_part_of_every_machine(
    cpus: tuple[float, ...], asked: int | None, num_workers: int, num_cpus: float, per_machine: int
) -> None:
    plan = plan_workers([machine(each) for each in cpus], asked, on_cpu=False)
    assert (plan.num_workers, plan.num_cpus, plan.num_per_machine) == (
        num_workers,
        num_cpus,
        per_machine,
    )
    assert per_machine * num_cpus < min(each for each in cpus if each)


def test_a_worker_for_each_gpu_unless_the_model_runs_on_cpus() -> None:
    machines = [machine(16, 4), machine(16, 2), machine(8)]
    plan = plan_workers(machines, None, on_cpu=False)
    assert (plan.num_workers, plan.num_gpus) == (6, 1)
    assert plan.room_bytes == 2 * GIB
    assert plan_workers(machines, None, on_cpu=True).num_workers == 3


def test_a_worker_reserves_what_it_took_and_never_more_than_there_is() -> None:
    plan = plan_workers([machine(4)], None, on_cpu=True)
    assert plan.memory_for(GIB) == GIB * 1.25
    assert plan.memory_for(100 * GIB) == 4 * GIB


@pytest.mark.parametrize("asked", [0, -1, True, 1.5])
def test_a_wrong_number_of_workers_is_refused(asked: int) -> None:
    with pytest.raises(ConfigError, match="ray_workers = "):
        plan_workers([machine(4)], asked, on_cpu=True)


def test_a_cluster_without_cpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="no machine of the cluster offers a CPU"):
        plan_workers([machine(0)], None, on_cpu=True)


def test_workers_of_one_machine_share_its_cores() -> None:
    assert [threads_for(8, each) for each in (1, 2, 3, 16)] == [None, 4, 2, 1]
