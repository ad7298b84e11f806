"""`embedlib serve`: models over HTTP."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    GroupedCommand,
    config_options,
    model_setting,
)
from embedlib.cli.paths import FilePath
from embedlib.config import Config
from embedlib.errors import ConfigError

if TYPE_CHECKING:
    from embedlib.serve.server import Listen

_KEYS_VARIABLE = "EMBEDLIB_API_KEYS"
_SECRETS_VARIABLE = "EMBEDLIB_WEBHOOK_SECRETS"


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME=MODEL",
    help="What requests call a model; repeat it for several.  [default: MODEL itself]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port to listen on.",
)
@click.option(
    "--uds", type=FilePath(path_type=Path), help="Unix socket to listen on, instead of a port."
)
@click.option(
    "--tls-certificate",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
    help="Certificate for TLS, a PEM file.",
)
@click.option(
    "--tls-key",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
    help="Private key of the certificate, a PEM file.",
)
@click.option(
    "--api-keys-file",
    type=FilePath(path_type=Path),
    help=f"File with API keys, one a line; {_KEYS_VARIABLE} has them with commas.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    help="Name in the header Host to accept; repeat it for several.  [default: any, and on a "
    "loopback address its own names]",
)
@click.option(
    "--max-body-mb",
    default=32,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Size of a request's body, at most, in MiB.",
)
@click.option(
    "--max-bulk-texts",
    default=8192,
    show_default=True,
    type=click.IntRange(1),
    help="Bulk texts that a model works on; further requests wait.",
)
@click.option(
    "--max-waiting-requests",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    help="Bulk requests that may wait; more are answered with 429.",
)
@click.option(
    "--search",
    "searched",
    multiple=True,
    metavar="[NAME=]URL",
    help="Destination that POST /v1/search searches; repeat it, with names, for several.",
)
@click.option(
    "--data-dir",
    type=FilePath(file_okay=False, path_type=Path),
    help="Folder for jobs: batches and asynchronous requests, which outlive the process.  "
    "[default: none, and no jobs]",
)
@click.option(
    "--max-file-mb",
    default=200,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Size of an uploaded file of requests, at most, in MiB.",
)
@click.option(
    "--max-batch-requests",
    default=50_000,
    show_default=True,
    type=click.IntRange(1),
    help="Requests in one file, at most.",
)
@click.option(
    "--keep-jobs-hours",
    default=168,
    show_default=True,
    type=click.IntRange(1),
    help="Time that files and results of jobs are kept.",
)
@click.option(
    "--webhook-allow",
    "webhook_hosts",
    multiple=True,
    metavar="HOST",
    help="Host that webhooks may go to; one whose address is not public needs its address or "
    "network (10.0.0.0/8), too. Repeat it for several.  [default: none]",
)
@click.option(
    "--webhook-secrets-file",
    type=FilePath(path_type=Path),
    help="File with secrets that webhooks are signed with, one a line; "
    f"{_SECRETS_VARIABLE} has them with commas.",
)
@click.option(
    "--access-log/--no-access-log",
    default=True,
    show_default=True,
    help="A JSON line on standard output for each request.",
)
@click.option(
    "--otlp-endpoint",
    metavar="URL",
    help="Collector of OpenTelemetry that gets a span for each request, over HTTP: "
    "http://HOST:4318.  [default: none]",
)
@config_options("max_seq_tokens", *ENGINE_OPTIONS, *MODEL_OPTIONS)
def serve(
    models: tuple[str, ...],
    names: tuple[str, ...],
    host: str,
    port: int,
    uds: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    api_keys_file: Path | None,
    allowed_hosts: tuple[str, ...],
    max_body_mb: int,
    max_bulk_texts: int,
    max_waiting_requests: int,
    searched: tuple[str, ...],
    data_dir: Path | None,
    max_file_mb: int,
    max_batch_requests: int,
    keep_jobs_hours: int,
    webhook_hosts: tuple[str, ...],
    webhook_secrets_file: Path | None,
    access_log: bool,
    otlp_endpoint: str | None,
    **options: Any,
) -> None:
    """Serve models over HTTP, as OpenAI, TEI and others do.

    MODEL is a folder, a hub name, or package:NAME: an embedder, a reranker or a classifier.
    Requests choose one by its name. Ctrl-C or SIGTERM ends it: what runs is answered first.

    \b
    Examples:
      embedlib serve BAAI/bge-small-en-v1.5
      embedlib serve BAAI/bge-small-en-v1.5 BAAI/bge-reranker-base --port 9000
      embedlib serve BAAI/bge-small-en-v1.5 --search docs=edge:my-docs
      embedlib serve ./model --name my-model=./model --host 0.0.0.0 --api-keys-file keys.txt
    """  # noqa: D301 - click takes \b as "keep these lines"
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("give both --tls-certificate and --tls-key, or none")
    config = Config(**options)
    if not models:
        set_model = model_setting()
        if set_model is None:
            raise click.UsageError("Missing argument 'MODEL...'; or set EMBEDLIB_MODEL.")
        models = (set_model,)
    try:
        from embedlib.serve.server import Listen
        from embedlib.serve.server import serve as run
    except ImportError as error:
        raise ConfigError(
            f"the package {error.name} is missing; pip install 'embedlib[serve]'"
        ) from error
    from embedlib.serve import ServeOptions, create_app
    from embedlib.serve.access_log import AccessLog
    from embedlib.serve.hosts import LOOPBACK, is_loopback
    from embedlib.serve.tracing import open_tracing

    listen = Listen(
        host=host, port=port, unix_socket=uds, certificate=tls_certificate, private_key=tls_key
    )
    is_local = uds is not None or is_loopback(host)
    keys = _keys(api_keys_file, _KEYS_VARIABLE)
    if not is_local and not keys:
        click.echo(
            f"Warning: anybody who reaches {listen} may use it; give --api-keys-file, or set "
            f"{_KEYS_VARIABLE}",
            err=True,
        )
    serve_options = ServeOptions(
        api_keys=keys,
        max_body_bytes=max_body_mb << 20,
        max_bulk_texts=max_bulk_texts,
        max_waiting_requests=max_waiting_requests,
        allowed_hosts=allowed_hosts or ((*LOOPBACK, host) if is_local and uds is None else None),
        data_dir=None if data_dir is None else str(data_dir),
        max_file_bytes=max_file_mb << 20,
        max_batch_requests=max_batch_requests,
        keep_jobs_seconds=keep_jobs_hours * 3600.0,
        webhook_hosts=webhook_hosts,
        webhook_secrets=_keys(webhook_secrets_file, _SECRETS_VARIABLE),
    )
    named, destinations = _named(models, names), _searched(searched)
    with ExitStack() as opened:  # what the application closes, once there is one
        log = AccessLog() if access_log else None
        tracing = open_tracing(otlp_endpoint) if otlp_endpoint else None
        for each in (log, tracing):
            if each is not None:
                opened.callback(each.close)
        application = create_app(
            named,
            config=config,
            options=serve_options,
            log=log,
            search=destinations,
            tracing=tracing,
        )
        opened.pop_all()
    _say(listen, application.catalog)
    run(application, listen)


def _named(models: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """Return the models by the names that requests use."""
    aliases: dict[str, str] = {}
    for text in names:
        name, equals, model = text.partition("=")
        if not (name and equals and model):
            raise click.UsageError(f"--name {text!r}; it must be NAME=MODEL")
        if model not in models:
            raise click.UsageError(f"--name {text!r}: {model} is none of the models given")
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


def _keys(path: Path | None, variable: str) -> tuple[str, ...]:
    """Return the lines of a file, or the parts of an environment variable."""
    from embedlib.serve.keys import read_keys

    if path is not None:
        return read_keys(path)
    given = os.environ.get(variable, "")
    return tuple(key.strip() for key in given.split(",") if key.strip())


def _say(listen: Listen, models: Any) -> None:
    names = ", ".join(model.name for model in models)
    click.echo(f"Serving {names} on {listen}; Ctrl-C stops it", err=True)
