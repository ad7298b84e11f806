"""How many workers a cluster gets; Ray itself is tested by .ci/ray."""

from __future__ import annotations

import numpy as np
import pytest

from embedlib.errors import ConfigError
from embedlib_ray.sizing import Machine, describe_lack, plan_workers

GIB = 1 << 30


def machine(num_cpus: float, num_gpus: float = 0) -> Machine:
    return Machine(
        node="n", address="a", num_cpus=num_cpus, num_gpus=num_gpus, memory_bytes=8 * GIB
    )


@pytest.mark.parametrize(
    ("cpus", "asked", "shares", "num_cpus", "actor_cpus"),
    [
        ((16, 16), None, (1, 1), 15, 15),
        ((16, 4), None, (1, 1), 3, 3),
        ((16, 16), 1, (1,), 15, 15),
        ((16, 16), 5, (3, 2), 15, 5),
        ((16, 16), 4, (2, 2), 15, 7),
        ((2,), None, (1,), 1, 1),
        ((2,), 2, (2,), 1, 0.5),
        ((1,), None, (1,), 0, 0),
        ((1,), 2, (2,), 0, 0),
        ((16, 1), None, (1, 1), 0, 0),
        ((1.5,), None, (1,), 0.5, 0.5),
        ((2.5,), None, (1,), 1, 1),
        ((0, 8), None, (1,), 7, 7),
    ],
)
def test_a_machine_has_one_process_and_keeps_a_part_for_others(
    cpus: tuple[float, ...],
    asked: int | None,
    shares: tuple[int, ...],
    num_cpus: float,
    actor_cpus: float,
) -> None:
    plan = plan_workers([machine(each) for each in cpus], asked, on_cpu=False)
    assert (plan.shares, plan.num_cpus, plan.actor_cpus) == (shares, num_cpus, actor_cpus)
    assert plan.num_gpus == 0
    assert plan.num_cpus <= min(each for each in cpus if each) - 1  # a task of others needs one
    assert plan.actor_cpus * max(shares) <= plan.num_cpus


@pytest.mark.parametrize(
    ("cpus", "fits_once"), [((16, 16), True), ((3,), True), ((2, 2), False), ((16, 4), False)]
)
def test_ray_itself_keeps_processes_apart_where_they_take_most_cpus(
    cpus: tuple[float, ...], fits_once: bool
) -> None:
    machines = [machine(each) for each in cpus]
    assert plan_workers(machines, None, on_cpu=True).fits_once(machines) == fits_once


def test_a_worker_for_each_gpu_unless_the_model_runs_on_cpus() -> None:
    machines = [machine(16, 4), machine(16, 2), machine(8)]
    plan = plan_workers(machines, None, on_cpu=False)
    assert (plan.num_workers, plan.num_cpus, plan.num_gpus) == (6, 1, 1)
    assert plan.room_bytes == 2 * GIB
    assert plan_workers(machines, 7, on_cpu=False).shares == (2, 1, 1, 1, 1, 1)
    assert plan_workers(machines, None, on_cpu=True).num_workers == 3


def test_a_number_of_workers_may_be_one_of_numpy() -> None:
    shares = plan_workers([machine(4)], np.int64(2), on_cpu=True).shares  # type: ignore[arg-type]
    assert shares == (2,)
    assert type(shares[0]) is int


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


@pytest.mark.parametrize(
    ("num_replicas", "replica_cpus", "cpus", "lacks"),
    [
        (2, 1.0, [2], True),  # the gateway finds no place
        (2, 1.0, [2, 0.5], False),
        (2, 0.5, [2], False),
        (2, 4.0, [3, 3, 3], True),  # no machine holds one
        (4, 1.0, [2, 2], True),
        (4, 0.75, [2, 2], False),
        (10, 0.4, [4], True),  # though 4 % 0.4 is nearly 0.4
        (1, 0.5, [0.75], False),
        (1, 0.5, [0.5], True),
        (3, 1.0, [2, 2], False),
    ],
)
def test_cpus_that_replicas_would_wait_for_are_told(
    num_replicas: int, replica_cpus: float, cpus: list[float], lacks: bool
) -> None:
    told = describe_lack(num_replicas, replica_cpus, 0.25, [machine(each) for each in cpus])
    assert bool(told) == lacks
    if lacks:
        assert f"{num_replicas} replicas with {replica_cpus:g} each" in told
        assert f"{' + '.join(f'{each:g}' for each in cpus)}; add machines" in told
