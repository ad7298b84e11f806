"""`embedlib tune`: vary, measure, write a profile of this machine and model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final

from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.engines.precision import with_weights
from embedlib.engines.profile import Profile, ProfileKey, check_writable, write_profile
from embedlib.errors import ConfigError, EngineUnsupportedError, count_of
from embedlib.measuring.texts import docstrings, read_lines, texts_of_about
from embedlib.models.opening import OpenedModel, check_has_precisions
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.session.loading import prepared_plan
from embedlib.tuning.runners import EmbeddingRunners, Planned
from embedlib.tuning.search import BETTER, Row, Step, race, search
from embedlib.tuning.steps import other_libraries, steps

PASSES: Final = 40
"""Bulk passes that fit into the time given, about: each of eight races has four or five."""
MIN_TEXTS: Final = 32
MAX_TEXTS: Final = 20_000
SAMPLE_TEXTS: Final = 16
"""Embedded first, to see how many texts a pass may have."""
FINAL_SHARE: Final = 0.85
"""Of the time, for the search; the rest is for the last race, against the default."""
FINAL_ROUNDS: Final = 3


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of `tune`.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    minutes: float = 3.0
    """About how long it takes, without loading the model."""
    texts_path: Path | None = None
    """A file with one text per line; None: the documentation strings of Python's own library."""
    text_tokens: int | None = None
    """Length of the texts in the mean; None: as they are."""
    config: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        """Check the options."""
        if not 0 < self.minutes <= 24 * 60:
            raise ConfigError(f"minutes = {self.minutes}; it must be more than 0, at most a day")
        if self.text_tokens is not None and self.text_tokens < 1:
            raise ConfigError(f"text_tokens = {self.text_tokens}; it must be at least 1")
        if self.text_tokens is not None and self.texts_path is not None:
            raise ConfigError("text_tokens is for the texts of embedlib; leave out texts_path")
        if self.config.max_batch_tokens is not None:
            raise ConfigError("max_batch_tokens is what tune looks for; leave it out")
        if len(self.config.devices) > 1:
            raise ConfigError(f"device = {self.config.device!r}: tune measures one; leave it out")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What was found."""

    default: Profile
    """What runs without a profile."""
    profile: Profile
    """What runs from now on."""
    rows: tuple[Row, ...]
    """What was tried, in order; the last is the profile beside the default, if they differ."""
    num_texts: int
    num_tokens: int
    """Of a bulk pass."""
    tokens_per_s: float
    """Of the first pass with the default."""
    precision: str
    path: Path
    """The profile's file."""


def tune(
    model: str | PathLike[str],
    options: TuneOptions | None = None,
    *,
    report: Callable[[str], None] = lambda _: None,
    machine: Machine | None = None,
) -> Tuned:
    """Find how a model of this shape runs fastest on this machine, and keep it for later loads.

    With the precision "auto" it is tuned in the one that a load would take: what was not measured
    yet is measured first, as a load does.

    Args:
        model: a folder, a hub name or `package:NAME`; an embedding model.
        options: how long, with which texts, and how the model is loaded.
        report: called with a line for each race.
        machine: what the machine has; None: this machine.

    Raises:
        ConfigError: the model has a head, an option is out of range, or there are too few texts.
        ModelUnsupportedError: a model of this kind has float32 alone.
        EngineUnavailableError: no engine can run the model here.
        EngineUnsupportedError: the engine has nothing to vary.
        EngineBuildError: the profile cannot be written.
    """
    options, machine = options or TuneOptions(), machine or Machine()
    config = options.config
    lines = None if options.texts_path is None else _lines(options.texts_path)
    opened = OpenedModel.find(model, config)
    opened.check_bytes()
    if opened.has_head:
        raise ConfigError(
            f"{model} computes scores; give an embedding model of the same layers, whose profile "
            "is used for both"
        )
    files = opened.read_files(with_head=False)
    check_has_precisions(files.spec, opened.name)
    tokenizer = load_tokenizer(files)
    files = opened.limit_length(files, tokenizer)
    plan = prepared_plan(opened, files, machine)  # a profile is of the precision that loads take
    kind = plan.kind
    if kind.profile_key is None or kind.choose_profile is None:
        raise EngineUnsupportedError(
            f"engine {kind.name} has nothing to tune; engine='openvino' has profiles"
        )
    check_writable(kind.profile_key(plan, files, config, machine), config)
    plan = with_weights(plan, files, config)
    # The key says how weights are stored: those of a load, which finds them compiled.
    key = kind.profile_key(plan, files, config, machine)
    default = kind.choose_profile(plan, files, config, None)
    with tempfile.TemporaryDirectory(prefix="embedlib-tune-") as scratch:
        planned = Planned(
            files=files,
            tokenizer=tokenizer,
            plan=plan,
            config=replace(config, engine_cache_dir=scratch),
        )
        with closing(EmbeddingRunners(planned)) as runners:
            tuning = _Tuning(runners, planned, options, lines, default, machine)
            return tuning.run(key, report)


def _lines(path: Path) -> list[str]:
    """Return the texts of a file, each once; refuses one that has too few for a pass.

    An Embedder computes equal texts of a batch once: a pass would be of fewer tokens than told.
    """
    made = list(dict.fromkeys(read_lines(path, MAX_TEXTS)))
    if len(made) < MIN_TEXTS:
        raise ConfigError(
            f"{path} has {count_of(len(made), 'different text')}, and a pass has at least "
            f"{MIN_TEXTS}; give more, or leave out texts_path"
        )
    return made


@dataclass(frozen=True)
class _Tuning:
    """A run of `tune`."""

    runners: EmbeddingRunners
    planned: Planned
    options: TuneOptions
    lines: Sequence[str] | None
    """The texts of a file; None: those of embedlib."""
    default: Profile
    machine: Machine

    def run(self, key: ProfileKey, report: Callable[[str], None]) -> Tuned:
        """Search, race the result against the default, and write it."""
        seconds = 60 * self.options.minutes
        report("embedding some texts, to see how many a pass may have")
        rate = self._choose_texts(seconds)
        num_tokens = self._num_tokens()
        ends_at = monotonic() + FINAL_SHARE * seconds
        best, rows = search(
            self.default,
            self._steps(num_tokens),
            self.runners,
            lambda: monotonic() < ends_at,
            report,
        )
        if best != self.default:
            report(f"at last {best.settings}; beside the default")
            rows.append(race(best, self.default, self.runners, FINAL_ROUNDS))
            if rows[-1].verdict != BETTER:
                best = self.default
        measured = {
            "rows": [asdict(row) | {"profile": str(row.profile)} for row in rows],
            "num_texts": len(self.runners.texts),
            "num_tokens": num_tokens,
        }
        path = write_profile(key, best, measured, self.options.config)
        return Tuned(
            default=self.default,
            profile=replace(best, is_tuned=True),
            rows=tuple(rows),
            num_texts=len(self.runners.texts),
            num_tokens=num_tokens,
            tokens_per_s=rate,
            precision=str(self.planned.plan.precision),
            path=path,
        )

    def _steps(self, num_tokens: int) -> list[Step]:
        needs = self.planned.plan.needs
        varied = steps(
            threads=self.options.config.num_threads,
            pass_tokens=num_tokens,
            is_large=bool(getattr(needs, "is_large", False)),
            others=other_libraries(self.machine, self.planned.plan.precision.name),
        )
        return [partial(self._usable, step) for step in varied]

    def _usable(self, step: Step, best: Profile) -> list[Profile]:
        """Return those variations of a profile that a load would take as they are."""
        plan, choose = self.planned.plan, self.planned.plan.kind.choose_profile
        assert choose is not None, "tune has looked"
        return [
            profile
            for profile in step(best)
            if choose(plan, self.planned.files, self.planned.config, profile) == profile
        ]

    def _choose_texts(self, seconds: float) -> float:
        """Set the texts of a bulk pass; return the tokens per second of a first one."""
        self.runners.texts = self._texts(SAMPLE_TEXTS)
        runner = self.runners.open(self.default)
        started = perf_counter()
        runner.bulk()
        took = perf_counter() - started
        rate = self._num_tokens() / took
        count = int(SAMPLE_TEXTS * seconds / PASSES / took)
        self.runners.texts = self._texts(min(max(count, MIN_TEXTS), MAX_TEXTS))
        runner.texts = list(self.runners.texts)
        runner.bulk()  # warm as those that race it: the first pass takes longer
        return rate

    def _texts(self, count: int) -> list[str]:
        if self.lines is not None:
            return list(self.lines[:count])
        if self.options.text_tokens is not None:
            return self._pieces(self.options.text_tokens, count)
        return docstrings(count)

    def _pieces(self, num_tokens: int, count: int) -> list[str]:
        """Return texts of a mean length; refuses one that leaves too few texts for a pass."""
        made = texts_of_about(num_tokens, max(count, MIN_TEXTS), self.planned.tokenizer)
        if len(made) < MIN_TEXTS:
            raise ConfigError(
                f"text_tokens = {num_tokens}: embedlib's texts make {len(made)} of this length, "
                f"and a pass has at least {MIN_TEXTS}; give less, or your own texts as texts_path"
            )
        return made[:count]

    def _num_tokens(self) -> int:
        """Return the tokens of a bulk pass, truncated as the model's are."""
        longest = self.planned.files.spec.max_seq_tokens
        encodings = self.planned.tokenizer.encode_batch(list(self.runners.texts))
        return sum(min(len(encoding.ids), longest) for encoding in encodings)
