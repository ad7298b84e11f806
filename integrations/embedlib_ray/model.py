"""The first worker of a model: starts, says what it is, or why it cannot."""

from __future__ import annotations

from typing import Any

import ray

from embedlib.config import Config
from embedlib.errors import EmbedlibError
from embedlib.indexing import Tell
from embedlib_ray.cluster import own_version
from embedlib_ray.pool import cause_of
from embedlib_ray.sizing import Plan
from embedlib_ray.worker import CONCURRENCY, Identity, MakeEmbedder, ModelPlan, Worker

_PATIENCE_SECONDS = 20.0
"""Before a line says what a load waits for."""


def start_worker(plan: Plan, memory_bytes: int = 0) -> Any:
    """Start an actor, which Ray starts again, on any machine, as often as it dies."""
    actor = ray.remote(Worker).options(
        num_cpus=plan.num_cpus,
        num_gpus=plan.num_gpus,
        memory=memory_bytes or None,
        max_restarts=-1,
        max_concurrency=CONCURRENCY,
        scheduling_strategy="SPREAD",
    )
    return actor.remote()


def open_first(worker: Any, model: ModelPlan, tell: Tell) -> Identity:
    """Wait for the first worker.

    Raises:
        EmbedlibError: it cannot load the model, or is of another version.
    """
    opened = worker.open.remote(model, None)
    if not ray.wait([opened], timeout=_PATIENCE_SECONDS)[0]:
        tell("waiting for the cluster to start a worker and to load the model")
    try:
        identity: Identity = ray.get(opened)
        if identity.version != own_version():
            raise EmbedlibError(
                f"the worker on {identity.machine} has embedlib {identity.version}, this is "
                f"{own_version()}; install the same version on all machines"
            )
    except Exception as error:
        ray.kill(worker, no_restart=True)
        raise cause_of(error) from None
    return identity


def describe_model(model: str | MakeEmbedder, config: Config, plan: Plan) -> Identity:
    """Load a model on a machine of the cluster for a moment, and return what it is.

    Raises:
        EmbedlibError: it cannot be loaded there.
    """
    worker = start_worker(plan)
    made = ModelPlan(model=model, config=config, num_per_machine=plan.num_per_machine)
    identity = open_first(worker, made, lambda _: None)
    ray.kill(worker, no_restart=True)
    return identity
