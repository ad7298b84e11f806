"""`embedlib compile`: a model's weights in the precision an engine computes in, on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.fidelity_rows import fidelity_rows
from embedlib.cli.options import MODEL_OPTIONS, config_options, make_config
from embedlib.cli.table import print_table

if TYPE_CHECKING:
    from embedlib.engines.compiled.engine_folder import Precision


@click.command()
@click.argument("model")
@click.option(
    "--precision",
    type=click.Choice(("fp8", "bf16", "int8")),
    default="fp8",
    show_default=True,
    help="Of the linear layers. fp8 and bf16 are for GPUs, with everything else in bfloat16; int8 "
    "is for CPUs, with everything else as it is.",
)
@click.option(
    "--fidelity",
    type=click.FloatRange(0, 1),
    metavar="COSINE",
    help="Only with int8: measure, and keep as many layers as it takes for this mean cosine to the "
    "model's own vectors; 99 of 100 texts may be twice as far off. 0.999 is what an Embedder asks "
    "for.",
)
@click.option(
    "--texts",
    "texts_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File to measure on: one text per line, each fourth one a query.  [default: built-in "
    "texts]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder to write.  [default: one in the folder for compiled models]",
)
@config_options("engine_cache_dir", "threads", *MODEL_OPTIONS)
def compile(
    model: str,
    precision: Precision,
    fidelity: float | None,
    texts_path: Path | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Write MODEL with its weights in FP8, bfloat16 or int8.

    The result is a folder for engines that compute in this precision; no GPU is needed to make it.
    A second call finds it. MODEL is a folder, a hub name, or package:NAME.

    \b
    Examples:
      embedlib compile BAAI/bge-en-icl --out bge-en-icl-fp8
      embedlib compile BAAI/bge-small-en-v1.5 --precision int8 --fidelity 0.999
    """  # noqa: D301 - click takes \b as "keep these lines"
    if fidelity is not None and precision != "int8":
        raise click.UsageError(
            f"--fidelity needs --precision int8; nothing here computes in {precision}"
        )
    if texts_path is not None and fidelity is None:
        raise click.UsageError("--texts is what --fidelity measures on; give both")
    config = make_config(options)

    from tqdm import tqdm

    from embedlib.engines.compiled.compile import compile_model
    from embedlib.engines.compiled.engine_folder import check_not_compiled, load_manifest
    from embedlib.models.files import read_model_files
    from embedlib.models.hub import resolve

    folder = resolve(
        model,
        revision=config.revision,
        token=config.token,
        cache_folder=config.cache_folder,
        local_files_only=config.local_files_only,
    )
    check_not_compiled(folder.path)
    files = read_model_files(folder.path)
    is_quiet = not sys.stderr.isatty()
    measured = []
    with tqdm(unit="B", unit_scale=True, desc="Compiling", disable=is_quiet) as bar:

        def show(num_done: int, num_all: int) -> None:
            bar.total = num_all
            bar.update(num_done - bar.n)

        if fidelity is None:
            compiled = compile_model(files, precision, (), config, out=out, report=show)
        else:
            from embedlib.fidelity import Gate, compile_to_gate, read_texts

            bar.unit, bar.unit_scale = " measurements", False
            compiled, comparison = compile_to_gate(
                files,
                config,
                gate=Gate.of_mean(fidelity),
                texts=None if texts_path is None else read_texts(texts_path),
                out=out,
                report=show,
            )
            measured = fidelity_rows(comparison.report)
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
            *measured,
        ]
    )
