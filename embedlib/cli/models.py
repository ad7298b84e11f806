"""`embedlib models`: which published models load, and what each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.json_output import print_json

if TYPE_CHECKING:
    from embedlib.models.catalog import CatalogEntry

_HEAD = (
    "model", "kind", "family", "D", "tokens", "licence", "parameters", "float32", "int8", "prompts"
)  # fmt: skip


@click.command()
@click.argument("search", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON list.")
def models(search: str, as_json: bool) -> None:
    """List published models that load, and what each takes.

    SEARCH is one word or several of the name, the kind (embedder, reranker, classifier, sparse or
    late-interaction), the family or the licence. The last columns are the memory that the model
    takes on this CPU at most, and whether embedlib adds prompts that its folder leaves out. A model
    that is not listed may load, too: ask embedlib inspect.

    \b
    Example:
      embedlib models "qwen3 apache"
    """
    from embedlib.errors import ConfigError, shown
    from embedlib.models.catalog import catalog

    found = [entry for entry in catalog() if entry.matches(search)]
    if not found:
        raise ConfigError(
            f"no listed model has {shown(search)} in its name, kind, family or licence; leave "
            "words out, or ask embedlib inspect MODEL whether one loads"
        )
    if as_json:
        print_json([_facts(entry) for entry in found], indent=2)
        return
    rows = [_HEAD, *(row_of(entry) for entry in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _facts(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "family": entry.family,
        "model_type": entry.model_type,
        "dim": entry.dim,
        "max_tokens": entry.tokens,
        "licence": entry.licence or None,
        "parameters": None if entry.millions is None else round(entry.millions * 1e6),
        "memory_bytes": {precision: _bytes(entry, precision) for precision in ("float32", "int8")},
        "prompts": entry.prompts,
        "template": entry.template,
    }


def row_of(entry: CatalogEntry) -> tuple[str, ...]:
    """Return the cells of a model, in the order of the columns."""
    told = ["known"] if entry.prompts else []
    told += [f"template {entry.template}"] if entry.template else []
    return (
        entry.name,
        entry.kind,
        entry.family,
        str(entry.dim or ""),
        str(entry.tokens or ""),
        entry.licence,
        _parameters(entry.millions),
        _gigabytes(_bytes(entry, "float32")),
        _gigabytes(_bytes(entry, "int8")),
        ", ".join(told),
    )


def _bytes(entry: CatalogEntry, precision: str) -> int | None:
    from embedlib.engines.openvino.plans.memory import most_bytes

    if entry.millions is None or entry.family == "static":  # which has no engine to plan for
        return None
    if entry.kind in ("late-interaction", "sparse") and precision != "float32":
        return None  # they are computed in float32 alone
    return most_bytes(round(entry.millions * 1e6), precision)


def _parameters(millions: float | None) -> str:
    if millions is None:
        return ""
    return f"{millions:g} M" if millions < 1000 else f"{millions / 1000:g} B"


def _gigabytes(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / (1 << 30):.1f} GiB"
