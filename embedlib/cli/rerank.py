"""`embedlib rerank`: sort candidates by how well they answer a query."""

from __future__ import annotations

from typing import Any

import click

from embedlib.cli.json_output import print_json
from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    GroupedCommand,
    config_options,
)
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading, tell_if_typed
from embedlib.cli.text_input import TEXT, one_line, text_input_options
from embedlib.config import Config
from embedlib.progress.screens import Reading


@click.command(cls=GroupedCommand)
@click.argument("query", type=TEXT)
@click.argument("inputs", nargs=-1, type=FilePath())
@click.option(
    "--model", "-m", required=True, help="Reranker: folder, pack, hub name or package:NAME."
)
@click.option(
    "-k", "--top-k", type=click.IntRange(min=1), help="Candidates to print.  [default: all]"
)
@text_input_options
@click.option(
    "--instruction",
    type=TEXT,
    help="What counts as a good answer, for a model whose template takes an instruction.",
)
@click.option("--prompt", type=TEXT, help="Put this prompt in front of the query.")
@click.option(
    "--raw-scores", is_flag=True, help="Print the model's raw scores, without sigmoid or softmax."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per candidate: score, corpus_id (row, from 0) and input fields.",
)
@config_options("template", "max_seq_tokens", "on_truncate", *ENGINE_OPTIONS, *MODEL_OPTIONS)
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

    INPUTS are files with one candidate per line; without INPUTS, or for -, candidates are read from
    standard input. Empty candidates are skipped.

    \b
    Examples:
      embedlib rerank "how do I copy a folder?" notes.txt --model BAAI/bge-reranker-v2-m3 -k 5
      cat hits.jsonl | embedlib rerank "a question" --model ./model --input-format jsonl --json
    """
    config = Config(**options)

    from embedlib.cli.records import input_paths, read_records
    from embedlib.reranker import Reranker

    paths = input_paths(inputs, input_format)
    tell_if_typed(paths)
    candidates = list(read_records(paths, input_format=input_format, field=field))
    with (
        loading(model, config.cache_folder) as progress,
        Reranker(model, config=config) as reranker,
    ):
        total = len(candidates)
        progress.watch(
            "Ranking", "pairs", lambda: Reading(done=reranker.stats().num_texts, total=total)
        )
        ranking = reranker.rank(
            query,
            # Empty ones too, which cost little: so the rows in messages are those of the input.
            [record.text for record in candidates],
            instruction=instruction,
            prompt=prompt,
            raw_scores=raw_scores,
            show_progress_bar=False,
        )
    found = [entry for entry in ranking if candidates[entry["corpus_id"]].text.strip()]
    for entry in found[:top_k]:
        record = candidates[entry["corpus_id"]]
        if as_json:
            fields = {**record.fields, "corpus_id": entry["corpus_id"], "score": entry["score"]}
            print_json(fields)
        else:
            click.echo(f"{entry['score']:8.4f}  {one_line(record.text)}")
