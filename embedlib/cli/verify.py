"""`embedlib verify`: measure how close a lower precision is to the model's own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from embedlib.cli.fidelity_rows import fidelity_rows
from embedlib.cli.json_output import print_json
from embedlib.cli.options import MODEL_OPTIONS, GroupedCommand, ModelArgument, Share, config_options
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.cli.table import print_table
from embedlib.cli.verify_theirs import (
    PRECISIONS,
    Against,
    TheirsOptions,
    compare_theirs,
    theirs_options,
)
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
    type=click.Choice(("auto", "int8", "int8-g128", "fp8", "bf16")),
    default="auto",
    help="Precision to measure; the model is compiled to it first if necessary. auto: the engine's "
    "fastest one, but int8 rather than int8-g128. Without an FP8 GPU, fp8 is emulated, which needs "
    "torch.",
)
@click.option(
    "--against",
    type=Against(),
    metavar="float32|bf16|URL|FILE",
    default="float32",
    help="What to compare with. A precision: float32 on the CPU, or bf16 on the engine that is "
    "measured. Or vectors made elsewhere: a file of them, or the URL of a server to ask.",
)
@click.option(
    "--texts",
    "texts_path",
    type=FilePath(path_type=Path, dir_okay=False, exists=True),
    help="File with one text per line; every fourth is a query.  [default: built-in texts] Beside "
    "--against FILE.npy, the texts of its vectors.",
)
@click.option(
    "--gate-mean",
    type=Share(),
    default=_GATE.mean,
    help="Mean cosine that the texts must reach.",
)
@click.option(
    "--gate-p1",
    type=Share(),
    default=_GATE.p1,
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
@theirs_options
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
    against: str,
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

    With --against a file or a URL it compares MODEL with vectors that another library, server or
    API made. Where they differ it looks for what was done otherwise: the prompt, the length limit,
    the pooling, the number of dimensions, the scaling. The key of a server is read from
    EMBEDLIB_VERIFY_API_KEY.

    \b
    Examples:
      embedlib verify BAAI/bge-small-en-v1.5
      embedlib verify ./model --texts mine.txt --gate-mean 0.9995 --json
      embedlib verify BAAI/bge-m3 --against old-vectors.jsonl --document
      embedlib verify BAAI/bge-m3 --against https://api.example.com/v1
    """
    theirs = TheirsOptions(**{name.name: options.pop(name.name) for name in fields(TheirsOptions)})
    config, gate = Config(**options), Gate(mean=gate_mean, p1=gate_p1)
    if against not in PRECISIONS:
        if plot_path is not None:
            raise click.UsageError("--plot is for a precision")
        rows, facts = compare_theirs(model, against, texts_path, theirs, config, gate)
        if as_json:
            print_json(facts, indent=2)
        else:
            print_table(rows)
        click.get_current_context().exit(0 if facts["same"] else _EXIT_FAILED)
    if theirs.given:
        raise click.UsageError(f"{theirs.given[0]} is for --against a file or a URL")
    draw = None
    if plot_path is not None:
        from embedlib.fidelity.plot import open_plot

        draw = open_plot(plot_path)  # fails now, not after minutes of measuring

    from embedlib.fidelity import read_texts, verify

    texts = None if texts_path is None else read_texts(texts_path)
    with loading(model, config.cache_folder) as progress:
        comparison = verify(
            model,
            texts=texts,
            reference=cast("Reference", against),
            config=config,
            watch=progress.watch,
        )
    report = comparison.report
    is_close = report.passes(gate)
    if as_json:
        content = {**report.as_json(), "gate": {"mean": gate.mean, "p1": gate.p1}}
        print_json({**content, "passes": is_close}, indent=2)
    else:
        verdict = f"{'passed' if is_close else 'FAILED'}: mean {gate.mean}, p1 {gate.p1}"
        print_table([*fidelity_rows(report), ("gate", verdict)])
    if draw is not None:
        draw(comparison, gate)  # last, so that an error here does not hide the report
    if not is_close:
        click.get_current_context().exit(_EXIT_FAILED)
