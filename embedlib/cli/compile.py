"""`embedlib compile`: a model's weights in the precision an engine computes in, on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.options import MODEL_OPTIONS, config_options, make_config
from embedlib.cli.table import print_table

if TYPE_CHECKING:
    from embedlib.engines.engine_folder import Precision


@click.command()
@click.argument("model")
@click.option(
    "--precision",
    type=click.Choice(("fp8", "bf16")),
    default="fp8",
    show_default=True,
    help="Of the linear layers; everything else is bfloat16.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder to write.  [default: one in the folder for compiled models]",
)
@config_options("engine_cache_dir", *MODEL_OPTIONS)
def compile(model: str, precision: Precision, out: Path | None, **options: Any) -> None:
    """Write MODEL with its weights in FP8 or bfloat16.

    The result is a model folder for engines that compute in this precision; no GPU is needed to
    make it. A second call finds it. MODEL is a folder, a hub name, or package:NAME.

    \b
    Example:
      embedlib compile BAAI/bge-en-icl --out bge-en-icl-fp8
    """  # noqa: D301 - click takes \b as "keep these lines"
    config = make_config(options)

    from tqdm import tqdm

    from embedlib.engines.compile import compile_model
    from embedlib.engines.engine_folder import load_manifest
    from embedlib.models.files import read_model_files
    from embedlib.models.hub import resolve

    folder = resolve(
        model,
        revision=config.revision,
        token=config.token,
        cache_folder=config.cache_folder,
        local_files_only=config.local_files_only,
    )
    files = read_model_files(folder.path)
    with tqdm(unit="B", unit_scale=True, desc="Compiling", disable=not sys.stderr.isatty()) as bar:

        def show(num_done: int, num_bytes: int) -> None:
            bar.total = num_bytes
            bar.update(num_done - bar.n)

        compiled = compile_model(files, precision, (), config, out=out, report=show)
    manifest = load_manifest(compiled)
    before, after = (
        sum(digest.num_bytes for digest in digests.values())
        for digests in (manifest.inputs, manifest.outputs)
    )
    print_table(
        [
            ("folder", str(compiled)),
            ("precision", precision),
            ("size", f"{after / 1e6:.1f} MB, from {before / 1e6:.1f} MB"),
            ("made from", manifest.fingerprint),
        ]
    )
