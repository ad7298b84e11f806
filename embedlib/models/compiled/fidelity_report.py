"""What was measured of a compiled model: how close its vectors are to the model's own."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from embedlib.errors import EngineBuildError
from embedlib.models.spec import ModelSpec

REPORT_NAME: Final = "fidelity.json"
REPORT_VERSION: Final = 3

MIN_TEXTS: Final = 100
"""A report of fewer decides nothing: 99 of 100 texts say little where there are only three."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a report must reach for a precision to be taken unasked."""

    mean: float = 0.999
    """Of the cosines of all texts."""
    p1: float = 0.998
    """99 of 100 texts have this cosine or a higher one."""

    @classmethod
    def of_mean(cls, mean: float) -> Gate:
        """Return the gate of a mean cosine: the worst texts may be twice as far off."""
        return cls(mean=mean, p1=round(1 - 2 * (1 - mean), 9))


@dataclass(frozen=True, kw_only=True)
class TextFidelity:
    """One text and how close its two vectors are."""

    text: str
    """Its beginning."""
    cosine: float


@dataclass(frozen=True, kw_only=True)
class FidelityReport:
    """How close the vectors of one model in two precisions are; cosines per text."""

    fingerprint: str
    """Of the model, as `engine_folder.model_fingerprint` gives it."""
    engine: str
    """Which computed the lower precision."""
    hardware: str
    """What it computed on, as far as vectors depend on it; see `EngineChoice.hardware`."""
    precision: str
    excluded: tuple[str, ...]
    """Linear layers that were kept in the model's precision, sorted."""
    reference: str
    """The precision that it was compared with: "float32" on the CPU, or that of the engine."""
    max_seq_tokens: int
    """Where texts were cut."""
    template: Mapping[str, Any] | None
    """What scores were asked with, see `template_facts`; None: vectors, or scores without one."""
    num_texts: int
    texts_digest: str
    """Of the texts and of which of them are queries."""
    mean: float
    p1: float
    min: float
    top10_overlap: float | None
    """Share of the ten documents nearest to a query that both find, mean over queries; None: there
    were no queries, or not more documents than it takes."""
    worst: tuple[TextFidelity, ...]
    """The texts of the lowest cosines, lowest first."""
    versions: Mapping[str, str]
    """Of the packages that computed."""

    def passes(self, gate: Gate) -> bool:
        """Whether the vectors are close enough."""
        return self.mean >= gate.mean and self.p1 >= gate.p1

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"report_version": REPORT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FidelityReport:
        """Return the report that `as_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        values = dict(content)
        if (version := values.pop("report_version")) != REPORT_VERSION:
            raise ValueError(f"report_version = {version!r}")
        worst = tuple(TextFidelity(**entry) for entry in values["worst"])
        report = cls(**{**values, "excluded": tuple(values["excluded"]), "worst": worst})
        found = (report.mean, report.p1, report.min, *(entry.cosine for entry in worst))
        if not all(isinstance(cosine, float) and -1 <= cosine <= 1 for cosine in found):
            raise ValueError(f"cosines {found}")
        for count in (report.max_seq_tokens, report.num_texts):
            if type(count) is not int or count < 1:
                raise ValueError(f"max_seq_tokens or num_texts = {count!r}")
        return report


def template_facts(spec: ModelSpec) -> dict[str, Any] | None:
    """Return the template of a reranker as JSON values; None: it has none.

    The files of a reranker with one are those of any language model: an Embedder opens them too.
    """
    template = spec.head.template if spec.head is not None else None
    return None if template is None else dataclasses.asdict(template)


def write_report(folder: Path, report: FidelityReport) -> None:
    """Put a report into an engine directory, in the place of an older one.

    Raises:
        EngineBuildError: it cannot be written.
    """
    part = folder / f".{REPORT_NAME}.{os.getpid()}.embedlib-part"
    try:
        text = json.dumps(report.as_json(), indent=2, ensure_ascii=False) + "\n"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / REPORT_NAME)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EngineBuildError(f"cannot write {folder / REPORT_NAME}: {error.strerror}") from error


def read_report(folder: Path) -> FidelityReport | None:
    """Return the report of an engine directory, or None where there is none that can be read.

    Nothing measured and nothing readable are the same to whoever asks: measure it.
    """
    try:
        content = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))
        return FidelityReport.from_json(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
