"""`embedlib compile`: write an engine directory, a model with its weights in a lower precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.fidelity_rows import fidelity_rows
from embedlib.cli.json_output import print_json
from embedlib.cli.options import (
    MODEL_OPTIONS,
    GroupedCommand,
    ModelArgument,
    Share,
    config_options,
)
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.cli.table import print_table
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config

if TYPE_CHECKING:
    from embedlib.fidelity.measure import Reference
    from embedlib.models.compiled.engine_folder import CompiledPrecision, FileDigest
    from embedlib.models.compiled.fidelity_report import FidelityReport


@click.command(cls=GroupedCommand)
@click.argument("model", cls=ModelArgument, required=False)
@click.option(
    "--precision",
    type=click.Choice(("fp8", "bf16", "int8", "int8-g128")),
    default="fp8",
    help="Precision of the linear layers. fp8 and bf16 are for GPUs and write all other weights in "
    "bfloat16; int8 and the faster, coarser int8-g128 are for CPUs and leave them unchanged.",
)
@click.option(
    "--fidelity",
    type=Share(),
    metavar="COSINE",
    help="Not for bf16: keep as many layers in a higher precision as it takes to reach this mean "
    "cosine to the model's own vectors; 99 of 100 texts may be up to twice as far from 1. "
    "0.999 is the gate of --precision auto in other commands. Without an FP8 GPU, fp8 is emulated, "
    "which needs torch.",
)
@click.option(
    "--against",
    type=click.Choice(("float32", "bf16")),
    help="Precision that --fidelity compares with: float32 on the CPU, or bf16 on the GPU, for "
    "models that would take hours in float32.  [default: float32]",
)
@click.option(
    "--texts",
    "texts_path",
    type=FilePath(path_type=Path, dir_okay=False, exists=True),
    help="File of texts to measure on, one per line; every fourth is a query.  [default: built-in "
    "texts]",
)
@click.option(
    "-o",
    "--out",
    type=FilePath(path_type=Path),
    help="Folder to write.  [default: one in --engine-cache-dir]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON object.")
@config_options("template", "device", "engine_cache_dir", "threads", *MODEL_OPTIONS)
def compile(
    model: str,
    precision: CompiledPrecision,
    fidelity: float | None,
    against: Reference | None,
    texts_path: Path | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write MODEL with its weights in FP8, bfloat16 or int8.

    The result is an engine directory, for engines that compute in this precision. Compiling needs
    no GPU, and a directory that is up to date is not written again. MODEL is a folder, a hub name,
    or package:NAME, of an embedding model, reranker or classifier.

    \b
    Examples:
      embedlib compile BAAI/bge-en-icl --out bge-en-icl-fp8
      embedlib compile BAAI/bge-en-icl --fidelity 0.999 --against bf16
      embedlib compile BAAI/bge-small-en-v1.5 --precision int8 --fidelity 0.999
    """
    if fidelity is None:
        refuse("is for measuring; give --fidelity too", "texts_path", "against", "device")
    elif precision == "bf16":
        raise click.UsageError("--fidelity is for fp8 and int8; bf16 has no layers to choose")
    config = Config(**options)

    from embedlib.models.compiled.compile import compile_model
    from embedlib.models.compiled.engine_folder import load_manifest
    from embedlib.models.opening import OpenedModel

    measured: FidelityReport | None = None
    with loading(model, config.cache_folder) as progress:
        if fidelity is None or precision == "bf16":
            files = OpenedModel.find(model, config).read_source()
            report = progress.watch_counts("Compiling", "B")
            compiled = compile_model(files, precision, (), config, out=out, report=report)
        else:
            from embedlib.fidelity import Gate, compile_to_gate, read_texts

            compiled, comparison = compile_to_gate(
                model,
                precision,
                gate=Gate.of_mean(fidelity),
                texts=None if texts_path is None else read_texts(texts_path),
                reference=against or "float32",
                config=config,
                out=out,
                report=progress.watch_counts("Choosing layers", "measurements"),
            )
            measured = comparison.report
    manifest = load_manifest(compiled)
    before, after = _num_bytes(manifest.inputs), _num_bytes(manifest.outputs)
    if as_json:
        content = {
            "folder": str(compiled),
            "precision": manifest.precision,
            "excluded": list(manifest.excluded),
            "bytes": after,
            "source_bytes": before,
            "made_from": manifest.fingerprint,
            **({"fidelity": measured.as_json()} if measured else {}),
        }
        print_json(content, indent=2)
        return
    print_table(
        [
            ("folder", str(compiled)),
            ("precision", manifest.precision),
            ("size", f"{after / 1e6:.1f} MB, from {before / 1e6:.1f} MB"),
            ("made from", manifest.fingerprint),
            *(fidelity_rows(measured) if measured else []),
        ]
    )


def _num_bytes(digests: Mapping[str, FileDigest]) -> int:
    return sum(digest.num_bytes for digest in digests.values())
