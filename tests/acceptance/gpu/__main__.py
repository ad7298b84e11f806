"""`python -m tests.acceptance.gpu`: the acceptance run, from the root of a checkout."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO, get_args

import click

from embedlib.errors import EmbedlibError
from embedlib.measuring.machine_facts import describe_machine, describe_packages
from embedlib.measuring.provenance import checkout_commit, now
from tests.acceptance.gpu.journal import Line
from tests.acceptance.gpu.models import DEFAULT, SHAPES
from tests.acceptance.gpu.options import BLOCKS, Device, GpuOptions
from tests.acceptance.gpu.run import run_gpu_bench
from tests.acceptance.gpu.table import render

_DEFAULTS = {field.name: field.default for field in fields(GpuOptions)}

Run = Callable[..., list[Line]]
"""`run_gpu_bench`, or a fake in a test, which is the command's `obj`."""


def _names(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _check_folder(
    _context: click.Context, _option: click.Parameter, file: TextIO | None
) -> TextIO | None:
    """Refuse a file that cannot be opened before the minutes of measuring, not after."""
    if file is not None and not Path(file.name).parent.is_dir():
        raise click.BadParameter(f"{file.name!r}: there is no such folder")
    return file


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--models",
    metavar="NAME[,NAME]",
    default=",".join(DEFAULT),
    show_default=True,
    callback=_names,
    help=f"Models whose sizes are measured, with seeded weights: {', '.join(SHAPES)}.",
)
@click.option(
    "--blocks",
    metavar="NAME[,NAME]",
    default=",".join(BLOCKS),
    show_default=True,
    callback=_names,
    help="What to measure. The gate, which checks the vectors, always runs before.",
)
@click.option(
    "--minutes",
    type=float,
    default=_DEFAULTS["minutes"],
    show_default=True,
    help="Time for the whole run; a block that takes longer is cut short.",
)
@click.option(
    "--device",
    type=click.Choice(get_args(Device)),
    default=_DEFAULTS["device"],
    show_default=True,
    help="cpu: the same run with tiny models and emulated FP8. It shows that the run works; its "
    "speeds mean nothing.",
)
@click.option(
    "--vllm-path",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder that vLLM was installed into (pip install --target), to measure it as a peer.",
)
@click.option(
    "--json",
    "json_file",
    type=click.File("w", encoding="utf-8", lazy=True),
    callback=_check_folder,
    metavar="PATH",
    help="Also write the lines of JSON to this file. - is standard output; the table then goes to "
    "standard error.",
)
@click.pass_context
def main(context: click.Context, /, json_file: TextIO | None, **options: Any) -> None:
    """Check and measure the CUDA engine on an NVIDIA GPU, beside its peers.

    Writes one line of JSON per result to standard output, as soon as it is measured, and a table at
    the end. docs/cuda.md describes what is measured, docs/gpu-checklist.md a first session. The
    exit code is 1 if a check of the gate fails.

    \b
    Examples:
      python -m tests.acceptance.gpu --json gpu.jsonl
      python -m tests.acceptance.gpu --blocks ceilings,bulk --models bge-large --minutes 3
      python -m tests.acceptance.gpu --device cpu
    """
    run: Run = context.obj or run_gpu_bench
    is_stdout = json_file is not None and json_file.name == "-"
    streams = [sys.stdout] if json_file is None or is_stdout else [sys.stdout, json_file]
    try:
        lines = run(
            GpuOptions(**options),
            lambda line: _write(line, streams),
            circumstances=_circumstances(),
            report=lambda line: click.echo(line, err=True),
        )
    except EmbedlibError as error:
        raise click.ClickException(str(error)) from error
    click.echo(render(lines), err=is_stdout)
    if any(line["block"] == "gate" and not line.get("passed") for line in lines):
        context.exit(1)


def _write(line: str, streams: Sequence[TextIO]) -> None:
    for stream in streams:
        stream.write(line + "\n")
        stream.flush()  # the run may be killed at any moment


def _circumstances() -> dict[str, Any]:
    versions = describe_packages()
    return {
        "command": shlex.join(["python", "-m", "tests.acceptance.gpu", *sys.argv[1:]]),
        "commit": checkout_commit(),
        "date": now(),
        **describe_machine(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }


if __name__ == "__main__":
    main()
