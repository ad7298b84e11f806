"""The options of `embedlib serve` that say where it listens and what its bounds are."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from embedlib.cli.options import Decorator, TitledOption, decorated
from embedlib.cli.paths import FilePath

if TYPE_CHECKING:
    from embedlib.serve.http.server import Listen
    from embedlib.serve.options import ServeOptions

KEYS_VARIABLE: Final = "EMBEDLIB_API_KEYS"
SECRETS_VARIABLE: Final = "EMBEDLIB_WEBHOOK_SECRETS"


class _PortOption(TitledOption):
    """A port, whose variable Kubernetes sets as well, beside a service called `embedlib-serve`."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable's value; None: there is none, or it is the address of a service."""
        value = super().resolve_envvar_value(ctx)
        return None if value is not None and re.match(r"(tcp|udp|sctp)://", value) else value


def take_listen(options: dict[str, Any]) -> Listen:
    """Take the options out that say where the server listens."""
    from embedlib.serve.http.server import Listen

    return Listen(
        host=options.pop("host"),
        port=options.pop("port"),
        unix_socket=options.pop("uds"),
        certificate=options.pop("tls_certificate"),
        private_key=options.pop("tls_key"),
    )


def take_bounds(options: dict[str, Any], listen: Listen) -> ServeOptions:
    """Take the options out that bound the server; warns of one that anybody may use."""
    from embedlib.serve.hosts import LOOPBACK, is_loopback
    from embedlib.serve.options import MIB, ServeOptions

    keys = _secrets(options.pop("api_keys_file"), KEYS_VARIABLE)
    has_port = listen.unix_socket is None
    is_local = not has_port or is_loopback(listen.host)
    if not is_local and not keys:
        click.echo(
            f"Warning: anybody who reaches {listen} may use it; give --api-keys-file, or set "
            f"{KEYS_VARIABLE}",
            err=True,
        )
    names = options.pop("allowed_hosts")
    if is_local and has_port:
        names = (*LOOPBACK, listen.host, *names)
    data_dir = options.pop("data_dir")
    return ServeOptions(
        api_keys=keys,
        allowed_hosts=names or None,
        token_ids=options.pop("token_ids"),
        max_body_bytes=options.pop("max_body_mb") * MIB,
        max_bulk_texts=options.pop("max_bulk_texts"),
        max_waiting_requests=options.pop("max_waiting_requests"),
        data_dir=None if data_dir is None else str(data_dir),
        max_file_bytes=options.pop("max_file_mb") * MIB,
        max_batch_requests=options.pop("max_batch_requests"),
        keep_jobs_seconds=options.pop("keep_jobs_hours") * 3600.0,
        webhook_hosts=options.pop("webhook_hosts"),
        webhook_secrets=_secrets(
            options.pop("webhook_secrets_file"), SECRETS_VARIABLE, "webhook secret"
        ),
    )


def _secrets(path: Path | None, variable: str, what: str = "API key") -> tuple[str, ...]:
    """Return the lines of a file, or the parts of an environment variable."""
    from embedlib.serve.keys import read_keys

    if path is not None:
        return read_keys(path, what)
    given = os.environ.get(variable)
    found = tuple(key.strip() for key in (given or "").split(",") if key.strip())
    if given and not found:
        raise click.UsageError(f"{variable} is set and has no {what}; unset it, or write one")
    return found


_FILE: Final = FilePath(exists=True, dir_okay=False, path_type=Path)


def _listening() -> list[Decorator]:
    option = partial(click.option, cls=TitledOption, title="Where it listens")
    return [
        option("--host", default="127.0.0.1", help="Address to listen on."),
        option(
            "--port",
            cls=_PortOption,
            default=8080,
            type=click.IntRange(0, 65535),
            help="Port to listen on; 0: a free one, which is told.",
        ),
        option(
            "--uds",
            type=FilePath(path_type=Path),
            help="Unix socket to listen on, instead of a port.",
        ),
        option("--tls-certificate", type=_FILE, help="Certificate for TLS, a PEM file."),
        option("--tls-key", type=_FILE, help="Private key of the certificate, a PEM file."),
    ]


def _bounds() -> list[Decorator]:
    option = partial(click.option, cls=TitledOption, title="Who may use it, and how much")
    return [
        option(
            "--api-keys-file",
            type=_FILE,
            help=f"File with API keys, one a line; {KEYS_VARIABLE} has them with commas.",
        ),
        option(
            "--allow-host",
            "allowed_hosts",
            multiple=True,
            help="Name in the header Host to accept; repeat it for several. Probes, which GET by "
            "an address, are let in.  [default: any, and on a loopback address its own names]",
        ),
        option(
            "--token-ids",
            is_flag=True,
            help="Take token ids in the place of texts, as ids of the model's own tokenizer. "
            "Clients that count with another one, as langchain-openai, would get wrong vectors.",
        ),
        option(
            "--max-body-mb",
            default=32,
            type=click.IntRange(1, 4096),
            help="Size of a request's body, at most, in MiB.",
        ),
        option(
            "--max-bulk-texts",
            default=8192,
            type=click.IntRange(1),
            help="Bulk texts that a model works on; further requests wait.",
        ),
        option(
            "--max-waiting-requests",
            default=1024,
            type=click.IntRange(1),
            help="Bulk requests that may wait; more are answered with 429.",
        ),
    ]


def _jobs() -> list[Decorator]:
    option = partial(click.option, cls=TitledOption, title="Jobs")
    return [
        option(
            "--data-dir",
            type=FilePath(file_okay=False, path_type=Path),
            help="Folder for jobs: batches and asynchronous requests, which outlive the process.  "
            "[default: none, and no jobs]",
        ),
        option(
            "--max-file-mb",
            default=200,
            type=click.IntRange(1, 1 << 20),
            help="Size of an uploaded file of requests, at most, in MiB.",
        ),
        option(
            "--max-batch-requests",
            default=50_000,
            type=click.IntRange(1),
            help="Requests in one file, at most.",
        ),
        option(
            "--keep-jobs-hours",
            default=168,
            type=click.IntRange(1),
            help="Time that files and results of jobs are kept.",
        ),
        option(
            "--webhook-allow",
            "webhook_hosts",
            multiple=True,
            metavar="HOST",
            help="Host that webhooks may go to; one whose address is not public needs its address "
            "or network (10.0.0.0/8), too. Repeat it for several.  [default: none]",
        ),
        option(
            "--webhook-secrets-file",
            type=_FILE,
            help="File with secrets that webhooks are signed with, one a line; "
            f"{SECRETS_VARIABLE} has them with commas.",
        ),
    ]


server_options = decorated(*_listening(), *_bounds(), *_jobs())
"""Decorates a command with the options that `take_listen` and `take_bounds` read."""
