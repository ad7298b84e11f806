"""`embedlib index`: embed texts and write them to a vector database."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.document_options import (
    INDEX_DEFAULTS,
    check_glob,
    chunk_options,
    source_options,
    take_source_options,
)
from embedlib.cli.index_lines import Watch, summary
from embedlib.cli.index_watch import first_source, open_passes, run_passes
from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    PATIENT_SECONDS,
    GroupedCommand,
    config_options,
)
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading, on_interrupt
from embedlib.cli.ray_option import ray_option
from embedlib.cli.settings import model_setting
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config
from embedlib.indexing.options import IndexOptions

if TYPE_CHECKING:
    from embedlib.embedder import Embedder
    from embedlib.indexing.report import IndexReport
    from embedlib.indexing.sinks.protocol import Sink, Tell
    from embedlib.indexing.sources.files import FileSource
    from embedlib.indexing.sources.protocol import Source, SourceOptions
    from embedlib.indexing.workers import ClusterEmbedder

_EXIT_BAD_ROWS = 3


@click.command(cls=GroupedCommand)
@click.argument("sources", nargs=-1, type=FilePath())
@click.option(
    "--model",
    "-m",
    help="Folder, pack, hub name or package:NAME.  [default: the name stored in the destination, "
    "of a new one EMBEDLIB_MODEL]",
)
@click.option(
    "--to",
    "sink",
    required=True,
    metavar="URL",
    help="Destination: postgresql://HOST/DB?table=T, pglocal:PATH?table=T, "
    "qdrant://HOST:6334/COLLECTION, edge:PATH, jsonl:FILE, npy:FILE, parquet:FILE.",
)
@source_options
@click.option(
    "--chunk/--no-chunk",
    default=INDEX_DEFAULTS["chunk"],
    help="Divide long texts into chunks, each a row of its own.",
)
@chunk_options
@click.option(
    "--delete-missing", is_flag=True, help="At the end, delete rows that are not in SOURCES."
)
@click.option(
    "--max-delete",
    default=INDEX_DEFAULTS["max_delete"],
    help="Maximum share of the rows, 0 to 1, that --delete-missing deletes; more is an error.",
)
@click.option("--recreate", is_flag=True, help="Drop the stored rows and start over.")
@click.option(
    "--replace",
    is_flag=True,
    help="Change the model: load beside the stored rows, which searches find until all is checked.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Count rows, estimate the time and check the destination; write nothing.",
)
@click.option("--limit", type=int, metavar="N", help="Read only the first N documents.")
@click.option(
    "--shard",
    metavar="I/N",
    help="Read only part I of N; the parts may run on different machines.",
)
@ray_option("Let the workers of a Ray cluster embed", "SOURCES")
@click.option(
    "--ray-workers",
    type=int,
    metavar="N",
    help="Workers of --ray.  [default: one for each GPU, or for each machine]",
)
@click.option(
    "--batch-rows",
    default=INDEX_DEFAULTS["batch_rows"],
    help="Maximum rows in flight, of each worker; a killed run re-embeds at most this many.",
)
@click.option(
    "--on-error",
    type=click.Choice(("skip", "stop")),
    default=INDEX_DEFAULTS["on_error"],
    help="What to do with a bad row. With skip, the exit code is 3 if any row was skipped.",
)
@click.option(
    "--errors-file",
    type=FilePath(path_type=Path, dir_okay=False),
    help="Write the place, id and reason of every bad row to this file, as JSON Lines.",
)
@click.option(
    "--halfvec",
    is_flag=True,
    help="pgvector: store 16-bit vectors; the same as halfvec=true in the URL.",
)
@click.option(
    "--sparse",
    metavar="MODEL",
    help="Store sparse vectors of this model beside the others, such as naver/splade-v3; the name "
    "of --model itself if it makes both (BAAI/bge-m3).",
)
@click.option(
    "--full-text",
    metavar="LANGUAGE",
    help="Index the words as well, for search --hybrid: english, german, ... or simple.",
)
@click.option(
    "--watch",
    "is_watched",
    is_flag=True,
    help="Go on after the load: load again what changes in the folders SOURCES, until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
@config_options(
    "truncate_dim",
    "max_active_dims",
    "max_seq_tokens",
    *ENGINE_OPTIONS,
    *MODEL_OPTIONS,
    prepare_seconds=PATIENT_SECONDS,
)
def index(
    sources: tuple[str, ...],
    model: str | None,
    sink: str,
    sql: str | None,
    ray: str | None,
    ray_workers: int | None,
    halfvec: bool,
    sparse: str | None,
    is_watched: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Load a vector database or a file with the texts of SOURCES.

    Embeds the texts and writes them with their vectors to the destination of --to.

    SOURCES are files, folders or URLs such as s3://BUCKET/PREFIX: text, Markdown, HTML, CSV, TSV,
    JSON Lines (also .gz), PDF, DOCX and Parquet; - is standard input. With --sql, SOURCES is the
    URL of one Postgres or SQLite database.

    If a run is interrupted or killed, run the same command again: it continues. Later runs embed
    only what has changed.

    \b
    Examples:
      embedlib index docs/ --model BAAI/bge-small-en-v1.5 --to edge:my-docs
      embedlib index tickets.csv -m BAAI/bge-m3 --to 'postgresql://localhost/shop?table=tickets'
      embedlib index sqlite:app.db --sql 'SELECT id, body FROM post' -m ./model --to jsonl:out.jsonl
    """
    settings = {name: options.pop(name) for name in list(options) if name in INDEX_DEFAULTS}
    how_read = take_source_options(options)
    if not settings["delete_missing"]:
        refuse("is for --delete-missing; add it", "max_delete")
    if how_read.since_field is None:
        refuse("is for --since-field; add it", "since_overlap")
    if sql is not None:
        refuse("is for files, not for --sql", "input_format", "glob", "id_prefix", "id_root")
    check_glob(sources)
    if sparse is None:
        refuse("is for sparse vectors; add --sparse MODEL", "max_active_dims")
    config = Config(**options)
    if halfvec:
        sink += "&halfvec=true" if "?" in sink else "?halfvec=true"

    from embedlib.indexing.pipeline import index as run_index
    from embedlib.indexing.sinks.opening import open_sink
    from embedlib.indexing.workers import check_ray

    # Its warnings about every PDF that is a little damaged would stand between our lines.
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    with loading(model, config.cache_folder) as progress:
        tell = progress.say
        watch = Watch(progress)
        if sql is None:
            _check_stdin(sources)
        # Errors in the command are reported before the model is loaded.
        checked = IndexOptions(**settings)
        check_ray(ray, ray_workers, sparse)
        destination = open_sink(sink)
        passes: Iterator[FileSource] | None = None
        if is_watched:
            passes = open_passes(sources, how_read, checked, tell, sql=sql, ray=ray)
        if passes is None:
            source = _open_source(sources, sql, how_read, tell)
        else:
            source = first_source(passes)
        cluster = None if ray is None else (ray, ray_workers)
        with ExitStack() as stack:
            stack.enter_context(closing(destination))
            embedder = _open_embedder(model, config, destination, settings, sparse, tell, cluster)
            stack.enter_context(closing(embedder))
            if cluster is not None:
                destination.close()  # the workers may write to it, and find it by its URL
            weigher = stack.enter_context(_open_sparse(sparse, embedder, config))
            if not settings["dry_run"]:
                on_interrupt(watch.kept)
            progress.watch("Opening the destination")  # may wait for another load to end
            load: Callable[..., IndexReport] = partial(
                run_index,
                embedder=embedder,
                sparse=weigher,
                tell=tell,
                on_progress=watch.told,
                **settings,
            )
            report = load(source, destination if cluster is None else sink)
            if passes is not None:
                again = partial(load, sink=sink)
                report = run_passes(passes, again, report, destination.name, progress, as_json)
    if as_json:
        click.echo(json.dumps({"name": destination.name, **asdict(report)}))
    else:
        for line in summary(report, destination.name, is_dry=settings["dry_run"]):
            click.echo(line)
    if report.num_bad:
        click.get_current_context().exit(_EXIT_BAD_ROWS)


def _check_stdin(sources: tuple[str, ...]) -> None:
    if (not sources or "-" in sources) and sys.stdin is None:
        raise click.UsageError("standard input is closed; name files or folders")
    if not sources and sys.stdin.isatty():
        raise click.UsageError("name files or folders, or pipe texts in")


def _open_source(
    sources: tuple[str, ...], sql: str | None, how_read: SourceOptions, tell: Tell
) -> Source:
    from embedlib.indexing.sources.files import open_source
    from embedlib.indexing.sources.sql import open_sql_source

    if sql is None:
        return open_source(sources or ("-",), how_read, tell)
    if len(sources) != 1:
        raise click.UsageError("--sql needs the URL of one database as the source")
    return open_sql_source(sources[0], sql, how_read, tell)


def _open_embedder(
    model: str | None,
    config: Config,
    sink: Sink,
    settings: dict[str, Any],
    sparse: str | None,
    tell: Tell,
    cluster: tuple[str, int | None] | None,
) -> Embedder | ClusterEmbedder:
    """Load the model that is named, or the one that made the stored rows, in their precision.

    It is loaded here, or by the workers of a cluster, of which the address and the number of
    workers are given. `sparse` names the model of the sparse vectors, which may be the same.
    """
    from embedlib.indexing.stored_model import config_beside_sparse, open_embedder
    from embedlib.indexing.workers import find_workers, state_to_fit

    state = None
    if model is None or not settings["recreate"]:
        state = state_to_fit(sink, replace=settings["replace"])
    name = model or (state.model if state else model_setting())
    if name is None:
        why = "--replace changes it" if settings["replace"] else f"{sink.name} holds no rows of one"
        raise click.UsageError(f"name a model with --model; {why}, and EMBEDLIB_MODEL is not set")
    wanted = None if settings["recreate"] else state
    config = config_beside_sparse(config, name, sparse)
    if cluster is None:
        return open_embedder(name, config, wanted, sink.name, tell)
    address, num_workers = cluster
    return find_workers()(
        *(name, address),
        config=config,
        num_workers=num_workers,
        state=wanted,
        destination=sink.name,
        tell=tell,
    )


@contextmanager
def _open_sparse(name: str | None, embedder: Any, config: Config) -> Iterator[Embedder | None]:
    """Load the model of the sparse vectors, unless it is the other one; None: there are none."""
    from embedlib.embedder import Embedder
    from embedlib.indexing.stored_model import are_same_model
    from embedlib.session.arguments import config_beside

    if name is None or are_same_model(name, embedder.model_name):
        yield None if name is None else embedder
        return

    with Embedder(name, config=config_beside(config, "max_active_dims")) as sparse:
        yield sparse
