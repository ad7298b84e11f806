"""A result as people read it: Markdown tables that line up in a terminal, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embedlib.bench.result import BenchResult, ContestantResult, Spread

Row = tuple[str, ...]

_NONE = "–"  # noqa: RUF001 - a dash in an empty cell

_ROWS: tuple[tuple[str, Callable[[ContestantResult], str]], ...] = (
    ("bulk, tokens/s", lambda one: f"{one.tokens_per_s.median:,.0f}"),
    ("bulk, texts/s", lambda one: f"{one.texts_per_s.median:,.0f}"),
    (
        "embedlib, times as fast in bulk",
        lambda one: _NONE if one.embedlib_ratio is None else _spread(one.embedlib_ratio, "x"),
    ),
    ("batch size", lambda one: "by tokens" if one.batch_size is None else f"{one.batch_size}"),
    ("query p50, ms", lambda one: f"{one.query.p50_ms:.1f}"),
    ("query p99, ms", lambda one: f"{one.query.p99_ms:.1f}"),
    (
        "embedlib, times as fast for a query",
        lambda one: _NONE if one.query_ratio is None else f"{one.query_ratio:.2f}x",
    ),
    (
        "first vector, s, cold / warm",
        lambda one: f"{one.cold_start.first_vector_s:.2f} / {one.warm_start.first_vector_s:.2f}",
    ),
    (
        "of that, constructor, s",
        lambda one: f"{one.cold_start.constructor_s:.2f} / {one.warm_start.constructor_s:.2f}",
    ),
    ("peak memory after loading, MiB", lambda one: f"{one.peak_memory_after_load_mib:,.0f}"),
    ("peak memory after bulk, MiB", lambda one: f"{one.peak_memory_after_bulk_mib:,.0f}"),
    (
        "largest difference to embedlib",
        lambda one: _NONE if one.max_difference is None else f"{one.max_difference:.1e}",
    ),
)


def render(result: BenchResult) -> str:
    """Return the whole result as Markdown."""
    return "\n\n".join(
        part
        for part in (
            _heading(result),
            markdown(_contestants(result)),
            markdown(_own(result)),
            "\n".join(f"- {one.name}: not measured: {one.reason}" for one in result.skipped),
            markdown(_circumstances(result)),
        )
        if part
    )


def _heading(result: BenchResult) -> str:
    mean = result.num_tokens / result.num_texts
    cut = f", {result.num_truncated:,} cut" if result.num_truncated else ""
    return (
        f"{result.model}, {result.precision}, threads: {result.threads}, rounds: {result.rounds}; "
        f"{result.num_texts:,} texts, {result.num_tokens:,} tokens (mean {mean:.0f}{cut}) of "
        f"{result.texts}; queries of {result.mean_query_tokens:.1f} tokens"
    )


def _contestants(result: BenchResult) -> list[Row]:
    rows = [(name, *map(cell, result.contestants)) for name, cell in _ROWS]
    return [
        ("", *(one.name for one in result.contestants)),
        *(row for row in rows if set(row[1:]) != {_NONE}),  # nothing to compare with
    ]


def _own(result: BenchResult) -> list[Row]:
    mixed, sgemm = result.during_bulk, result.sgemm
    rates = ", ".join(
        f"{library} {rate.median:,.0f}" for library, rate in sorted(sgemm.gflop_per_s.items())
    )
    return [
        ("embedlib", ""),
        (
            f"query p50 / p99 during bulk, one each {mixed.query_interval_ms:.0f} ms",
            f"{mixed.query.p50_ms:.1f} / {mixed.query.p99_ms:.1f} ms "
            f"({mixed.query.num_queries} queries)",
        ),
        ("bulk rate lost to those queries", _spread(mixed.bulk_loss, "%")),
        ("padding share", f"{result.padding_share:.1%}"),
        ("engine idle share", f"{result.engine_idle_share:.1%}"),
        ("linear layers per token", f"{sgemm.flop_per_token / 1e6:,.1f} MFLOP"),
        (f"sgemm of this machine, {sgemm.rows} rows", f"{rates} GFLOP/s"),
        ("which would allow", f"{sgemm.ceiling_tokens_per_s:,.0f} tokens/s"),
        ("embedlib's share of that", f"{sgemm.embedlib_share:.0%}"),
    ]


def _circumstances(result: BenchResult) -> list[Row]:
    versions = {"embedlib": result.embedlib_version}
    for one in result.contestants:
        versions |= one.versions
    known = {
        "command": f"`{result.command}`" if result.command else "",
        "commit": result.commit,
        "model revision": result.revision,
        "date": result.date,
        **result.machine,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return [("circumstances", ""), *((name, value) for name, value in known.items() if value)]


def _spread(spread: Spread, unit: str) -> str:
    """Median and extremes, as in "1.83x (1.79 to 1.86)"."""
    scale, digits = (100, 1) if unit == "%" else (1, 2)
    median, low, high = (
        f"{value * scale:.{digits}f}" for value in (spread.median, spread.min, spread.max)
    )
    return f"{median}{unit} ({low} to {high})"


def markdown(rows: Sequence[Row]) -> str:
    """A table with its first row as the head; all but the first column are right-aligned."""
    rows = [tuple(" ".join(cell.replace("|", "\\|").split()) for cell in row) for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    is_wide = len(widths) > 2
    # A two-column table holds sentences: those read better from the left.
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if place and is_wide else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rule = ["-" * width for width in widths]
    if is_wide:
        rule[1:] = [f"{line[:-1]}:" for line in rule[1:]]
    return "\n".join([lines[0], f"| {' | '.join(rule)} |", *lines[1:]])
