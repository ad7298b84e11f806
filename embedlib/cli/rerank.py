"""`embedlib rerank`: candidates in, the same sorted by how well they answer a query."""

from __future__ import annotations

import json
from typing import Any

import click

from embedlib.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS, PAIR_OPTIONS, config_options
from embedlib.cli.text_input import one_line, text_input_options
from embedlib.config import Config


@click.command()
@click.argument("query")
@click.argument("inputs", nargs=-1)
@click.option("--model", "-m", required=True, help="A reranker: folder, hub name or package:NAME.")
@click.option("-k", "--top-k", type=click.IntRange(min=1), help="Rows to show.  [default: all]")
@text_input_options
@click.option("--instruction", help="What to look for, for a model whose template asks.")
@click.option("--prompt", help="Put this in front of the query.")
@click.option("--raw-scores", is_flag=True, help="Leave the model's numbers as they are.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object per row: score, corpus_id (from 0) and the input's other fields.",
)
@config_options(*PAIR_OPTIONS, *ENGINE_OPTIONS, *MODEL_OPTIONS)
def rerank(
    query: str,
    inputs: tuple[str, ...],
    model: str,
    top_k: int | None,
    input_format: str,
    field: str,
    instruction: str | None,
    prompt: str | None,
    raw_scores: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Sort the candidates of INPUTS by how well they answer QUERY.

    INPUTS are files, read one candidate per line; without any, or for -, standard input is read.
    Empty candidates are left out.

    \b
    Examples:
      embedlib rerank "how do I copy a folder?" notes.txt --model BAAI/bge-reranker-v2-m3 -k 5
      cat hits.jsonl | embedlib rerank "a question" --model ./model --input-format jsonl --json
    """  # noqa: D301 - click takes \b as "keep these lines"
    config = Config(**options)

    from embedlib.cli.records import check_inputs, read_records
    from embedlib.indexing.sources.file_formats import STDIN
    from embedlib.reranker import Reranker

    paths = inputs or (STDIN,)
    check_inputs(paths)
    records = enumerate(read_records(paths, input_format=input_format, field=field))
    candidates = [(row, record) for row, record in records if record.text.strip()]
    with Reranker(model, config=config) as reranker:
        ranking = reranker.rank(
            query,
            [record.text for _, record in candidates],
            top_k,
            instruction=instruction,
            prompt=prompt,
            raw_scores=raw_scores,
        )
    for entry in ranking:
        row, record = candidates[entry["corpus_id"]]
        if as_json:
            told = {**record.fields, "corpus_id": row, "score": entry["score"]}
            click.echo(json.dumps(told, ensure_ascii=False))
        else:
            click.echo(f"{entry['score']:8.4f}  {one_line(record.text)}")
