"""`embedlib search`: search a destination that `embedlib index` loaded."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.json_output import print_json
from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    GroupedCommand,
    config_options,
)
from embedlib.cli.progress import loading
from embedlib.cli.text_input import TEXT, one_line
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config
from embedlib.errors import shown, visible, visible_line
from embedlib.indexing.options import CANDIDATES, SEARCH_ROWS

if TYPE_CHECKING:
    from embedlib.indexing.searches.hits import SearchHit
    from embedlib.indexing.searches.source_lines import SourceLines


@click.command(cls=GroupedCommand)
@click.argument("question", type=TEXT)
@click.option(
    "--to", "sink", required=True, metavar="URL", help="Destination that `embedlib index` loaded."
)
@click.option(
    "--model", "-m", help="Model that embedded the rows.  [default: the name stored with them]"
)
@click.option("-k", "--top-k", default=SEARCH_ROWS, help="Rows to print.")
@click.option(
    "--where",
    type=TEXT,
    metavar="FILTER",
    help="Only rows whose metadata pass, such as 'year >= 2020 and lang = \"de\"'.",
)
@click.option(
    "--rerank",
    "reranker",
    metavar="MODEL",
    help="Reranker that puts the nearest rows in order, or a late-interaction model (ColBERT).",
)
@click.option(
    "--candidates",
    default=CANDIDATES,
    type=click.IntRange(min=1),
    help="Rows that the reranker reads.",
)
@click.option(
    "--min-score",
    type=float,
    help="Leave out rows with a lower score: the reranker's, or the vectors'.",
)
@click.option(
    "--hybrid",
    is_flag=True,
    help="Search with the rows' sparse vectors (index --sparse), or their words (index "
    "--full-text), as well, and fuse the two by rank.",
)
@click.option(
    "--show",
    is_flag=True,
    help="Print the lines of the source: of the file, if it is there and has not changed, or else "
    "the stored text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
@config_options(
    *("truncate_dim", "max_active_dims", "max_seq_tokens", "on_truncate"),
    *ENGINE_OPTIONS,
    *MODEL_OPTIONS,
)
def search(
    question: str,
    sink: str,
    model: str | None,
    top_k: int,
    where: str | None,
    reranker: str | None,
    candidates: int,
    min_score: float | None,
    hybrid: bool,
    show: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the rows of a destination that are nearest to QUESTION.

    The model and its options must be the same as when the rows were loaded.

    \b
    Examples:
      embedlib search "how do I copy a folder?" --to edge:my-docs
      embedlib search "copy a folder" --to edge:my-docs --where 'lang in ("de", "en")'
      embedlib search "copy a folder" --to edge:my-docs --rerank BAAI/bge-reranker-base
      embedlib search "copy a folder" --to edge:my-docs -k 1 --show
    """
    if reranker is None:
        refuse("is for a reranker; add --rerank MODEL", "candidates")
    config = Config(**options)

    from embedlib.indexing.filters.parser import parse_filter
    from embedlib.indexing.searches.retrieval import Search
    from embedlib.indexing.searches.searching import check_query, identified_state
    from embedlib.indexing.searches.source_lines import LineFinder
    from embedlib.indexing.sinks.opening import open_sink

    check_query(question, top_k)  # before the model is loaded
    if where is not None:
        parse_filter(where, "--where")
    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_sink(sink)))
        state = identified_state(opened)
        if state.sparse is None:
            refuse(
                f"is for sparse vectors, and {opened.name} has none; leave it out",
                "max_active_dims",
            )
        progress = stack.enter_context(loading(model or state.model, config.cache_folder))
        asked = stack.enter_context(Search(opened, model, reranker, hybrid=hybrid, config=config))
        progress.watch("Searching")
        hits = asked.search(
            question, top_k, where=where, min_score=min_score, num_candidates=candidates
        )
        if not hits:
            progress.say(_nothing_found(where, min_score))
    find = LineFinder() if show else None
    for hit in hits:
        lines = find(hit) if find else None
        if as_json:
            print_json(_fields(hit, lines, is_reranked=reranker is not None))
        else:
            click.echo(visible_line(_place(hit, lines)))
            click.echo(visible(_text(hit, lines, is_whole=show)))


def _nothing_found(where: str | None, min_score: float | None) -> str:
    """Return what is told, so that no output is not taken for a failure."""
    from embedlib.indexing.filters.tokens import read_tokens

    told = "no row was found"
    if min_score is not None:
        told += f" with a score of {min_score:g} or more"
    if where is None:
        return told
    told += f" that passes --where {shown(where)}"
    typed = ("number", "true", "false")
    if any(token.kind in typed or token.text in typed for token in read_tokens(where, "--where")):
        told += '; a value of another type does not pass: "2021" is not 2021'
    return told


def _fields(hit: SearchHit, lines: SourceLines | None, *, is_reranked: bool) -> dict[str, Any]:
    return {
        "score": hit.score,
        **({"vector_score": hit.vector_score} if is_reranked else {}),
        "id": str(hit.id),
        "source_id": hit.source_id,
        "chunk": hit.chunk,
        "text": hit.text,
        "metadata": dict(hit.metadata),
        **({} if lines is None else {"first_line": lines.first_line, "lines": lines.lines}),
    }


def _place(hit: SearchHit, lines: SourceLines | None) -> str:
    """Return the score of a row, and where it is."""
    start, end = hit.metadata.get("start_index"), hit.metadata.get("end_index")
    span = "" if start is None or end is None else f" [{start}:{end}]"
    if lines is not None:
        span = f":{lines.first_line}-{lines.last_line}"
    headings = hit.metadata.get("headings")
    path = f"  {' > '.join(map(str, headings))}" if isinstance(headings, list) else ""
    return f"{hit.score:.4f}  {hit.source_id}{span}{path}"


def _text(hit: SearchHit, lines: SourceLines | None, *, is_whole: bool) -> str:
    """Return the beginning of the text, or all of it with the numbers of its lines."""
    if lines is not None:
        numbered = enumerate(lines.lines, lines.first_line)
        return "".join(f"{number:>7}  {line}\n" for number, line in numbered)
    if is_whole:
        lines_of_text = (line.removesuffix("\r") for line in hit.text.split("\n"))
        return "".join(f"         {line}\n" for line in lines_of_text)
    return f"       {one_line(hit.text)}"
