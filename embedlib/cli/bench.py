"""`embedlib bench`: measure embedlib and its peers on this machine, side by side."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from embedlib.bench.options import BenchOptions, RerankOptions, ServeBenchOptions, TextOptions
from embedlib.bench.peers import ALL_PEERS, PEERS, RERANK_PEERS, missing_of
from embedlib.cli.json_output import json_option, show
from embedlib.cli.options import (
    MODEL_OPTIONS,
    GroupedCommand,
    config_options,
)
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import measuring
from embedlib.cli.settings import missing_model, model_setting
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config
from embedlib.errors import without_passwords
from embedlib.packages.installing import install_line

_DEFAULTS = {field.name: field.default for field in fields(BenchOptions)}
_TOKEN = "--token"


@click.command(cls=GroupedCommand)
@click.argument("model", required=False)
@click.option(
    "--task",
    type=click.Choice(("encode", "rerank")),
    default="encode",
    help="What to measure. encode: embedding texts. rerank: sorting the candidates of one query; "
    "without MODEL, with shape:minilm-reranker.",
)
@click.option(
    "--serve",
    "serves",
    is_flag=True,
    help="Measure the server instead: through its port beside the same model in process, and its "
    "own cost with an engine that answers at once.",
)
@click.option(
    "--vs-url",
    "urls",
    metavar="NAME=URL",
    multiple=True,
    help="With --serve: the embeddings route of another server, which runs already and serves the "
    "same model by the name MODEL. Give it once for each.",
)
@click.option(
    "--vs",
    metavar="PEER[,PEER]",
    multiple=True,
    help=f"Peers to compare with, or {ALL_PEERS}: {', '.join(PEERS)}. For rerank: "
    f"{', '.join(RERANK_PEERS)}. One that is not installed is named in the result, with what "
    "brings it.  [default: none]",
)
@click.option(
    "--python",
    "pythons",
    metavar="PEER=INTERPRETER",
    multiple=True,
    help="Run this peer with another interpreter, whose environment has it and embedlib. Give it "
    "once for each such peer.",
)
@click.option(
    "--text-tokens",
    type=int,
    help="Mean length of the texts, which are cut from the docstrings; lengths spread by a third "
    "of it.  [default: docstrings as they are]",
)
@click.option(
    "--texts",
    "texts_path",
    type=FilePath(path_type=Path, dir_okay=False, exists=True),
    help="File with one text per line.  [default: docstrings of Python's standard library; for "
    "rerank, pieces of 200 tokens of them]",
)
@click.option(
    "--num-texts",
    default=_DEFAULTS["num_texts"],
    help="Maximum number of texts in a bulk pass, or of candidates.",
)
@click.option(
    "--rounds",
    default=_DEFAULTS["rounds"],
    help="Number of turns of each peer; more turns make the spread more reliable.",
)
@click.option(
    "--query-seconds",
    default=_DEFAULTS["query_seconds"],
    help="Seconds of single queries, for embedlib and each peer alone and again during a bulk job.",
)
@json_option
@config_options("threads", "max_batch_tokens", *MODEL_OPTIONS)
def bench(
    model: str | None,
    task: str,
    serves: bool,
    urls: tuple[str, ...],
    vs: tuple[str, ...],
    pythons: tuple[str, ...],
    text_tokens: int | None,
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
    threads, on the CPU. A library computes as it comes, unless its name here says otherwise; what
    each makes of the vectors stands beside its speed. MODEL is a folder, a hub name,
    package:NAME, or shape:NAME: seeded random weights in the shape of minilm, bert-base,
    bert-large, qwen3-0.6b, mistral-7b or, for rerank, minilm-reranker and bge-reranker-v2-m3;
    shape:NAME/2 has two layers of it.

    \b
    Examples:
      embedlib bench BAAI/bge-small-en-v1.5 --num-texts 200 --rounds 1
      embedlib bench ./model --vs sentence-transformers,sentence-transformers-openvino --json r.json
      embedlib bench --task rerank --vs sentence-transformers
      embedlib bench --serve ./model --vs-url tei=http://127.0.0.1:3000/v1/embeddings
    """
    if model is None and task == "encode":
        model = model_setting()
        if model is None:
            raise missing_model(click.get_current_context(), "model")
    if urls and not serves:
        raise click.UsageError("--vs-url is for --serve; leave it out")
    if serves and (task != "encode" or vs or pythons or text_tokens is not None):
        raise click.UsageError("--serve goes without --task, --vs, --python and --text-tokens")
    shared: dict[str, Any] = {
        "model": model,
        "texts_path": texts_path,
        "num_texts": num_texts,
        "rounds": rounds,
        "config": Config(**options),
    }
    if serves:
        from embedlib.bench.serve_table import render_serve
        from embedlib.bench.serving import run_serve

        named = _pairs(urls, "--vs-url", "NAME=URL")
        serve = ServeBenchOptions(**shared, urls=named, query_seconds=query_seconds)
        if missing := missing_of(("uvicorn", "uvloop", "httptools", "msgspec", "orjson")):
            raise click.ClickException(f"{', '.join(missing)} missing; {install_line('serve')}")
        values, table = _measure(run_serve, serve, render_serve)
    elif task == "rerank":
        from embedlib.bench.rerank import run_rerank
        from embedlib.bench.table import render_rerank

        if pythons or text_tokens is not None:
            raise click.UsageError("--python and --text-tokens are for --task encode; leave it out")
        refuse("is for --task encode and --serve; leave it out", "query_seconds")
        rerank = RerankOptions(**shared, vs=_names(vs, RERANK_PEERS))
        values, table = _measure(run_rerank, rerank, render_rerank)
    else:
        from embedlib.bench.run import run_bench
        from embedlib.bench.table import render

        named = _pairs(pythons, "--python", "PEER=INTERPRETER")
        encode = BenchOptions(
            **shared,
            vs=_names(vs, PEERS),
            # A shell leaves the ~ behind a = as it is.
            pythons={peer: os.path.expanduser(python) for peer, python in named.items()},
            text_tokens=text_tokens,
            query_seconds=query_seconds,
        )
        values, table = _measure(run_bench, encode, render)
    show(values, table, json_path)


def _measure(
    run: Callable[..., Any], asked: TextOptions, render: Callable[[Any], str]
) -> tuple[dict[str, Any], str]:
    """Return the result as plain values and as a table."""
    from embedlib.measuring.machine_facts import describe_machine

    command = shlex.join(["embedlib", *_without_secrets(sys.argv[1:])])
    with measuring() as report:
        result = run(asked, machine=describe_machine(), command=command, report=report)
    return result.as_json(), render(result)


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of a command as results keep them, which are shown to others."""
    before = ""
    for argument in arguments:
        if before == _TOKEN:
            yield "***"
        elif argument.startswith(f"{_TOKEN}="):
            yield f"{_TOKEN}=***"
        else:
            yield without_passwords(argument)
        before = argument


def _names(texts: tuple[str, ...], known: Iterable[str]) -> tuple[str, ...]:
    names = [name.strip() for name in ",".join(texts).split(",") if name.strip()]
    if ALL_PEERS in names:  # also beside some of them; others are still refused
        names = list(dict.fromkeys([*known, *names]))
        names.remove(ALL_PEERS)
    return tuple(names)


def _pairs(texts: tuple[str, ...], option: str, form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise click.UsageError(f"{option} {text!r}: give {form}")
        if name in pairs:
            raise click.UsageError(f"{option} {text!r}: {name!r} is given twice; leave one out")
        pairs[name] = value
    return pairs
