"""Formats a fidelity report as rows of a table."""

from __future__ import annotations

from embedlib.models.compiled.fidelity_report import MIN_TEXTS, FidelityReport


def fidelity_rows(report: FidelityReport) -> list[tuple[str, str]]:
    """Return names and values for `print_table`."""
    from embedlib.engines.machine import Machine
    from embedlib.engines.precision import REFERENCE, decides
    from embedlib.engines.registry import find_kind
    from embedlib.fidelity.plans import is_emulated

    overlap = "-" if report.top10_overlap is None else f"{report.top10_overlap:.1%}"
    note = "" if report.num_texts >= MIN_TEXTS else f"; fewer than {MIN_TEXTS}: not stored"
    no_gpu = "; not measured on a GPU, so auto ignores it" if is_emulated(report.hardware) else ""
    is_other = not decides(find_kind(report.engine, Machine()), report.reference)
    other = f"; auto goes by {REFERENCE} there: not stored" if is_other else ""
    worst = "\n".join(f"{entry.cosine:.5f}  {entry.text!r}" for entry in report.worst)
    return [
        ("measured", f"{report.precision} on {report.engine}, against {report.reference}{other}"),
        ("hardware", f"{report.hardware}{no_gpu}"),
        ("kept", ", ".join(report.excluded) or "no layer"),
        ("texts", f"{report.num_texts}, truncated to {report.max_seq_tokens} tokens{note}"),
        ("texts digest", report.texts_digest),
        ("mean cosine", f"{report.mean:.5f}"),
        ("p1 cosine", f"{report.p1:.5f}"),
        ("min cosine", f"{report.min:.5f}"),
        ("top-10 overlap", overlap),
        ("worst texts", worst),
    ]
