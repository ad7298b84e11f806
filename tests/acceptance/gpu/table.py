"""The lines of a run as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from embedlib.measuring.markdown import Row, markdown
from tests.acceptance.gpu.journal import Line, found
from tests.acceptance.gpu.models import SHAPES
from tests.acceptance.gpu.verdicts import ceiling_tflops

NONE: Final = "–"  # noqa: RUF001 - a dash in an empty cell
MET: Final = {True: "met", False: "NOT MET", None: NONE}

Column = tuple[str, Callable[[Line], str]]


def render(lines: Sequence[Line]) -> str:
    """Return all results as Markdown, the verdicts last."""
    parts = [
        _table(lines, "begin", _CIRCUMSTANCES, is_turned=True),
        _ceilings(lines),
        _table(lines, "gate", _GATE),
        _table(lines, "bulk", _BULK, needs="texts_per_s"),
        _table(lines, "query", _QUERY),
        _table(lines, "mixed", _MIXED),
        _table(lines, "clients", _CLIENTS),
        _table(lines, "variants", _VARIANTS, needs="ratio"),
        _table(lines, "peers", _PEERS, needs="ratio"),
        _table(lines, "start", _START),
        _missing(lines),
        _table(lines, "verdict", _VERDICT),
    ]
    return "\n\n".join(part for part in parts if part)


def _cell(key: str, form: str = "") -> Callable[[Line], str]:
    def cell(line: Line) -> str:
        value = line.get(key)
        return NONE if value is None else format(value, form)

    return cell


def _percent(key: str) -> Callable[[Line], str]:
    return _cell(key, ".1%")


_WHO: Final[tuple[Column, ...]] = (("model", _cell("model")), ("precision", _cell("precision")))
_TIMES: Final[tuple[Column, ...]] = tuple(
    (f"{name}, ms", _cell(f"{name}_ms", ".2f")) for name in ("p50", "p95", "p99", "max")
)
_GATE: Final[tuple[Column, ...]] = (
    *_WHO,
    ("check", _cell("check")),
    ("found", _cell("found")),
    ("allowed", _cell("allowed")),
    ("passed", lambda line: "yes" if line["passed"] else "NO"),
)
_BULK: Final[tuple[Column, ...]] = (
    *_WHO,
    ("tokens of a text", _cell("lengths")),
    ("tokens/s", _cell("tokens_per_s", ",.0f")),
    ("texts/s", _cell("texts_per_s", ",.0f")),
    ("TFLOP/s", _cell("tflops", ",.1f")),
    ("of the ceiling", _percent("share_of_ceiling")),
    ("MHz", _cell("sm_mhz", ".0f")),
    ("W", _cell("watts", ".0f")),
)
_QUERY: Final[tuple[Column, ...]] = (
    *_WHO,
    ("from", _cell("what")),
    ("tokens", _cell("tokens")),
    *_TIMES,
)
_MIXED: Final[tuple[Column, ...]] = (
    *_WHO,
    ("queries/s beside bulk", _cell("queries_per_s", "g")),
    *_TIMES,
    ("bulk lost", _percent("bulk_loss")),
)
_CLIENTS: Final[tuple[Column, ...]] = (
    *_WHO,
    ("clients", _cell("num_clients", ",")),
    ("answers/s", _cell("answers_per_s", ",.0f")),
    *_TIMES,
    ("refused", _cell("num_refused", ",")),
)
_VARIANTS: Final[tuple[Column, ...]] = (
    *_WHO,
    ("variant", _cell("variant")),
    ("of", lambda line: _asked(line)),
    ("without", lambda line: _result(line, "")),
    ("with", lambda line: _result(line, "our_")),
    ("times as fast", lambda line: _ratio(line)),
    ("1 - cosine", _cell("farthest", ".1e")),
)
_PEERS: Final[tuple[Column, ...]] = (
    *_WHO,
    ("peer", _cell("peer")),
    ("peer, tokens/s", _cell("tokens_per_s", ",.0f")),
    ("ours, tokens/s", _cell("our_tokens_per_s", ",.0f")),
    ("times as fast", lambda line: _ratio(line)),
)
_START: Final[tuple[Column, ...]] = (
    ("model", _cell("model")),
    ("start", _cell("what")),
    ("first vector, s", _cell("first_vector_s", ".1f")),
    ("constructor, s", _cell("constructor_s", ".1f")),
)
_VERDICT: Final[tuple[Column, ...]] = (
    ("asked for", _cell("what")),
    ("bound", _cell("asked")),
    ("found", _cell("found", ",.5g")),
    ("", lambda line: MET[line["met"]]),
)
_CIRCUMSTANCES: Final[tuple[Column, ...]] = tuple(
    (name, _cell(name)) for name in ("command", "commit", "date", "gpu", "cpu", "cores", "versions")
)


def _table(
    lines: Sequence[Line],
    block: str,
    columns: Sequence[Column],
    needs: str | None = None,
    *,
    is_turned: bool = False,
) -> str:
    """Return the table of a block's results; empty: it has none."""
    results = [line for line in found(lines, block) if needs is None or needs in line]
    if not results:
        return ""
    if is_turned:
        return markdown([(block, ""), *((name, cell(results[0])) for name, cell in columns)])
    rows: list[Row] = [tuple(name for name, _ in columns)]
    rows += [tuple(cell(line) for _, cell in columns) for line in results]
    return markdown(rows)


def _ceilings(lines: Sequence[Line]) -> str:
    """Return what the chip allows for each model."""
    rows: list[Row] = [("ceilings, TFLOP/s", "bf16", "fp8", "fp8, chip warm", "copy, TB/s")]
    for model in SHAPES:
        results = list(found(lines, "ceilings", model=model))
        if results:
            cells: list[Any] = [ceiling_tflops(lines, model, name) for name in ("bf16", "fp8")]
            cells.append(_one(results, "tflops", "is_sustained"))
            cells.append(_one(results, "tbytes_per_s", "tbytes_per_s"))
            rows.append((model, *(NONE if cell is None else f"{cell:,.4g}" for cell in cells)))
    return markdown(rows) if len(rows) > 1 else ""


def _one(results: Sequence[Line], key: str, needs: str) -> float | None:
    return next((float(line[key]) for line in results if needs in line), None)


def _ratio(line: Line) -> str:
    return f"{line['ratio']:.2f}x ({line['ratio_min']:.2f} to {line['ratio_max']:.2f})"


def _asked(line: Line) -> str:
    """Return what was measured in a race, in words."""
    if "lengths" in line:
        return f"bulk of {line['lengths']} tokens"
    behind = f" behind {line['prefix_tokens']} common ones" if "prefix_tokens" in line else ""
    return f"a query of {line['num_tokens']} tokens{behind}"


def _result(line: Line, whose: str) -> str:
    """Return the best of one side of a race, with its unit."""
    if "tokens_per_s" in line:
        return f"{line[f'{whose}tokens_per_s']:,.0f} tokens/s"
    return f"{line[f'{whose}p50_ms']:.2f} ms"


def _missing(lines: Sequence[Line]) -> str:
    """Return what could not be measured, and why."""
    reasons = []
    for line in lines:
        for kind in ("failed", "skipped"):
            if kind in line:
                left_out = ("t", "block", kind)
                facts = [str(value) for key, value in line.items() if key not in left_out]
                what = ", ".join([line["block"], *facts])
                reasons.append(f"- {what}: {kind}: {line[kind]}")
    return "\n".join(reasons)
