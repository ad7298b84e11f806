"""`embedlib bench-write`: measure how fast a destination writes rows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from embedlib.bench.options import WriteOptions
from embedlib.cli.json_output import json_option, show
from embedlib.cli.progress import measuring
from embedlib.cli.usage_errors import refuse

_DEFAULTS = {field.name: field.default for field in fields(WriteOptions)}


@click.command("bench-write")
@click.option("--to", "url", required=True, metavar="URL", help="New destination to write to.")
@click.option("--num-rows", default=_DEFAULTS["num_rows"], help="Rows per round.")
@click.option("--dim", default=_DEFAULTS["dim"], help="Dimensions of the vectors.")
@click.option("--batch-rows", default=_DEFAULTS["batch_rows"], help="Rows per write.")
@click.option("--rounds", default=_DEFAULTS["rounds"], help="Number of rounds.")
@click.option(
    "--vs-langchain",
    is_flag=True,
    help="Also measure add_embeddings of langchain-postgres, in turns; only for postgresql://.",
)
@click.option(
    "--vs-qdrant-client",
    is_flag=True,
    help="Also measure upload_collection of qdrant-client, in turns; only for qdrant://.",
)
@click.option(
    "--model", "-m", help="Also measure `index` and `encode` of real texts with this model."
)
@click.option(
    "--num-texts",
    default=_DEFAULTS["num_texts"],
    help="With --model: maximum number of texts.",
)
@json_option
def bench_write(json_path: str | None, **options: Any) -> None:
    """Measure how fast a destination writes rows.

    The vectors are computed in advance. The destination must be new, or hold only rows of an
    earlier measurement, which are dropped. Its search index is built once, after the last round,
    and timed separately, unless --num-rows is more than 100,000.

    \b
    Example:
      embedlib bench-write --to 'postgresql://localhost/test?table=bench' --vs-langchain
    """
    from embedlib.bench.write import render, run_write_bench

    if options["model"] is None:
        refuse("is for real texts; add --model", "num_texts")
    asked = WriteOptions(**options)
    with measuring() as report:
        result = run_write_bench(asked, report)
    show(result.as_json(), render(result), json_path)
