"""`embedlib serve`: models over HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    PATIENT_SECONDS,
    GroupedCommand,
    config_options,
)
from embedlib.cli.ray_option import ray_option
from embedlib.cli.serve_options import server_options, take_bounds, take_listen
from embedlib.cli.settings import missing_model, model_setting
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config
from embedlib.errors import ConfigError, EmbedlibError
from embedlib.packages.installing import install_line

if TYPE_CHECKING:
    from embedlib.serve.fleet import Replicas
    from embedlib.serve.http.server import Listen
    from embedlib.serve.options import ServeOptions


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME=MODEL",
    help="What requests call a model; repeat it for several.  [default: MODEL itself]",
)
@click.option(
    "--search",
    "searched",
    multiple=True,
    metavar="[NAME=]URL",
    help="Destination that POST /v1/search searches; repeat it, with names, for several.",
)
@click.option(
    "--access-log/--no-access-log",
    default=True,
    help="A JSON line on standard output for each request.",
)
@click.option(
    "--otlp-endpoint",
    metavar="URL",
    help="Collector of OpenTelemetry that gets a span for each request, over HTTP: "
    "http://HOST:4318.  [default: none]",
)
@ray_option("Serve with replicas on a Ray cluster", "MODEL")
@click.option(
    "--ray-replicas",
    default="1:8",
    metavar="MIN:MAX",
    help="Replicas of each model, for queries and for bulk each; 0:MAX ends the last one when "
    "nobody asks.",
)
@click.option("--ray-cpus", default=1.0, type=float, help="Cores of each replica.")
@server_options
@config_options("max_seq_tokens", *ENGINE_OPTIONS, *MODEL_OPTIONS, prepare_seconds=PATIENT_SECONDS)
def serve(
    models: tuple[str, ...],
    names: tuple[str, ...],
    searched: tuple[str, ...],
    access_log: bool,
    otlp_endpoint: str | None,
    ray: str | None,
    ray_replicas: str,
    ray_cpus: float,
    **options: Any,
) -> None:
    """Serve models over HTTP, as OpenAI, TEI and others do.

    MODEL is a folder, a pack, a hub name, or package:NAME: an embedder, a reranker or a classifier.
    Requests choose one by its name. Ctrl-C or SIGTERM ends it: what runs is answered first.

    \b
    Examples:
      embedlib serve BAAI/bge-small-en-v1.5
      embedlib serve BAAI/bge-small-en-v1.5 BAAI/bge-reranker-base --port 9000
      embedlib serve BAAI/bge-small-en-v1.5 --search docs=edge:my-docs
      embedlib serve ./model --name my-model=./model --host 0.0.0.0 --api-keys-file keys.txt
    """
    if (options["tls_certificate"] is None) != (options["tls_key"] is None):
        raise click.UsageError("give both --tls-certificate and --tls-key, or none")
    if options["uds"] is not None:
        refuse("is not for --uds, which takes the place of a port; leave one out", "host", "port")
    if options["data_dir"] is None:
        jobs = ("max_file_mb", "max_batch_requests", "keep_jobs_hours")
        refuse("is for jobs; add --data-dir", *jobs, "webhook_hosts", "webhook_secrets_file")
    if ray is None:
        refuse("is for a Ray cluster; add --ray", "ray_replicas", "ray_cpus")
    try:
        from embedlib.serve.http.server import serve as run
    except ImportError as error:
        raise ConfigError(
            f"the package {error.name} is missing; {install_line('serve')}"
        ) from error
    from embedlib.serve import create_app
    from embedlib.serve.logs.access_log import AccessLog
    from embedlib.serve.tracing import open_tracing

    listen = take_listen(options)
    listen.check()
    bounds = take_bounds(options, listen)
    config = Config(**options)
    named, destinations = _named(models or _set_model(), names), _searched(searched)
    if ray is not None:
        given = {
            "--port 0": listen.port == 0,
            "--search": searched,
            "--otlp-endpoint": otlp_endpoint,
            "--uds": listen.unix_socket,
            "--tls-certificate": listen.certificate,
            "--data-dir": bounds.data_dir,
            "--no-access-log": not access_log,
        }
        _serve_on_ray(ray, named, listen, config, bounds, _replicas(ray_replicas, ray_cpus), given)
        return
    tracing = open_tracing(otlp_endpoint) if otlp_endpoint else None
    try:
        application = create_app(
            named,
            config=config,
            options=bounds,
            log=AccessLog() if access_log else None,
            search=destinations,
            tracing=tracing,
        )
    except BaseException:
        if tracing is not None:
            tracing.close()
        raise
    served = ", ".join(model.name for model in application.catalog)

    def tell(listens: Listen) -> None:
        with suppress(OSError):  # nobody reads: no reason not to serve
            click.echo(f"Serving {served} on {listens}; Ctrl-C stops it", err=True)

    try:
        run(application, listen, tell)
    except EmbedlibError as error:
        if not application.is_loading:
            raise
        click.echo(f"Error: {error}", err=True)
        os._exit(1)
    if application.is_loading:
        # A download or a compilation, which the interpreter would wait for. It may be killed.
        os._exit(0)


def _serve_on_ray(
    address: str,
    models: dict[str, str],
    listen: Listen,
    config: Config,
    options: ServeOptions,
    replicas: Replicas,
    given: Mapping[str, object],
) -> None:
    """Serve on a cluster; refuse what belongs to one process."""
    from embedlib.serve.fleet import find_fleet

    for name, value in given.items():
        if value:
            raise click.UsageError(
                f"{name} belongs to one server, and --ray starts many; run embedlib serve "
                "without --ray for it, or put a proxy in front"
            )
    served = ", ".join(models)
    click.echo(f"Starting replicas of {served} with Ray; Ctrl-C stops it", err=True)
    find_fleet()(
        *(models, address),
        host=listen.host,
        port=listen.port,
        config=config,
        options=options,
        replicas=replicas,
        on_start=lambda: click.echo(f"Serving {served} on {listen}; Ctrl-C stops it", err=True),
    )


def _replicas(text: str, cpus: float) -> Replicas:
    """Read MIN:MAX."""
    from embedlib.serve.fleet import Replicas

    found = re.fullmatch(r"(\d{1,5}):(\d{1,5})", text)
    if found is None or not int(found[1]) <= int(found[2]) or int(found[2]) < 1:
        raise click.UsageError(f"--ray-replicas {text!r}; it must be MIN:MAX, such as 0:8")
    if not cpus > 0:
        raise click.UsageError(f"--ray-cpus {cpus}; it must be above 0")
    return Replicas(min_replicas=int(found[1]), max_replicas=int(found[2]), cpus=cpus)


def _set_model() -> tuple[str]:
    """Return the model of a command that is given none."""
    model = model_setting()
    if model is None:
        raise missing_model(click.get_current_context(), "models")
    return (model,)


def _named(models: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """Return the models by the names that requests use."""
    for model in models:
        if models.count(model) > 1:
            raise click.UsageError(f"{model} is there twice; give it once")
    aliases: dict[str, str] = {}
    for text in names:
        name, equals, model = text.partition("=")
        if not (name and equals and model):
            raise click.UsageError(f"--name {text!r}; it must be NAME=MODEL")
        if model not in models:
            raise click.UsageError(f"--name {text!r}: {model} is none of the models given")
        if model in aliases:
            raise click.UsageError(f"--name {text!r}: {model} is {aliases[model]!r} already")
        aliases[model] = name
    named = {aliases.get(model, model): model for model in models}
    if len(named) < len(models):
        raise click.UsageError("two models have the same name; give one another with --name")
    return named


def _searched(given: tuple[str, ...]) -> dict[str, str]:
    """Return the destinations by the names that requests use."""
    from embedlib.serve.create import DEFAULT_SEARCH

    named: dict[str, str] = {}
    for text in given:
        # A URL has a colon before the first "=".
        found = re.fullmatch(r"([\w.-]+)=(.*)", text, re.DOTALL)
        name, url = (found[1], found[2]) if found else (DEFAULT_SEARCH, text)
        if name in named:
            raise click.UsageError(f"two destinations are called {name!r}; give --search NAME=URL")
        named[name] = url
    return named
