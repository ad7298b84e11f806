"""`embedlib chunks`: show how documents are cut."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.document_options import check_glob, chunk_options, file_options
from embedlib.cli.json_output import print_json
from embedlib.cli.options import MODEL_OPTIONS, GroupedCommand, config_options
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.cli.settings import model_setting
from embedlib.cli.text_input import one_line
from embedlib.config import Config
from embedlib.errors import count_of, visible_line
from embedlib.indexing.options import IndexOptions

if TYPE_CHECKING:
    from embedlib.indexing.chunks.chunk_view import ChunkView

_EXIT_BAD_ROWS = 3


@click.command(cls=GroupedCommand)
@click.argument("sources", nargs=-1, required=True, type=FilePath())
@click.option(
    "--model",
    "-m",
    help="Folder, pack, hub name or package:NAME; only its tokenizer is used.  [default: "
    "EMBEDLIB_MODEL]",
)
@file_options
@chunk_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only N documents.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per chunk.")
@config_options("max_seq_tokens", *MODEL_OPTIONS)
def chunks(
    sources: tuple[str, ...],
    model: str | None,
    input_format: Any,
    glob: tuple[str, ...],
    text_fields: tuple[str, ...],
    chunk_tokens: int | None,
    chunk_overlap: int,
    with_headings: bool,
    prefix: str | None,
    late_chunking: bool,
    limit: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show how `embedlib index` divides SOURCES into chunks.

    Prints of each chunk its number, its lines, its tokens, the headings above it and how it begins;
    behind a + the tokens of its prefix, and with --late-chunking its window. Nothing is embedded or
    written, and no weights are loaded.

    \b
    Examples:
      embedlib chunks docs/guide.md --model BAAI/bge-small-en-v1.5
      embedlib chunks docs/ -m ./model --chunk-tokens 200 --with-headings
    """
    check_glob(sources)
    config = Config(**options)
    settings = IndexOptions(
        chunk_tokens=chunk_tokens,
        chunk_overlap=chunk_overlap,
        with_headings=with_headings,
        prefix=prefix,
        late_chunking=late_chunking,
    )

    from concurrent.futures import ThreadPoolExecutor
    from itertools import islice

    from embedlib.indexing.chunks.chunk_view import view_chunks
    from embedlib.indexing.preparing import make_chunker
    from embedlib.indexing.rows import BadRow
    from embedlib.indexing.sources.files import open_source
    from embedlib.indexing.sources.protocol import SourceOptions
    from embedlib.session.text_measure import TextMeasure

    name = model or model_setting()
    if name is None:
        raise click.UsageError("name a model with --model; EMBEDLIB_MODEL is not set")
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # as in `embedlib index`
    source_options = SourceOptions(
        input_format=input_format, glob=glob, text_field=text_fields or None
    )
    # A thread cuts, as in a load: the main one, which signals interrupt, cannot count words.
    with loading(name, config.cache_folder) as progress, ThreadPoolExecutor(1) as pool:
        source = open_source(sources, source_options, progress.say)
        measure = TextMeasure(name, config)
        cut = make_chunker(measure, settings, progress.say)
        progress.pause()
        num_bad = 0
        for document in islice(source, limit):
            if isinstance(document, BadRow):
                num_bad += 1
                click.echo(visible_line(f"skipped: {document.place}: {document.reason}"), err=True)
            else:
                [found] = pool.submit(cut, [document]).result()
                views = list(view_chunks(document.text, found, measure.tokenizer))
                _show(document.id, views, as_json=as_json)
    if num_bad:
        click.get_current_context().exit(_EXIT_BAD_ROWS)


def _show(source_id: str, views: list[ChunkView], *, as_json: bool) -> None:
    if as_json:
        for view in views:
            print_json({"source_id": source_id, **asdict(view)})
        return
    num_tokens = sum(view.num_tokens for view in views)
    click.echo(visible_line(f"{source_id}: {count_of(len(views), 'chunk')}, {num_tokens:,} tokens"))
    for view in views:
        more = f" + {view.num_prefix_tokens}" if view.num_prefix_tokens else ""
        window = "" if view.window is None else f", window {view.window}"
        path = f"  {' > '.join(view.headings)}" if view.headings else ""
        line = f"{view.chunk:>5}  {_lines(view)}, {view.num_tokens}{more} tokens{window}{path}"
        click.echo(visible_line(line))
        click.echo(f"       {one_line(view.text)}")


def _lines(view: ChunkView) -> str:
    if view.first_line == view.last_line:
        return f"line {view.first_line}"
    return f"lines {view.first_line}-{view.last_line}"
