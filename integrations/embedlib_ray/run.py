"""Runs a fleet: `serve_models` for `embedlib serve --ray`, `app` for a file of `serve deploy`."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client

from embedlib.config import Config
from embedlib.errors import ConfigError, first_line, nearest
from embedlib.serve import ServeOptions
from embedlib.serve.fleet import Replicas
from embedlib_ray.cluster import connected, machines
from embedlib_ray.serving import GATEWAY, GATEWAY_CPUS, LANES, Fleet, build_app
from embedlib_ray.sizing import describe_lack

APP = "embedlib"
"""Name of the application in Ray Serve."""


def serve_models(
    models: Mapping[str, str],
    address: str,
    *,
    host: str,
    port: int,
    config: Config,
    options: ServeOptions,
    replicas: Replicas,
    on_start: Callable[[], None],
) -> None:
    """Serve models on a cluster until SIGINT or SIGTERM, see `embedlib.serve.fleet.ServeFleet`.

    Raises:
        ConfigError: there is no such cluster, or a replica cannot start.
    """
    fleet = Fleet(
        min_replicas=replicas.min_replicas,
        max_replicas=replicas.max_replicas,
        replica_cpus=replicas.cpus,
    )
    application = build_app(models, config=config, options=options, fleet=fleet)
    ended, is_started = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        ended.set()
        if not is_started.is_set():
            raise KeyboardInterrupt  # of exceptions, Ray's own waiting lets this one through

    with suppress(KeyboardInterrupt), connected(address):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)  # in place of what ray.init has set
        num_replicas = len(models) * len(LANES) * max(1, fleet.min_replicas)
        lack = describe_lack(num_replicas, fleet.replica_cpus, GATEWAY_CPUS, machines())
        if lack:
            logging.getLogger(__name__).warning("%s", lack)
        if _version() is not None:
            logging.getLogger(__name__).warning(
                "this cluster has an application %r, which is replaced, with its models", APP
            )
        start(application, host, port)
        is_started.set()  # from now on the end deletes what was started
        version = _version()
        try:
            on_start()
            ended.wait()
        finally:
            if _version() == version:  # else another command has replaced it
                # Of a minute: Ray lets replicas answer what they have begun.
                with suppress(TimeoutError):
                    serve.delete(APP)


def _version() -> str | None:
    """Return a string that each deployment of the application changes; None: there is none."""
    client = _get_global_client(raise_if_no_controller_running=False)
    try:
        return None if client is None else str(client.get_deployment_info(GATEWAY, APP)[0].version)
    except KeyError:
        return None


def start(application: Any, host: str, port: int) -> None:
    """Deploy an application, and return when its replicas are ready.

    Raises:
        ConfigError: Ray Serve listens elsewhere already, or a replica cannot start; the message has
            its reason.
    """
    # Without a limit: requests are held while replicas start.
    serve.start(http_options={"host": host, "port": port, "request_timeout_s": None})
    listens = _get_global_client().http_config
    if (listens.host, listens.port) != (host, port):
        raise ConfigError(
            f"Ray Serve of this cluster listens at {listens.host}:{listens.port} already, and not "
            f"at {host}:{port}; pass that with --host and --port, or end it with serve shutdown"
        )
    try:
        serve.run(application, name=APP, route_prefix="/")
    except (RuntimeError, ray.exceptions.RayError) as error:
        said = _reason() or first_line(error)
        serve.delete(APP)
        raise ConfigError(f"the replicas cannot start: {said}") from error
    except KeyboardInterrupt:
        serve.delete(APP, _blocking=False)  # what has not started would be waited for
        raise


def app(args: dict[str, Any]) -> Any:
    """Return the application of a file of `serve deploy`, whose `args` are these.

    `models` is a list of names, or a mapping from what requests call them to names. All other names
    are fields of `Fleet`, `embedlib.Config` or `ServeOptions`.

    Raises:
        ConfigError: a name is unknown, or a value is wrong.
    """
    given = dict(args)
    models = given.pop("models", None)
    if not isinstance(models, list | dict):
        raise ConfigError("args.models must list the models, such as [BAAI/bge-small-en-v1.5]")
    parts: dict[type[Any], dict[str, Any]] = {Fleet: {}, ServeOptions: {}, Config: {}}
    owners = {item.name: kind for kind in parts for item in fields(kind)}
    for name, value in given.items():
        if name not in owners:
            raise ConfigError(f"args has an unknown option {name!r}; {nearest(name, owners)}")
        parts[owners[name]][name] = tuple(value) if isinstance(value, list) else value
    return build_app(
        models,
        config=Config(**parts[Config]),
        options=ServeOptions(**parts[ServeOptions]),
        fleet=Fleet(**parts[Fleet]),
    )


def _reason() -> str:
    """Return the last line of what a replica said when it could not start."""
    status = serve.status().applications.get(APP)
    for deployment in status.deployments.values() if status else ():
        message: str = deployment.message
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        if errors:
            return errors[-1].partition("Error: ")[2] or errors[-1]
    return ""
