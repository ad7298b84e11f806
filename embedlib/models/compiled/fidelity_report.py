"""The fidelity reports of an engine directory: how close its vectors are to the model's own.

There may be one for each engine, kind of hardware and template. Machines of several kinds may share
a directory: the first one's report is `fidelity.json`, those of others are `fidelity-HASH.json`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from embedlib.errors import EngineBuildError, ModelUnsupportedError
from embedlib.models.new_file import new_file
from embedlib.models.reading.model_file import file_bytes, list_files, load_json
from embedlib.models.spec import ModelSpec

REPORT_NAME: Final = "fidelity.json"
OTHERS_PATTERN: Final = "fidelity-*.json"
REPORT_VERSION: Final = 3

MIN_TEXTS: Final = 100
"""A report on fewer texts does not decide a precision: p1 means little with only three texts."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a report must reach for a precision to be chosen automatically."""

    mean: float = 0.999
    """Minimum mean of the cosines of all texts."""
    p1: float = 0.998
    """Minimum first percentile: 99 of 100 texts have this cosine or a higher one."""

    @classmethod
    def of_mean(cls, mean: float) -> Gate:
        """Return the gate for a mean cosine; its p1 may be twice as far from 1 as the mean."""
        return cls(mean=mean, p1=round(1 - 2 * (1 - mean), 9))


@dataclass(frozen=True, kw_only=True)
class TextFidelity:
    """One text and how close its two vectors are."""

    text: str
    """The first characters of the text."""
    cosine: float


@dataclass(frozen=True, kw_only=True)
class FidelityReport:
    """How close the vectors of one model in two precisions are, as cosines per text."""

    fingerprint: str
    """Of the model, from `engine_folder.model_fingerprint`."""
    engine: str
    """Name of the engine that computed the lower precision."""
    hardware: str
    """The hardware, as far as vectors depend on it; see `EngineChoice.hardware`."""
    precision: str
    excluded: tuple[str, ...]
    """Linear layers that were kept in the model's precision, sorted."""
    reference: str
    """The precision compared with: "float32" on the CPU, or a higher one of the same engine."""
    max_seq_tokens: int
    """Length to which texts were truncated."""
    template: Mapping[str, Any] | None
    """The reranker's template, see `template_facts`; None if vectors or scores without a template
    were compared."""
    num_texts: int
    texts_digest: str
    """Digest of the texts and of which of them are queries."""
    mean: float
    p1: float
    min: float
    top10_overlap: float | None
    """Share of a query's ten nearest documents that both precisions find, mean over queries; None
    if there were no queries, or too few documents."""
    worst: tuple[TextFidelity, ...]
    """The texts with the lowest cosines, lowest first."""
    versions: Mapping[str, str]
    """Versions of the packages that computed the vectors, by package."""

    @property
    def use(self) -> tuple[str, str, Mapping[str, Any] | None]:
        """What it is valid for: engine, hardware and template."""
        return self.engine, self.hardware, self.template

    def passes(self, gate: Gate) -> bool:
        """Whether the mean and the first percentile both reach the gate."""
        return self.mean >= gate.mean and self.p1 >= gate.p1

    def replaces(self, older: FidelityReport) -> bool:
        """Whether it decides in the place of an older one.

        It does not where both pass and it covers shorter texts alone: what was measured on longer
        ones holds for them, too.
        """
        gate = Gate()
        is_less = (
            self._subject == older._subject
            and self.max_seq_tokens < older.max_seq_tokens
            and older.num_texts >= MIN_TEXTS
        )
        return not (is_less and self.passes(gate) and older.passes(gate))

    @property
    def _subject(self) -> tuple[object, ...]:
        return self.use, self.fingerprint, self.precision, self.excluded, self.reference

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"report_version": REPORT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FidelityReport:
        """Return the report from the JSON values of `as_json`.

        Raises:
            KeyError, TypeError, ValueError: the content is not a valid report.
        """
        values = dict(content)
        if (version := values.pop("report_version")) != REPORT_VERSION:
            raise ValueError(f"report_version = {version!r}")
        worst = tuple(TextFidelity(**entry) for entry in values["worst"])
        report = cls(**{**values, "excluded": tuple(values["excluded"]), "worst": worst})
        found = (report.mean, report.p1, report.min, *(entry.cosine for entry in worst))
        if not all(-1 <= cosine <= 1 for cosine in found):  # NaN is False
            raise ValueError(f"cosines {found}")
        for count in (report.max_seq_tokens, report.num_texts):
            if type(count) is not int or count < 1:
                raise ValueError(f"max_seq_tokens or num_texts = {count!r}")
        return report


def template_facts(spec: ModelSpec) -> dict[str, Any] | None:
    """Return the template of a reranker as JSON values; None if it has none.

    The report stores it because the model files do not: those of a reranker with a template are
    those of any language model, and an Embedder opens them too.
    """
    template = spec.head.template if spec.head is not None else None
    return None if template is None else dataclasses.asdict(template)


def write_report(folder: Path, report: FidelityReport) -> None:
    """Write a report into an engine directory or a folder of the cache, over one of the same use.

    One that it does not replace (`FidelityReport.replaces`) stays.

    Raises:
        EngineBuildError: the report cannot be written.
    """
    text = json.dumps(report.as_json(), indent=2, ensure_ascii=False) + "\n"
    place = folder / REPORT_NAME
    try:
        with _alone_in(folder):
            older = _of_same_use(folder, report)
            if older is not None and not report.replaces(older[1]):
                return
            place = folder / (_new_name(folder, report) if older is None else older[0])
            with new_file(place) as part:
                part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EngineBuildError(f"cannot write {place}: {error.strerror}") from error


def read_report(folder: Path) -> FidelityReport | None:
    """Return the first report of a directory; None if it is missing or cannot be read.

    Both cases are the same to the caller: fidelity has to be measured.
    """
    return _read(folder / REPORT_NAME, folder)


def read_reports(folder: Path) -> list[FidelityReport]:
    """Return the reports of an engine directory that can be read."""
    reports = (_read(path, folder) for path in report_paths(folder))
    return [report for report in reports if report is not None]


def report_paths(folder: Path) -> list[Path]:
    """Return the files of the reports of a directory, which may be inside a pack."""
    first = folder / REPORT_NAME
    others = list_files(folder, OTHERS_PATTERN)
    return [first, *others] if file_bytes(first) is not None else others


def is_report(name: str) -> bool:
    """Whether a file of this name is a report."""
    return name == REPORT_NAME or fnmatchcase(name, OTHERS_PATTERN)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep another process from giving its first report the name that is found for this one."""
    file = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS locks no folders
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _of_same_use(folder: Path, report: FidelityReport) -> tuple[str, FidelityReport] | None:
    """Return the report of a directory that has the same use, and its file's name."""
    for path in report_paths(folder):
        stored = _read(path, folder)
        if stored is not None and stored.use == report.use:
            return path.name, stored
    return None


def _new_name(folder: Path, report: FidelityReport) -> str:
    """Return the name of the file for the first report of a use."""
    if read_report(folder) is None:
        return REPORT_NAME
    facts = json.dumps(report.use, sort_keys=True).encode()
    return OTHERS_PATTERN.replace("*", hashlib.blake2b(facts, digest_size=8).hexdigest())


def _read(path: Path, folder: Path) -> FidelityReport | None:
    try:
        return FidelityReport.from_json(load_json(path, folder))
    except (ModelUnsupportedError, ValueError, TypeError, KeyError):
        return None
