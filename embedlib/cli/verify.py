"""`embedlib verify`: measure how close a lower precision is to the model's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.fidelity_rows import fidelity_rows
from embedlib.cli.options import MODEL_OPTIONS, GroupedCommand, ModelArgument, Share, config_options
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.cli.table import print_table
from embedlib.config import Config
from embedlib.models.compiled.fidelity_report import Gate

if TYPE_CHECKING:
    from embedlib.fidelity.measure import Reference

_GATE = Gate()
_EXIT_FAILED = 1


@click.command(cls=GroupedCommand)
@click.argument("model", cls=ModelArgument, required=False)
@click.option(
    "--precision",
    type=click.Choice(("auto", "int8", "fp8", "bf16")),
    default="auto",
    show_default=True,
    help="Precision to measure; the model is compiled to it first if necessary. auto: the engine's "
    "fastest one. Without an FP8 GPU, fp8 is emulated, which needs torch.",
)
@click.option(
    "--against",
    type=click.Choice(("float32", "bf16")),
    default="float32",
    show_default=True,
    help="Precision to compare with: float32 on the CPU, or bf16 on the engine that is measured.",
)
@click.option(
    "--texts",
    "texts_path",
    type=FilePath(path_type=Path, dir_okay=False, exists=True),
    help="File with one text per line; every fourth is a query.  [default: built-in texts]",
)
@click.option(
    "--gate-mean",
    type=Share(),
    default=_GATE.mean,
    show_default=True,
    help="Mean cosine that the texts must reach.",
)
@click.option(
    "--gate-p1",
    type=Share(),
    default=_GATE.p1,
    show_default=True,
    help="Cosine that 99 of 100 texts must reach.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--plot",
    "plot_path",
    type=FilePath(path_type=Path, dir_okay=False),
    metavar="FILE.png",
    help="Also plot the cosines to this file; needs the extra bench.",
)
@config_options(
    "engine",
    "device",
    "threads",
    "engine_cache_dir",
    "max_seq_tokens",
    "template",
    *MODEL_OPTIONS,
)
def verify(
    model: str,
    against: Reference,
    texts_path: Path | None,
    gate_mean: float,
    gate_p1: float,
    as_json: bool,
    plot_path: Path | None,
    **options: Any,
) -> None:
    """Measure what MODEL loses in a lower precision.

    Embeds or scores each text twice on this machine, in the precision to measure and in the one to
    compare with, and reports the cosines of the results. The exit code is 1 if the cosines do not
    pass the gate. A report on 100 texts or more is stored with the compiled model; other commands
    with --precision auto use it to decide. MODEL is a folder, a hub name, or package:NAME.

    \b
    Examples:
      embedlib verify BAAI/bge-small-en-v1.5
      embedlib verify ./model --texts mine.txt --gate-mean 0.9995 --json
    """  # noqa: D301 - click takes \b as "keep these lines"
    config = Config(**options)
    draw = None
    if plot_path is not None:
        from embedlib.fidelity.plot import open_plot

        draw = open_plot(plot_path)  # fails now, not after minutes of measuring

    from embedlib.fidelity import read_texts, verify

    texts = None if texts_path is None else read_texts(texts_path)
    with loading(model, config.cache_folder) as progress:
        comparison = verify(
            model, texts=texts, reference=against, config=config, watch=progress.watch
        )
    report, gate = comparison.report, Gate(mean=gate_mean, p1=gate_p1)
    is_close = report.passes(gate)
    if as_json:
        content = {**report.as_json(), "gate": {"mean": gate.mean, "p1": gate.p1}}
        click.echo(json.dumps({**content, "passes": is_close}, indent=2, ensure_ascii=False))
    else:
        verdict = f"{'passed' if is_close else 'FAILED'}: mean {gate.mean}, p1 {gate.p1}"
        print_table([*fidelity_rows(report), ("gate", verdict)])
    if draw is not None:
        draw(comparison, gate)  # last, so that an error here does not hide the report
    if not is_close:
        click.get_current_context().exit(_EXIT_FAILED)
