"""`SharedModel`: the model of all actors of a machine, which one process of Ray holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from embedlib.errors import EmbedlibError
from embedlib.indexing import Vectors
from embedlib_ray.failures import cause_of
from embedlib_ray.pool import ATTEMPTS
from embedlib_ray.worker import Counts, ModelPlan, Worker

Answer = TypeVar("Answer")

_CALLERS = 16
"""Actors of a machine that embed at the same time; more wait for each other."""


class SharedModel:
    """A model in a process beside the actors of a machine, so that its weights are there once.

    The first actor that asks starts the process, which ends with that actor; then another one
    starts it again.
    """

    def __init__(self, plan: ModelPlan, fingerprint: str | None) -> None:
        """Find the process of this machine that has the model, or start it.

        Args:
            plan: how to make it.
            fingerprint: what it must be; None: anything.

        Raises:
            EmbedlibError: it cannot be loaded here, or is another one.
        """
        self._plan = plan
        self._fingerprint = fingerprint
        self._process: Any = None
        self._ask(lambda _: None)

    def embed(self, texts: list[str]) -> tuple[Vectors, Counts]:
        """Return float32[N, D] of documents, as `Worker.embed`.

        Raises:
            EmbedlibError: they cannot be embedded.
        """
        answer: tuple[Vectors, Counts]
        answer = self._ask(lambda process: ray.get(process.embed.remote(texts)))
        return answer

    def _ask(self, call: Callable[[Any], Answer]) -> Answer:
        """Call the process, or another one if it has ended."""
        failure = EmbedlibError("no attempt was made")
        for _ in range(ATTEMPTS):
            process = self._process or self._find()
            try:
                if self._process is None:
                    ray.get(process.open.remote(self._plan, self._fingerprint))
                    self._process = process
                return call(process)
            except RayActorError as error:
                self._process, failure = None, cause_of(error)
                ray.kill(process)  # Ray would find it by its name a while longer
            except Exception as error:
                raise cause_of(error) from None
        raise failure

    def _find(self) -> Any:
        node = ray.get_runtime_context().get_node_id()
        options = {
            "name": f"embedlib-{node}-{_digest(self._plan)}",
            "get_if_exists": True,
            "num_cpus": 0,  # the actors that call it have set them aside
            "max_concurrency": _CALLERS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        return ray.remote(Worker).options(**options).remote()


def _digest(plan: ModelPlan) -> str:
    """Return what is equal for equal models; a function is what it is made of."""
    model = plan.model
    made_of = model.encode() if isinstance(model, str) else ray.cloudpickle.dumps(model)
    return hashlib.blake2b(made_of + repr(plan.config).encode(), digest_size=8).hexdigest()
