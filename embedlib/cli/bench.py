"""`embedlib bench`: embedlib and its peers on this machine, side by side."""

from __future__ import annotations

import json
import os.path
import shlex
import sys
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO, get_args

import click

from embedlib.bench.options import PEERS, BenchOptions
from embedlib.cli.options import MODEL_OPTIONS, config_options
from embedlib.config import Config
from embedlib.version import __version__
from tests.acceptance.gpu.models import SHAPES
from tests.acceptance.gpu.options import BLOCKS, Device, GpuOptions

_STDOUT = "-"
_DEFAULTS = {field.name: field.default for field in fields(BenchOptions)}
_GPU_DEFAULTS = {field.name: field.default for field in fields(GpuOptions)}
_OF_CUDA = ("device", "models", "blocks", "minutes", "vllm_path")
"""Options that only a run with --engine cuda has."""
_OF_BOTH = ("engine", "json_path")


@click.command()
@click.argument("model", required=False)
@click.option(
    "--task",
    type=click.Choice(("encode", "rerank")),
    default="encode",
    show_default=True,
    help="encode: MODEL makes embeddings. rerank: it sorts the candidates of one query; without "
    "MODEL, one of MiniLM's size with random weights does.",
)
@click.option(
    "--vs",
    metavar="PEER[,PEER]",
    default="",
    help=f"Peers to run beside embedlib: {', '.join(PEERS)}. "
    "For rerank: the first. Libraries come with pip install 'embedlib[bench]'.  [default: none]",
)
@click.option(
    "--texts",
    "texts_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with one text per line.  [default: the documentation strings of Python's library; "
    "for rerank, pieces of 200 tokens of them]",
)
@click.option(
    "--num-texts",
    type=int,
    default=_DEFAULTS["num_texts"],
    show_default=True,
    help="Texts of one bulk pass, or candidates, at most.",
)
@click.option(
    "--rounds",
    type=int,
    default=_DEFAULTS["rounds"],
    show_default=True,
    help="Turns of each peer; more make the spread trustworthy.",
)
@click.option(
    "--query-seconds",
    type=float,
    default=_DEFAULTS["query_seconds"],
    show_default=True,
    help="Seconds of single queries, per contestant and again during a bulk job.",
)
@click.option(
    "--json",
    "json_path",
    metavar="PATH",
    help="Also write everything that was measured as JSON; - is standard output, and the table "
    "then goes to standard error.",
)
@click.option(
    "--engine",
    type=click.Choice(("cuda",)),
    help="Measure the CUDA engine on seeded models instead, as docs/cuda.md says; it takes only "
    "the options below and --json, which then gets a line of JSON per result, as it comes.",
)
@click.option(
    "--device",
    type=click.Choice(get_args(Device)),
    default=_GPU_DEFAULTS["device"],
    show_default=True,
    help="With --engine cuda. cpu: the same run with tiny models, which tells no speed.",
)
@click.option(
    "--models",
    metavar="NAME[,NAME]",
    default=",".join(SHAPES),
    show_default=True,
    help="With --engine cuda: whose sizes the models have.",
)
@click.option(
    "--blocks",
    metavar="NAME[,NAME]",
    default=",".join(BLOCKS),
    show_default=True,
    help="With --engine cuda: what is measured.",
)
@click.option(
    "--minutes",
    type=float,
    default=_GPU_DEFAULTS["minutes"],
    show_default=True,
    help="With --engine cuda: for everything.",
)
@click.option(
    "--vllm-path",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="With --engine cuda: the folder that vLLM was installed into, to measure it beside.",
)
@config_options("threads", "max_batch_tokens", *MODEL_OPTIONS)
@click.pass_context
def bench(
    context: click.Context,
    /,
    model: str | None,
    task: str,
    vs: str,
    texts_path: Path | None,
    num_texts: int,
    rounds: int,
    query_seconds: float,
    json_path: str | None,
    engine: str | None,
    device: Device,
    models: str,
    blocks: str,
    minutes: float,
    vllm_path: Path | None,
    **options: Any,
) -> None:
    """Measure MODEL on this machine, beside other libraries.

    All in float32, but for embedlib-int8, on the same texts and as many threads, taking turns, each
    in a process of its own: bulk rate, query latency alone and during a bulk job, start, memory,
    and how close embedlib comes to what the machine can multiply. MODEL is a folder, a hub name, or
    package:NAME.

    \b
    Examples:
      embedlib bench BAAI/bge-small-en-v1.5 --num-texts 200 --rounds 1
      embedlib bench ./model --vs sentence-transformers,sentence-transformers-openvino --json r.json
      embedlib bench --task rerank --vs sentence-transformers
      embedlib bench --engine cuda --json gpu.jsonl
    """  # noqa: D301 - click takes \b as "keep these lines"
    if json_path is not None and not Path(json_path).parent.is_dir():
        # Known before the minutes of measuring, not after.
        raise click.UsageError(f"--json {json_path!r}: there is no such folder")
    if json_path is not None and os.path.isdir(json_path):
        raise click.UsageError(f"--json {json_path!r} is a folder; give a file")
    _check_kind(context, is_cuda=engine is not None)
    if engine is not None:
        gpu_options = GpuOptions(
            models=_names(models),
            blocks=_names(blocks),
            minutes=minutes,
            device=device,
            vllm_path=vllm_path,
        )
        _bench_gpu(context, gpu_options, json_path)
        return
    if model is None and task == "encode":
        raise click.UsageError("Missing argument 'MODEL'.")
    config = Config(**options)

    from embedlib.engines.machine import describe_machine

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
        "report": _report,
    }
    if task == "rerank":
        from embedlib.bench.options import RerankOptions
        from embedlib.bench.rerank import run_rerank
        from embedlib.bench.table import render_rerank

        ranked = run_rerank(RerankOptions(**shared), **circumstances)
        _show(ranked.as_json(), render_rerank(ranked), json_path)
        return
    from embedlib.bench.run import run_bench
    from embedlib.bench.table import render

    result = run_bench(BenchOptions(**shared, query_seconds=query_seconds), **circumstances)
    _show(result.as_json(), render(result), json_path)


def _check_kind(context: click.Context, *, is_cuda: bool) -> None:
    """Refuse options that the wanted kind of run would not look at."""
    for name in context.params:
        is_default = context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT
        if is_default or name in _OF_BOTH or (name in _OF_CUDA) == is_cuda:
            continue
        option = next(option for option in context.command.params if option.name == name)
        shown = option.opts[0] if isinstance(option, click.Option) else name.upper()
        belongs = "is not for --engine cuda" if is_cuda else "is for --engine cuda"
        raise click.UsageError(f"{shown} {belongs}; leave it out")


def _bench_gpu(context: click.Context, options: GpuOptions, json_path: str | None) -> None:
    """Run, show the lines and the table, and end with 1 where something is wrong."""
    from embedlib.engines.machine import describe_machine, describe_packages
    from embedlib.measuring.provenance import checkout_commit, now
    from tests.acceptance.gpu.run import run_gpu_bench
    from tests.acceptance.gpu.table import render

    versions = describe_packages()
    circumstances = {
        "command": _command(),
        "commit": checkout_commit(),
        "date": now(),
        **describe_machine(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }
    with ExitStack() as stack:
        streams = [sys.stdout]
        needs_file = json_path not in (None, _STDOUT)

        def write(line: str) -> None:
            nonlocal needs_file
            if needs_file:
                # With the first line: a run that is refused takes no older file's place.
                streams.append(stack.enter_context(_open(str(json_path))))
                needs_file = False
            for stream in streams:
                stream.write(line + "\n")
                stream.flush()  # the run may be ended at any moment

        lines = run_gpu_bench(options, write, circumstances=circumstances, report=_report)
    click.echo(render(lines), err=json_path == _STDOUT)
    if any(line["block"] == "gate" and not line.get("passed") for line in lines):
        context.exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _command() -> str:
    return shlex.join(["embedlib", *sys.argv[1:]])


def _report(line: str) -> None:
    click.echo(line, err=True)


def _show(values: dict[str, Any], table: str, json_path: str | None) -> None:
    """Write the values where they are wanted, and the table where they are not."""
    click.echo(table, err=json_path == _STDOUT)
    if json_path is not None:
        content = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        if json_path == _STDOUT:
            click.echo(content, nl=False)
        else:
            with _open(json_path) as file:
                file.write(content)


def _open(json_path: str) -> TextIO:
    """Open the file of --json.

    Raises:
        click.ClickException: it cannot be written.
    """
    try:
        return Path(json_path).open("w", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {json_path}: {error.strerror}") from error
