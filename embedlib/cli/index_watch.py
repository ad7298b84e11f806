"""`embedlib index --watch`: one load after another, until Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

import click

from embedlib.cli.index_lines import summary

if TYPE_CHECKING:
    from embedlib.indexing.options import IndexOptions
    from embedlib.indexing.report import IndexReport
    from embedlib.indexing.sinks.protocol import Tell
    from embedlib.indexing.sources.files import FileSource
    from embedlib.indexing.sources.protocol import SourceOptions
    from embedlib.progress.phases import Progress


def open_passes(
    folders: Sequence[str],
    how_read: SourceOptions,
    options: IndexOptions,
    tell: Tell,
    *,
    sql: str | None,
    ray: str | None,
) -> Iterator[FileSource]:
    """Return the sources of all passes; each blocks until something has changed.

    Raises:
        UsageError: an option is for a single load.
        ConfigError: a source is no folder.
    """
    from embedlib.indexing.watching import changed_sources, check_watch, folder_changes

    for option, value in (("--sql", sql), ("--ray", ray)):
        if value is not None:
            raise click.UsageError(f"--watch is for folders, and not with {option}")
    check_watch(folders, options, how_read)
    return changed_sources(
        *(folders, how_read, tell),
        changes=folder_changes(folders),
        reads_all=options.delete_missing,
    )


def first_source(sources: Iterator[FileSource]) -> FileSource:
    """Return the source of the first pass; Ctrl-C while there is no file to read is the end."""
    try:
        return next(sources)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(0) from None


def run_passes(
    sources: Iterator[FileSource],
    load: Callable[[FileSource], IndexReport],
    first: IndexReport,
    name: str,
    progress: Progress,
    as_json: bool,
) -> IndexReport:
    """Load one source after another and return the counts of all loads together.

    Ctrl-C is the end if it comes while nothing is loaded.

    Args:
        sources: after the first.
        load: loads one.
        first: report of the first load.
        name: of the destination.
        progress: shows nothing between two loads.
        as_json: whether a report is an object of JSON.
    """
    total, report = first, first
    while True:
        progress.pause()
        if as_json:
            click.echo(json.dumps({"name": name, **asdict(report)}))
        else:
            click.echo(next(summary(report, name, is_dry=False)))
        try:
            source = next(sources)
        except KeyboardInterrupt:
            return total
        report = load(source)
        total = _sum(total, report)


def _sum(one: IndexReport, other: IndexReport) -> IndexReport:
    """Add the counts; what only a load of everything says is left out."""
    names = {each.name for each in fields(one) if each.name.startswith("num_")} - {"num_other"}
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    return replace(one, **sums, seconds=one.seconds + other.seconds, num_other=None)
