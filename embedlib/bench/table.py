"""A result as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedlib.bench.contestants.own import BATCH_SIZES
from embedlib.bench.peers import ST
from embedlib.bench.result import TOP, BenchResult, ContestantResult, Measured, RerankResult
from embedlib.measuring.markdown import Row, markdown
from embedlib.measuring.spread import Spread

NONE = "–"  # noqa: RUF001 - a dash in an empty cell

Cell = Callable[[ContestantResult], str]

_SPEED: tuple[tuple[str, Cell], ...] = (
    ("precision", lambda one: one.precision),
    ("batches", lambda one: one.batches),
    ("bulk, tokens/s", lambda one: f"{one.tokens_per_s.median:,.0f}"),
    ("bulk, texts/s", lambda one: f"{one.texts_per_s.median:,.1f}"),
    ("embedlib, times as fast in bulk", lambda one: _ratio(one.embedlib_ratio)),
    ("embedlib-float32, times as fast in bulk", lambda one: _ratio(one.float32_ratio)),
    ("query p50, ms", lambda one: f"{one.query.p50_ms:.1f}"),
    ("query p99, ms", lambda one: f"{one.query.p99_ms:.1f}"),
    (
        "embedlib, times as fast for a query",
        lambda one: NONE if one.query_ratio is None else f"{one.query_ratio:.2f}x",
    ),
    ("query during bulk p50 / p99, ms", lambda one: _during(one)),
    (
        "bulk rate lost to those queries",
        lambda one: f"{one.during_bulk.bulk_loss.median:.1%}" if one.during_bulk else NONE,
    ),
    (
        "number of queries, alone / during bulk",
        lambda one: (
            f"{one.query.num_queries:,} / "
            + (f"{one.during_bulk.query.num_queries:,}" if one.during_bulk else NONE)
        ),
    ),
)
_REST: tuple[tuple[str, Cell], ...] = (
    (
        "first vector, s, cold / warm",
        lambda one: f"{one.cold_start.first_vector_s:.2f} / {one.warm_start.first_vector_s:.2f}",
    ),
    (
        "of that, constructor, s",
        lambda one: f"{one.cold_start.constructor_s:.2f} / {one.warm_start.constructor_s:.2f}",
    ),
    (
        "cosine to embedlib-float32, mean / lowest",
        lambda one: f"{one.closeness.mean:.5f} / {one.closeness.min:.5f}",
    ),
    (
        "share of the machine's products",
        lambda one: f"{one.of_the_limit.bulk_share:.0%}" if one.of_the_limit else NONE,
    ),
    (
        "floor of a query, ms",
        lambda one: f"{one.of_the_limit.query_floor_ms:.2f}" if one.of_the_limit else NONE,
    ),
    (
        "query p50 over its floor",
        lambda one: f"{one.of_the_limit.query_ratio:.1f}x" if one.of_the_limit else NONE,
    ),
)


def _ratio(spread: Spread | None) -> str:
    return NONE if spread is None else spread_text(spread, "x")


def _during(one: ContestantResult) -> str:
    if one.during_bulk is None:
        return f"failed: {one.during_bulk_failure}"
    return f"{one.during_bulk.query.p50_ms:.1f} / {one.during_bulk.query.p99_ms:.1f}"


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
    cut = f", {result.num_truncated:,} cut" if result.num_truncated else ""
    mean = f"mean {result.num_tokens / result.num_texts:.0f}{cut}"
    texts = count_different(result.num_texts, "texts", result.num_different_texts)
    return (
        f"{result.model}, threads: {result.threads}, rounds: {result.rounds}; "
        f"{texts}, {result.num_tokens:,} tokens ({mean}) of "
        f"{result.texts}; queries of {result.mean_query_tokens:.1f} tokens"
    )


def count_different(num: int, what: str, num_different: int) -> str:
    """Return how many texts there are, and of how many only one library computes each."""
    once = "different; embedlib computes equal ones of a batch once"
    return f"{num:,} {what}" + (f" ({num_different:,} {once})" if num_different < num else "")


def _contestants(result: BenchResult) -> list[Row]:
    """One row per figure, one column per contestant."""
    memory: tuple[tuple[str, Cell], ...] = (
        ("peak memory after loading, MiB", lambda one: f"{one.memory_after_load_mib['peak']:,.0f}"),
        ("peak memory after bulk, MiB", lambda one: f"{one.memory_after_bulk_mib['peak']:,.0f}"),
        (
            "that over the weights file",
            lambda one: f"{one.memory_after_bulk_mib['peak'] / result.weights_mib:.1f}x",
        ),
        (
            "of it not in any file, now, MiB",
            lambda one: f"{one.memory_after_bulk_mib.get('anonymous', float('nan')):,.0f}",
        ),
    )
    rows: list[Row] = [
        (label, *(cell(one) for one in result.contestants))
        for label, cell in (*_SPEED, *memory, *_REST)
    ]
    return [
        ("", *(one.name for one in result.contestants)),
        *(row for row in rows if set(row[1:]) != {NONE}),  # nothing to compare with
    ]


def _own(result: BenchResult) -> list[Row]:
    limits = result.limits
    rows: list[Row] = [
        ("the machine and the model", ""),
        ("weights file", f"{result.weights_mib:,.0f} MiB"),
        ("linear layers per token", f"{limits.flop_per_token / 1e6:,.1f} MFLOP"),
    ]
    for precision, libraries in limits.gflop_per_s.items():
        rates = ", ".join(
            f"{library} {rate.median:,.0f}" for library, rate in sorted(libraries.items())
        )
        rows.append((f"products alone in {precision}, {limits.rows} rows", f"{rates} GFLOP/s"))
    rows += [
        ("reading memory", f"{limits.read_gb_per_s.median:.1f} GB/s"),
        ("embedlib's padding share", f"{result.padding_share:.1%}"),
    ]
    if result.engine_idle_share is not None:
        rows.append(("embedlib's engine idle share", f"{result.engine_idle_share:.1%}"))
    return rows


def _circumstances(result: BenchResult) -> list[Row]:
    versions: dict[str, str] = {}
    for one in result.contestants:
        versions |= one.versions
    return [("circumstances", ""), *provenance_rows(result, versions, result.revision)]


def provenance_rows(
    result: Measured, versions: Mapping[str, str], revision: str | None = None
) -> list[Row]:
    """Return the rows that say where, when and with what something was measured."""
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
    rows: list[Row] = [
        ("rerank", ""),
        ("pairs, mean tokens", f"{result.num_tokens / result.num_documents:.0f}"),
    ]
    for name, figures in result.ours.items():
        rate = spread_text(figures.documents_per_s, "")
        rows.append((f"{name}, documents/s in {figures.precision}", rate))
    if result.peer_documents_per_s is not None:
        rate = spread_text(result.peer_documents_per_s, "")
        rows += [
            (f"{ST} CrossEncoder, documents/s", rate),
            (f"its batch size, the best of {list(BATCH_SIZES)}", f"{result.peer_batch_size}"),
        ]
    for name, figures in result.ours.items():
        if figures.ratio is not None:
            rows += [
                (f"{name}, times as fast", spread_text(figures.ratio, "x")),
                (f"{name}, largest difference of a score", f"{figures.max_difference:.1e}"),
                (f"{name}, its best {TOP} among the peer's", f"{figures.top_overlap:.0%}"),
            ]
    rows += provenance_rows(result, result.versions)
    cut = f", {result.num_truncated:,} cut" if result.num_truncated else ""
    documents = count_different(
        result.num_documents, "documents of one query", result.num_different_documents
    )
    heading = (
        f"{result.model}, threads: {result.threads}, rounds: {result.rounds}; {documents}{cut}"
    )
    return f"{heading}\n\n{markdown(rows)}"


def spread_text(spread: Spread, unit: str) -> str:
    """Return median and extremes, as in "1.83x (1.79 to 1.86)"."""
    scale, digits = {"%": (100, 1), "x": (1, 2), "": (1, 0 if spread.min >= 100 else 2)}[unit]
    median, low, high = (
        f"{value * scale:,.{digits}f}" for value in (spread.median, spread.min, spread.max)
    )
    return f"{median}{unit} ({low} to {high})"
