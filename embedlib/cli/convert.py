"""`embedlib convert`: the pickled weights of a model folder as safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedlib.cli.options import GroupedCommand
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import open_progress
from embedlib.progress import Reading

if TYPE_CHECKING:
    from embedlib.models.converting.convert import Conversion


@click.command(cls=GroupedCommand)
@click.argument("folder", type=FilePath(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--out",
    "-o",
    type=FilePath(path_type=Path),
    help="New folder for a whole model without pickles.  [default: write beside the pickles]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
def convert(folder: Path, out: Path | None, as_json: bool) -> None:
    """Write the pickled weights of FOLDER as safetensors.

    Converts pytorch_model.bin, also in several files and in the folders of modules, and bge-m3's
    colbert_linear.pt and sparse_linear.pt. The pickles are read without being run, in a process of
    its own that has no network. torch is not needed.

    \b
    Examples:
      embedlib convert ./bge-m3
      embedlib convert ./bge-m3 --out ./bge-m3-safetensors
    """  # noqa: D301 - click takes \b as "keep these lines"
    from embedlib.models.converting.convert import convert_folder, describe

    reading = Reading()

    def report(num_done: int, num_all: int) -> None:
        nonlocal reading
        reading = Reading(done=min(num_done, num_all), total=num_all)

    with open_progress() as progress:
        progress.watch("Converting", "B", lambda: reading)
        done = convert_folder(folder, out, report)
    if as_json:
        click.echo(json.dumps(describe(done)))
        return
    for line in _lines(done):
        click.echo(line)


def _lines(done: Conversion) -> list[str]:
    """Say what was done, a file on each line."""
    lines = [
        f"{item.weights}: {item.num_tensors} tensors, {item.num_bytes / 1e6:.1f} MB, from "
        f"{item.pickle}"
        for item in done.written
    ]
    lines += [f"{name}: its safetensors were there" for name in done.kept]
    lines += [f"{name}: left out, no weights of the model" for name in done.left_out]
    confined = "the kernel (seccomp)" if done.confined_by == "seccomp" else "Python alone"
    return [*lines, f"{done.folder}: written by a process to which {confined} refused the network"]
