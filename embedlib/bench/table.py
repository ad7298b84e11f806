"""A result as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedlib.bench.contestants import BATCH_SIZES
from embedlib.bench.options import RERANK_PEER
from embedlib.bench.result import TOP, BenchResult, ContestantResult, Measured, RerankResult
from embedlib.measuring.markdown import Row, markdown
from embedlib.measuring.spread import Spread

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
    versions: dict[str, str] = {}
    for one in result.contestants:
        versions |= one.versions
    return [("circumstances", ""), *_provenance(result, versions, result.revision)]


def _provenance(
    result: Measured, versions: Mapping[str, str], revision: str | None = None
) -> list[Row]:
    named = {"embedlib": result.embedlib_version, **versions}
    known = {
        "command": f"`{result.command}`" if result.command else "",
        "commit": result.commit,
        "model revision": revision,
        "date": result.date,
        **result.machine,
        "versions": ", ".join(f"{name} {version}" for name, version in named.items()),
    }
    return [(name, value) for name, value in known.items() if value]


def render_rerank(result: RerankResult) -> str:
    """Return the result of `--task rerank` as Markdown."""
    rows: list[Row] = [("pairs, mean tokens", f"{result.num_tokens / result.num_documents:.0f}")]
    for name, figures in result.ours.items():
        rows.append((f"{name}, documents/s", _spread(figures.documents_per_s, "")))
    if result.peer_documents_per_s is not None:
        rate = _spread(result.peer_documents_per_s, "")
        rows += [
            (f"{RERANK_PEER} CrossEncoder, documents/s", rate),
            (f"its batch size, the best of {list(BATCH_SIZES)}", f"{result.peer_batch_size}"),
        ]
    for name, figures in result.ours.items():
        if figures.ratio is not None:
            rows += [
                (f"{name}, times as fast", _spread(figures.ratio, "x")),
                (f"{name}, largest difference of a score", f"{figures.max_difference:.1e}"),
                (f"{name}, its best {TOP} among the peer's", f"{figures.top_overlap:.0%}"),
            ]
    rows += _provenance(result, result.versions)
    cut = f", {result.num_truncated:,} cut" if result.num_truncated else ""
    heading = (
        f"{result.model}, threads: {result.threads}, rounds: {result.rounds}; "
        f"{result.num_documents:,} documents of one query{cut}"
    )
    cells = [(name, value.replace("|", "\\|")) for name, value in rows]
    lines = ["| rerank | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in cells)]
    return "\n".join([heading, "", *lines])


def _spread(spread: Spread, unit: str) -> str:
    """Return median and extremes, as in "1.83x (1.79 to 1.86)"."""
    scale, digits = {"%": (100, 1), "x": (1, 2), "": (1, 0)}[unit]
    median, low, high = (
        f"{value * scale:,.{digits}f}" for value in (spread.median, spread.min, spread.max)
    )
    return f"{median}{unit} ({low} to {high})"
