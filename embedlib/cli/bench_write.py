"""`embedlib bench-write`: how fast a destination takes rows."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from embedlib.bench.options import WriteOptions
from embedlib.errors import SinkError

_DEFAULTS = {field.name: field.default for field in fields(WriteOptions)}


@click.command("bench-write")
@click.option("--to", "url", required=True, metavar="URL", help="A new destination.")
@click.option(
    "--num-rows", default=_DEFAULTS["num_rows"], show_default=True, help="Rows of one round."
)
@click.option(
    "--dim", default=_DEFAULTS["dim"], show_default=True, help="Dimensions of the vectors."
)
@click.option(
    "--batch-rows", default=_DEFAULTS["batch_rows"], show_default=True, help="Rows of one write."
)
@click.option("--rounds", default=_DEFAULTS["rounds"], show_default=True, help="Turns.")
@click.option(
    "--vs-langchain",
    is_flag=True,
    help="Also langchain-postgres' add_embeddings, in turns; for postgresql://.",
)
@click.option(
    "--model", "-m", help="Also `index` of real texts with this model beside `encode` of them."
)
@click.option(
    "--num-texts", default=_DEFAULTS["num_texts"], show_default=True, help="Texts of that, at most."
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write everything that was measured as JSON.",
)
def bench_write(json_path: Path | None, **options: Any) -> None:
    """Measure how fast a destination takes rows.

    Their vectors are ready. The destination must be new; the rows of a former measurement in it are
    dropped. Its search index is built once, after the last round, and timed separately, up
    to 100,000 rows.

    \b
    Example:
      embedlib bench-write --to 'postgresql://localhost/test?table=bench' --vs-langchain
    """  # noqa: D301 - click takes \b as "keep these lines"
    from embedlib.bench.write import render, run_write_bench

    result = run_write_bench(WriteOptions(**options), lambda line: click.echo(line, err=True))
    click.echo(render(result))
    if json_path is not None:
        try:
            json_path.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise SinkError(f"cannot write {json_path}: {error.strerror}") from error
