"""`embedlib bench`: measure embedlib and its peers on this machine, side by side."""

from __future__ import annotations

import json
import os.path
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from embedlib.bench.options import INT8, PEERS, RERANK_PEER, BenchOptions
from embedlib.cli.options import MODEL_OPTIONS, GroupedCommand, config_options
from embedlib.cli.progress import measuring
from embedlib.config import Config
from embedlib.version import __version__

_STDOUT = "-"
_DEFAULTS = {field.name: field.default for field in fields(BenchOptions)}


@click.command(cls=GroupedCommand)
@click.argument("model", required=False)
@click.option(
    "--task",
    type=click.Choice(("encode", "rerank")),
    default="encode",
    show_default=True,
    help="What to measure. encode: embedding texts. rerank: sorting the candidates of one query; "
    "without MODEL, with a model of MiniLM's size that has random weights.",
)
@click.option(
    "--vs",
    metavar="PEER[,PEER]",
    default="",
    help=f"Peers to compare with: {', '.join(PEERS)}. For rerank: {RERANK_PEER}, {INT8}. "
    "pip install 'embedlib[bench]' installs the libraries.  [default: none]",
)
@click.option(
    "--texts",
    "texts_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with one text per line.  [default: docstrings of Python's standard library; for "
    "rerank, pieces of 200 tokens of them]",
)
@click.option(
    "--num-texts",
    type=int,
    default=_DEFAULTS["num_texts"],
    show_default=True,
    help="Maximum number of texts in a bulk pass, or of candidates.",
)
@click.option(
    "--rounds",
    type=int,
    default=_DEFAULTS["rounds"],
    show_default=True,
    help="Number of turns of each peer; more turns make the spread more reliable.",
)
@click.option(
    "--query-seconds",
    type=float,
    default=_DEFAULTS["query_seconds"],
    show_default=True,
    help="Seconds of single queries, for embedlib and each peer alone and again during a bulk job.",
)
@click.option(
    "--json",
    "json_path",
    metavar="PATH",
    help="Also write all measurements as JSON to this file; - writes them to standard output and "
    "the table to standard error.",
)
@config_options("threads", "max_batch_tokens", *MODEL_OPTIONS)
def bench(
    model: str | None,
    task: str,
    vs: str,
    texts_path: Path | None,
    num_texts: int,
    rounds: int,
    query_seconds: float,
    json_path: str | None,
    **options: Any,
) -> None:
    """Measure the speed of MODEL here, beside other libraries.

    Measures on this machine the bulk rate, query latency alone and during a bulk job, start time,
    memory, and how close embedlib comes to the matrix-multiplication speed of the machine. Embedlib
    and its peers take turns, each in its own process, on the same texts with the same number of
    threads; all compute in float32, except embedlib-int8. MODEL is a folder, a hub name,
    package:NAME, or shape:NAME: seeded random weights in the shape of minilm, bert-base,
    bert-large, qwen3-0.6b, mistral-7b or, for rerank, bge-reranker-v2-m3; shape:NAME/2 has two
    layers of it.

    \b
    Examples:
      embedlib bench BAAI/bge-small-en-v1.5 --num-texts 200 --rounds 1
      embedlib bench ./model --vs sentence-transformers,sentence-transformers-openvino --json r.json
      embedlib bench --task rerank --vs sentence-transformers
    """  # noqa: D301 - click takes \b as "keep these lines"
    if json_path is not None and not Path(json_path).parent.is_dir():
        # Reject it now, not after minutes of measuring.
        raise click.UsageError(f"--json {json_path!r}: no such folder; create it first")
    if json_path is not None and os.path.isdir(json_path):
        raise click.UsageError(f"--json {json_path!r} is a folder; give a file")
    if model is None and task == "encode":
        raise click.UsageError("Missing argument 'MODEL'.")
    config = Config(**options)

    from embedlib.measuring.machine_facts import describe_machine

    shared: dict[str, Any] = {
        "model": model,
        "vs": _names(vs),
        "texts_path": texts_path,
        "num_texts": num_texts,
        "rounds": rounds,
        "config": config,
    }
    circumstances: dict[str, Any] = {
        "machine": describe_machine(),
        "embedlib_version": __version__,
        "command": _command(),
    }
    if task == "rerank":
        from embedlib.bench.options import RerankOptions
        from embedlib.bench.rerank import run_rerank
        from embedlib.bench.table import render_rerank

        with measuring() as report:
            ranked = run_rerank(RerankOptions(**shared), **circumstances, report=report)
        _show(ranked.as_json(), render_rerank(ranked), json_path)
        return
    from embedlib.bench.run import run_bench
    from embedlib.bench.table import render

    asked = BenchOptions(**shared, query_seconds=query_seconds)
    with measuring() as report:
        result = run_bench(asked, **circumstances, report=report)
    _show(result.as_json(), render(result), json_path)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _command() -> str:
    return shlex.join(["embedlib", *sys.argv[1:]])


def _show(values: dict[str, Any], table: str, json_path: str | None) -> None:
    """Print the table, and write the values as JSON if --json was given."""
    click.echo(table, err=json_path == _STDOUT)
    if json_path is not None:
        content = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        if json_path == _STDOUT:
            click.echo(content, nl=False)
        else:
            try:
                Path(json_path).write_text(content, encoding="utf-8")
            except OSError as error:
                raise click.ClickException(f"cannot write {json_path}: {error.strerror}") from error
