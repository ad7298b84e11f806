"""`embedlib convert`: the pickled weights of a model folder as safetensors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedlib.cli.options import GroupedCommand
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import open_progress

if TYPE_CHECKING:
    from embedlib.models.converting.convert import Conversion


@click.command(cls=GroupedCommand)
@click.argument("folder", type=FilePath(path_type=Path, file_okay=False))
@click.option(
    "--out",
    "-o",
    type=FilePath(path_type=Path),
    help="New folder for a whole model without pickles.  [default: write beside the pickles]",
)
@click.option(
    "--adapter",
    metavar="TASK",
    help="Merge the adapter of this task, for a model that has one for each; needs --out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
def convert(folder: Path, out: Path | None, adapter: str | None, as_json: bool) -> None:
    """Write pickled weights as safetensors, or merge an adapter.

    Converts pytorch_model.bin, also in several files and in the folders of modules, and bge-m3's
    colbert_linear.pt and sparse_linear.pt. The pickles are read without being run, in a process of
    its own that has no network. torch is not needed.

    With --adapter it writes a model with the adapter of one task merged into its weights:
    jina-embeddings-v3 and -v5 have one for each task, and no code of theirs is run.

    \b
    Examples:
      embedlib convert ./bge-m3
      embedlib convert ./bge-m3 --out ./bge-m3-safetensors
      embedlib convert ./jina-v5 --adapter retrieval --out ./jina-v5-retrieval
    """
    from embedlib.models.converting.convert import convert_folder
    from embedlib.models.converting.merge import merge_adapter

    if not folder.is_dir():
        raise click.BadParameter(
            f"there is no folder {str(folder)!r}; give one with a model's files, which "
            "`hf download BAAI/bge-m3 --local-dir bge-m3` makes of a hub name",
            param_hint="'FOLDER'",
        )
    if adapter is not None and out is None:
        raise click.UsageError("--adapter needs --out, a new folder for the merged model")
    with open_progress() as progress:
        report = progress.watch_counts("Converting", "B")
        if adapter is not None and out is not None:
            merged = merge_adapter(folder, adapter, out, report)
            facts = asdict(merged)
            lines = [
                f"{merged.folder}: {merged.num_tensors} tensors, {merged.num_changed} of them "
                f"with the adapter {merged.adapter}, in float32"
            ]
        else:
            done = convert_folder(folder, out, report)
            facts, lines = asdict(done), _lines(done)
    for line in [json.dumps(facts, default=str)] if as_json else lines:
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
