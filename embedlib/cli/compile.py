"""`embedlib compile`: a model's weights in the precision an engine computes in, on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.fidelity_rows import fidelity_rows
from embedlib.cli.options import MODEL_OPTIONS, config_options
from embedlib.cli.table import print_table
from embedlib.config import Config

if TYPE_CHECKING:
    from embedlib.fidelity.measure import Reference
    from embedlib.models.compiled.engine_folder import Precision


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
    help="With fp8 and int8: measure, and keep as many layers as it takes for this mean cosine "
    "to the model's own vectors; 99 of 100 texts may be twice as far off. 0.999 is the gate of an "
    "Embedder. fp8 is measured on a GPU, or emulated, which takes torch.",
)
@click.option(
    "--against",
    type=click.Choice(("float32", "bf16")),
    help="What --fidelity takes for right: float32 on the CPU, or bf16 on the GPU, where float32 "
    "would take hours.  [default: float32]",
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
@config_options("template", "device", "engine_cache_dir", "threads", *MODEL_OPTIONS)
def compile(
    model: str,
    precision: Precision,
    fidelity: float | None,
    against: Reference | None,
    texts_path: Path | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Write MODEL with its weights in FP8, bfloat16 or int8.

    The result is a folder for engines that compute in this precision; no GPU is needed to make it.
    A second call finds it. MODEL is a folder, a hub name, or package:NAME: an embedding model,
    reranker or classifier, as its files say.

    \b
    Examples:
      embedlib compile BAAI/bge-en-icl --out bge-en-icl-fp8
      embedlib compile BAAI/bge-en-icl --fidelity 0.999 --against bf16
      embedlib compile BAAI/bge-small-en-v1.5 --precision int8 --fidelity 0.999
    """  # noqa: D301 - click takes \b as "keep these lines"
    if fidelity is not None and precision == "bf16":
        raise click.UsageError("--fidelity is for fp8 and int8; bf16 keeps every layer as it is")
    if fidelity is None:
        for name, value in (("--texts", texts_path), ("--against", against)):
            if value is not None:
                raise click.UsageError(f"{name} is for measuring; give --fidelity too")
    config = Config(**options)

    from tqdm import tqdm

    from embedlib.models.compiled.compile import compile_model
    from embedlib.models.compiled.engine_folder import load_manifest
    from embedlib.models.opening import OpenedModel

    measured = []
    with tqdm(unit="B", unit_scale=True, desc="Compiling", disable=not sys.stderr.isatty()) as bar:

        def show(num_done: int, num_all: int) -> None:
            bar.total = num_all
            bar.update(num_done - bar.n)

        if fidelity is None or precision == "bf16":
            files = OpenedModel.find(model, config).read_source()
            compiled = compile_model(files, precision, (), config, out=out, report=show)
        else:
            from embedlib.fidelity import Gate, compile_to_gate, read_texts

            bar.unit, bar.unit_scale = " measurements", False
            compiled, comparison = compile_to_gate(
                model,
                precision,
                gate=Gate.of_mean(fidelity),
                texts=None if texts_path is None else read_texts(texts_path),
                reference=against or "float32",
                config=config,
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
