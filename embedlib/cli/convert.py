"""`embedlib convert`: the pickled weights of a model folder as safetensors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.options import MODEL_OPTIONS, GroupedCommand, config_options
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.config import Config

if TYPE_CHECKING:
    from embedlib.models.converting.convert import Conversion


@click.command(cls=GroupedCommand)
@click.argument("model", type=FilePath(file_okay=False))
@click.option(
    "--out",
    "-o",
    type=FilePath(path_type=Path),
    help="New folder for a whole model without pickles.  [default: write beside the pickles, of a "
    "hub name in the hub's cache]",
)
@click.option(
    "--adapter",
    metavar="TASK",
    help="Merge the adapter of this task, for a model that has one for each; needs --out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
@config_options(*MODEL_OPTIONS)
def convert(
    model: str, out: Path | None, adapter: str | None, as_json: bool, **options: Any
) -> None:
    """Write pickled weights as safetensors, or merge an adapter.

    MODEL is a folder, or a hub name, whose pickles are downloaded and which then loads by its name.
    Converts pytorch_model.bin, also in several files and in the folders of modules, and bge-m3's
    colbert_linear.pt and sparse_linear.pt. The pickles are read without being run, in a process of
    its own that has no network. torch is not needed.

    With --adapter it writes a model with the adapter of one task merged into its weights:
    jina-embeddings-v3 and -v5 have one for each task, and no code of theirs is run.

    \b
    Examples:
      embedlib convert BAAI/bge-m3
      embedlib convert ./bge-m3
      embedlib convert ./bge-m3 --out ./bge-m3-safetensors
      embedlib convert ./jina-v5 --adapter retrieval --out ./jina-v5-retrieval
    """
    from embedlib.models.converting.convert import convert_folder
    from embedlib.models.converting.hub_pickles import resolve_pickled
    from embedlib.models.converting.merge import merge_adapter
    from embedlib.models.hub import may_be_on_hub, resolve

    is_on_hub = may_be_on_hub(model)
    if not is_on_hub and not Path(model).is_dir():
        raise click.BadParameter(
            f"there is no folder {model!r}; give one with a model's files, or a hub name such as "
            "BAAI/bge-m3",
            param_hint="'MODEL'",
        )
    if adapter is not None and out is None:
        raise click.UsageError("--adapter needs --out, a new folder for the merged model")
    config = Config(**options)
    with loading(model, config.cache_folder) as progress:
        folder = Path(model)
        if is_on_hub:
            find = resolve_pickled if adapter is None else resolve
            folder = find(model, config).path
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
            if is_on_hub and out is None:
                lines.append(f"{model} loads by its name now")
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
