"""`embedlib status`: show what a destination contains."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict

import click

from embedlib.cli.table import print_table
from embedlib.errors import count_of

_OTHERS = {"old": "kept until drop-old", "beside": "loaded beside, not found"}


@click.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(url: str, as_json: bool) -> None:
    """Show rows, model and search index of the destination URL.

    \b
    Example:
      embedlib status 'postgresql://localhost/shop?table=tickets'
    """
    from embedlib.indexing.replacing import other_rows
    from embedlib.indexing.searches.searching import stored_state
    from embedlib.indexing.sinks.opening import open_sink

    with closing(open_sink(url)) as sink:
        others = other_rows(sink)
        state = stored_state(sink)
        name = sink.name
    if as_json:
        more = {key: asdict(each) for key, each in others.items()}
        click.echo(json.dumps({"name": name, **asdict(state), **more}))
        return
    print_table(
        [
            ("destination", name),
            ("rows", f"{state.num_rows:,}"),
            ("dimension", str(state.dim)),
            ("similarity", state.similarity),
            ("model", state.model),
            ("precision", state.precision or "not stored"),
            ("fingerprint", state.fingerprint),
            ("search index", state.index),
            *([("sparse vectors", state.sparse.model)] if state.sparse else []),
            *([("full-text index", state.full_text)] if state.full_text else []),
            *(
                (_OTHERS[key], f"{count_of(each.num_rows, 'row')} of {each.model}")
                for key, each in others.items()
            ),
        ]
    )
