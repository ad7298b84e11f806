"""`embedlib tune`: find how a model runs fastest on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.json_output import print_json
from embedlib.cli.options import (
    MODEL_OPTIONS,
    PATIENT_SECONDS,
    GroupedCommand,
    ModelArgument,
    config_options,
)
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import measuring
from embedlib.config import Config

if TYPE_CHECKING:
    from embedlib.tuning import Tuned


@click.command(cls=GroupedCommand)
@click.argument("model", cls=ModelArgument, required=False)
@click.option(
    "--minutes",
    default=3.0,
    help="About how long to measure. Large models and large batches need more: a pass has too few "
    "texts for them otherwise.",
)
@click.option(
    "--texts",
    "texts_path",
    type=FilePath(path_type=Path, dir_okay=False, exists=True),
    help="File with one text per line, 32 or more, as long as those you embed.  [default: "
    "docstrings of Python's standard library]",
)
@click.option(
    "--text-tokens",
    type=int,
    help="Mean length of the texts, which are cut from the docstrings.  [default: docstrings as "
    "they are]",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@config_options(
    *("engine", "precision", "prepare", "prepare_seconds", "threads", "engine_cache_dir"),
    *MODEL_OPTIONS,
    prepare_seconds=PATIENT_SECONDS,
)
def tune(
    model: str,
    minutes: float,
    texts_path: Path | None,
    text_tokens: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find how MODEL runs fastest on this machine.

    Varies how many batches are computed at once, whether queries have a compiled model of their
    own, the library that multiplies, and the tokens of a batch. Each variation takes turns with the
    best so far; it wins if it embeds texts faster and queries do not take longer. What wins is kept
    as a profile, and from then on every model of these layers runs so on this machine, in this
    precision and with as many threads. With --precision auto it is the one that loads take. Vectors
    stay the same, up to rounding. Options that you pass to a model win over its profile. Run it
    while nothing else runs.

    \b
    Examples:
      embedlib tune BAAI/bge-base-en-v1.5 --minutes 10
      embedlib tune ./model --texts mine.txt
    """
    from embedlib.tuning import TuneOptions
    from embedlib.tuning import tune as run_tune

    asked = TuneOptions(
        minutes=minutes,
        texts_path=texts_path,
        text_tokens=text_tokens,
        config=Config(**options),
    )
    with measuring() as report:
        tuned = run_tune(model, asked, report=report)
    if as_json:
        content = asdict(tuned) | {"path": str(tuned.path)}
        print_json(content, indent=2)
        return
    click.echo(_table(tuned))


def _table(tuned: Tuned) -> str:
    """Return what was tried as a table, and below it what runs from now on."""
    from embedlib.measuring.markdown import markdown

    head = ("tried", "tokens per batch", "streams", "lanes", "library", "bulk rate")
    rows: list[tuple[str, ...]] = [(*head, "query time", "beside bulk", "verdict")]
    for number, row in enumerate(tuned.rows, 1):
        profile, bulk = row.profile, row.bulk
        rate = f"{bulk.median:.2f}x ({bulk.min:.2f} to {bulk.max:.2f})" if bulk else ""
        lanes = "one model" if profile.shares_lanes else "two models"
        settings = (f"{profile.max_batch_tokens:,}", str(profile.num_streams), lanes)
        times = [f"{time:.2f}x" if time else "" for time in (row.query, row.beside)]
        rows.append((str(number), *settings, profile.library, rate, *times, row.verdict))
    lines = [
        markdown(rows),
        "",
        "Each row beside the best before it; the last one beside the default, if they differ.",
        f"{tuned.num_texts:,} texts, {tuned.num_tokens:,} tokens a pass, {tuned.precision}; "
        f"default: {tuned.tokens_per_s:,.0f} tokens/s at first.",
        f"From now on: {tuned.profile}",
        f"Kept in {tuned.path}; remove it to return to the default.",
    ]
    return "\n".join(lines)
