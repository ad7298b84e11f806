"""A model on a cluster: what its workers are named and sized by, and what the first one says."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from embedlib.config import Config, LateSimilarity
from embedlib.errors import ConfigError, EmbedlibError
from embedlib.indexing import Tell, tell_nobody
from embedlib_ray.cluster import machines
from embedlib_ray.failures import cause_of, is_ray_itself
from embedlib_ray.pool import ATTEMPTS
from embedlib_ray.sizing import Plan, plan_workers
from embedlib_ray.worker import CALLS, Identity, MakeEmbedder, ModelPlan, Worker

Named = TypeVar("Named")

_SHORT_CALLS = 2
"""Calls that Ray lets in beside shards."""
_PATIENCE_SECONDS = 20.0
"""Before a line says what a load waits for."""


def name_for_workers(model: Named) -> Named | str:
    """Return what workers, which run in another folder, load a model by.

    Args:
        model: a name, folder or pack; or anything else, which is returned.
    """
    path = os.path.expanduser(model) if isinstance(model, str) else ""
    return os.path.abspath(path) if os.path.exists(path) else model


def plan_for(config: Config, num_workers: int | None) -> Plan:
    """Return the workers of a model on the machines that are there now.

    Raises:
        ConfigError: there is no cluster, or the number is wrong.
    """
    on_cpu = config.device == "cpu" or config.engine == "openvino"
    return plan_workers(machines(), num_workers, on_cpu=on_cpu)


def config_for(config: Config, num_gpus: float) -> Config:
    """Return the options of a process for which Ray sets so many GPUs aside.

    Without any it computes on the CPU, unless an option says otherwise: Ray hides no GPU from it
    (since 2.60; `ray._private.accelerators.accelerator`), and others have set it aside.
    """
    if num_gpus or config.devices or config.engine != "auto":
        return config
    return replace(config, device="cpu")


def start_worker(plan: Plan, memory_bytes: int = 0, *, strategy: Any = "SPREAD") -> Any:
    """Start an actor for the workers of a machine or GPU, on any one by default."""
    actor = ray.remote(Worker).options(
        num_cpus=plan.num_cpus,
        num_gpus=plan.num_gpus,
        memory=memory_bytes or None,
        max_concurrency=CALLS * max(plan.shares) + _SHORT_CALLS,
        scheduling_strategy=strategy,
    )
    return actor.remote()


def start_elsewhere(
    plan: Plan, memory_bytes: int, taken: Collection[str]
) -> tuple[Any, str] | None:
    """Start an actor on a machine that has none, so that weights are nowhere in memory twice.

    Each GPU has weights of its own. There, and where no machine has room for two, Ray chooses the
    machine; an autoscaler sees what waits for one.

    Returns:
        the actor, and its machine if that was chosen here; None: every machine has an actor.
    """
    found = machines()
    if plan.num_gpus or plan.fits_once(found):
        return start_worker(plan, memory_bytes), ""
    for machine in found:
        has_cpus = machine.num_cpus >= plan.num_cpus and machine.num_cpus > 0
        has_room = has_cpus and machine.memory_bytes >= memory_bytes
        if has_room and machine.node not in taken:
            here = NodeAffinitySchedulingStrategy(machine.node, soft=False)
            return start_worker(plan, memory_bytes, strategy=here), machine.node
    return None


@dataclass(frozen=True, kw_only=True)
class First:
    """The first worker, which is open."""

    worker: Any
    identity: Identity
    node: str
    """Ray's id of its machine."""


def open_first(plan: Plan, model: ModelPlan, tell: Tell) -> First:
    """Start the first worker and wait until it is open; on another machine, if the first one died.

    Raises:
        EmbedlibError: it cannot load the model, or is of another version.
    """
    failure = EmbedlibError("no worker was started")
    for _ in range(ATTEMPTS):
        worker = start_worker(plan)
        try:
            return _wait_for(worker, model, tell)
        except Exception as error:
            ray.kill(worker, no_restart=True)
            failure = cause_of(error)
            if not is_ray_itself(error):
                break
    raise failure


def _wait_for(worker: Any, model: ModelPlan, tell: Tell) -> First:
    opened = worker.open.remote(model, None)
    if not ray.wait([opened], timeout=_PATIENCE_SECONDS)[0]:
        tell("waiting for the cluster to start a worker and to load the model")
    identity: Identity = ray.get(opened)
    return First(worker=worker, identity=identity, node=ray.get(worker.node.remote()))


def describe_model(model: str | MakeEmbedder, config: Config, plan: Plan) -> Identity:
    """Load a model on a machine of the cluster for a moment, and return what it is.

    Raises:
        EmbedlibError: it cannot be loaded there.
    """
    made = ModelPlan(model=name_for_workers(model), config=config_for(config, plan.num_gpus))
    first = open_first(plan, made, tell_nobody)
    ray.kill(first.worker, no_restart=True)
    return first.identity


def check_one_vector(identity: Identity) -> None:
    """Refuse a model of late interaction, which a column of a dataset cannot hold.

    Raises:
        ConfigError: it is one.
    """
    if identity.similarity in get_args(LateSimilarity):
        raise ConfigError(
            f"{identity.model_name!r} makes a vector per token, and a dataset has one for each "
            "row; use embedlib.index with ray"
        )
