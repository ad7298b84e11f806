"""`build_app`: a Ray Serve application with the routes of `embedlib serve`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from embedlib.checks import COUNT, SECONDS, Kind, is_number, optional, whole_number
from embedlib.config import Config
from embedlib.errors import ConfigError, shown
from embedlib.serve import ServeOptions
from embedlib_ray.autoscaling import WorkPolicy
from embedlib_ray.gateway import Gateway
from embedlib_ray.model import config_for, name_for_workers
from embedlib_ray.replica import Answer, Call, ModelReplica, ModelSource, SharedReplica

Lane = Literal["query", "bulk"]
LANES: tuple[Lane, ...] = ("query", "bulk")
ATTEMPTS = 4
"""How often a request is given to another replica, because one died with it."""
GATEWAY = "gateway"
"""Name of its deployment."""
GATEWAY_CPUS = 0.1
"""What Ray sets aside for a gateway."""
_MAX_ONGOING = 2000
"""Requests of a replica; its admission bounds their texts. Ray's own bound would hide them from
the policy."""
_DRAIN_SECONDS = 120.0
"""A replica that ends answers what it has begun."""


_ABOVE_0 = Kind("a number above 0", lambda value: is_number(value) and value > 0)
_KINDS = {
    "min_replicas": whole_number(0),
    **dict.fromkeys(("max_replicas", "num_gateways"), COUNT),
    "models_per_replica": optional(COUNT),
    **dict.fromkeys(("query_wait_seconds", "bulk_wait_seconds", "replica_cpus"), _ABOVE_0),
    **dict.fromkeys(("upscale_seconds", "downscale_seconds"), SECONDS),
    "replica_gpus": Kind(
        "0 or more, and whole above 1, such as 0.5 or 2",
        lambda value: is_number(value) and (0 <= value <= 1 or (value > 1 and value % 1 == 0)),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How many replicas of a model there are, for each lane."""

    min_replicas: int = 1
    """0: none while nobody asks; the first request waits until one has started."""
    max_replicas: int = 8
    query_wait_seconds: float = 0.2
    """Work that may wait in a replica for queries, in seconds; more starts others."""
    bulk_wait_seconds: float = 10.0
    """The same for bulk work."""
    upscale_seconds: float = 5.0
    """How long more replicas are needed before they are started."""
    downscale_seconds: float = 120.0
    """How long fewer are enough before they are ended."""
    replica_cpus: float = 1.0
    """Cores of a replica, which are its threads; Ray sets them aside."""
    replica_gpus: float = 0.0
    """GPUs of a replica, which Ray sets aside; with 0 it computes on the CPU, unless `device` or
    `engine` of the options says otherwise."""
    models_per_replica: int | None = None
    """Models that a replica holds, of many small ones; None: each model has replicas of its own."""
    num_gateways: int = 1
    """Processes that read requests; each passes some thousand a second on."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: a value is wrong.
        """
        for item in fields(self):
            _KINDS[item.name].take(item.name, getattr(self, item.name))
        if self.min_replicas > self.max_replicas:
            raise ConfigError(
                f"min_replicas = {self.min_replicas}, max_replicas = {self.max_replicas}; the "
                "second must be at least the first"
            )

    def wait_seconds(self, lane: Lane) -> float:
        """Return how long work of a lane may wait."""
        return self.query_wait_seconds if lane == "query" else self.bulk_wait_seconds


def build_app(
    models: Sequence[str] | Mapping[str, ModelSource],
    *,
    config: Config | None = None,
    options: ServeOptions | None = None,
    fleet: Fleet | None = None,
) -> Any:
    """Return an application for `ray.serve.run`.

    A gateway reads requests. Behind it each model has two deployments, one for queries and one for
    bulk, so that a backfill takes no place of a query. Both scale by seconds of work.

    Args:
        models: names, or a mapping from what requests call them to names, or to functions that
            make an Embedder, Reranker or Classifier in a replica.
        config: options of the models.
        options: the bounds of each replica.
        fleet: how many replicas there are.

    Raises:
        ConfigError: there is no model, or an option is wrong.
    """
    if isinstance(models, str):
        raise ConfigError(f"models = {shown(models)}; it must be a list, such as [{models!r}]")
    given = models if isinstance(models, Mapping) else {str(model): model for model in models}
    named = {name: name_for_workers(source) for name, source in given.items()}
    if not named:
        raise ConfigError("there is no model to serve; give a folder, a hub name or package:NAME")
    options, fleet = options or ServeOptions(), fleet or Fleet()
    if options.data_dir is not None:
        raise ConfigError(
            "data_dir: the folder of jobs belongs to one server; run embedlib serve without --ray "
            "for them"
        )
    config = config_for(config or Config(), fleet.replica_gpus)
    if config.threads is None:
        config = replace(config, threads=max(1, int(fleet.replica_cpus)))
    # The gateway has let the host and the key in, and asks replicas itself.
    inner = replace(options, allowed_hosts=None, api_keys=())
    gateway = serve.deployment(
        serve.ingress()(GatewayReplica),
        name=GATEWAY,
        num_replicas=fleet.num_gateways,
        ray_actor_options={"num_cpus": GATEWAY_CPUS},
        max_ongoing_requests=_MAX_ONGOING,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
    )
    is_shared = fleet.models_per_replica is not None
    return gateway.bind(
        _bind_replicas(named, config, inner, fleet),
        options,
        sources={name: source for name, source in named.items() if isinstance(source, str)},
        is_shared=is_shared,
        are_awake=fleet.min_replicas > 0 and not is_shared,
    )


def _bind_replicas(
    models: Mapping[str, ModelSource], config: Config, options: ServeOptions, fleet: Fleet
) -> dict[str, dict[Lane, Any]]:
    """Return the deployments of every model, by lane."""
    if fleet.models_per_replica is not None:
        replica = _holding(fleet.models_per_replica)
        shared: dict[Lane, Any] = {
            lane: _deployment(replica, f"shared-{lane}", lane, fleet).bind(models, config, options)
            for lane in LANES
        }
        return dict.fromkeys(models, shared)
    return {
        name: {
            lane: _deployment(ModelReplica, f"{name}-{lane}", lane, fleet).bind(
                name, source, config, options
            )
            for lane in LANES
        }
        for name, source in models.items()
    }


class GatewayReplica:
    """The deployment of the gateway."""

    def __init__(
        self,
        handles: Mapping[str, Mapping[Lane, Any]],
        options: ServeOptions,
        *,
        sources: Mapping[str, str],
        is_shared: bool,
        are_awake: bool,
    ) -> None:
        lanes: dict[str, dict[str, Any]] = {
            model: {
                lane: _caller(
                    handle.options(multiplexed_model_id=model) if is_shared else handle, model
                )
                for lane, handle in of_model.items()
            }
            for model, of_model in handles.items()
        }
        self._gateway = Gateway(lanes, options, sources=sources, are_awake=are_awake)

    def __serve_build_asgi_app__(self) -> Gateway:
        return self._gateway


def _caller(handle: Any, model: str) -> Callable[[Call], Awaitable[Answer]]:
    """Return a function that gives a request to a replica, and to another one if that dies."""

    async def call(request: Call) -> Answer:
        for attempt in range(ATTEMPTS):
            response = handle.answer.remote(request, model)
            try:
                answer: Answer = await response
                return answer
            except asyncio.CancelledError:
                response.cancel()
                raise
            except RayActorError:  # the same texts have the same vectors
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    return call


def _deployment(replica: type[Any], name: str, lane: Lane, fleet: Fleet) -> Any:
    policy = AutoscalingPolicy(
        policy_function=WorkPolicy,
        policy_kwargs={"target_seconds": fleet.wait_seconds(lane)},
    )
    return serve.deployment(
        replica,
        name=re.sub("[/#]", "--", name),  # Ray's own separators
        ray_actor_options={"num_cpus": fleet.replica_cpus, "num_gpus": fleet.replica_gpus},
        max_ongoing_requests=_MAX_ONGOING,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
        health_check_period_s=5.0,
        autoscaling_config=AutoscalingConfig(
            min_replicas=fleet.min_replicas,
            initial_replicas=max(1, fleet.min_replicas),
            max_replicas=fleet.max_replicas,
            upscale_delay_s=fleet.upscale_seconds,
            downscale_delay_s=fleet.downscale_seconds,
            metrics_interval_s=1.0,
            look_back_period_s=max(2.0, fleet.upscale_seconds),
            policy=policy,
        ),
    )


def _holding(num_models: int) -> type[SharedReplica]:
    """Return a replica class that holds so many models, the last ones used."""

    class Replica(SharedReplica):
        load = serve.multiplexed(max_num_models_per_replica=num_models)(SharedReplica.load)

    return Replica
