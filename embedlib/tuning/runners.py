"""A planned model that runs with one profile and with another; it stays loaded between turns."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import tokenizers
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Batch, CallerEngine, Pending
from embedlib.engines.kind import EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.engines.profile import Layout, Profile
from embedlib.engines.select import plan_again
from embedlib.measuring.texts import QUERIES
from embedlib.models.reading.files import ModelFiles

MIN_INTERVAL_SECONDS = 0.05
"""Between two queries beside bulk work."""


class LentEngine:
    """An engine with another token budget, which its user cannot close."""

    def __init__(self, engine: CallerEngine, max_batch_tokens: int) -> None:
        self._engine = engine
        self.limits = replace(engine.limits, max_batch_tokens=max_batch_tokens)

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Pending:
        """Start a batch and return at once."""
        return self._engine.submit(batch, on_done)

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch on the calling thread."""
        return self._engine.compute(batch)

    def close(self) -> None:
        """Do nothing; the owner closes the engine."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A model that was planned, and what it is measured with."""

    files: ModelFiles
    tokenizer: tokenizers.Tokenizer
    plan: EnginePlan
    config: Config
    """Its cache is a folder that is removed afterwards."""


class EmbeddingRunner:
    """Runs an Embedder with a profile; times are in seconds."""

    def __init__(self, embedder: Embedder, texts: Sequence[str]) -> None:
        self._embedder = embedder
        self.texts = list(texts)
        """Of a bulk pass."""

    def bulk(self) -> float:
        """Return the time of a bulk pass."""
        started = perf_counter()
        self._embedder.encode(self.texts, show_progress_bar=False)
        return perf_counter() - started

    def query(self) -> float:
        """Return the median time of lone queries."""
        self._ask(0)
        return statistics.median(self._ask(index) for index in range(len(QUERIES)))

    def beside(self) -> float:
        """Return the time that nine of ten queries take at most beside a bulk pass."""
        interval = max(MIN_INTERVAL_SECONDS, 5 * self._ask(0))
        is_over = threading.Event()
        times: list[float] = []

        def ask() -> None:
            while not is_over.wait(interval):
                times.append(self._ask(len(times)))

        with ThreadPoolExecutor(1, "embedlib-tune-queries") as pool:
            asker = pool.submit(ask)
            try:
                self.bulk()
            finally:
                is_over.set()
            asker.result()
        return float(np.percentile(times or [self._ask(0)], 90))

    def _ask(self, index: int) -> float:
        started = perf_counter()
        self._embedder.encode(QUERIES[index % len(QUERIES)], show_progress_bar=False)
        return perf_counter() - started

    def close(self) -> None:
        """End the threads; the engine stays."""
        self._embedder.close()


class EmbeddingRunners:
    """Opens a planned model with profiles; close it."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self.texts: Sequence[str] = ()
        """Of a bulk pass; set before `open`."""
        self._engines: dict[Layout, CallerEngine] = {}
        """Each has the budget of the first profile of its layout that was opened."""
        self._runners: dict[Profile, EmbeddingRunner] = {}

    def open(self, profile: Profile) -> EmbeddingRunner:
        """Return the model with a profile, loaded once.

        Raises:
            EngineError: it cannot be loaded, for lack of memory for example.
        """
        if profile not in self._runners:
            planned = self._planned
            lent = LentEngine(self._engine(profile), profile.max_batch_tokens)
            config = Config(on_truncate="ignore")
            embedder = Embedder.from_engine(lent, planned.files.spec, planned.tokenizer, config)
            runner = EmbeddingRunner(embedder, self.texts)
            self._runners[profile] = runner
            runner.query()
            runner.bulk()
        return self._runners[profile]

    def _engine(self, profile: Profile) -> CallerEngine:
        if profile.layout not in self._engines:
            planned = self._planned
            plan = planned.plan
            if self._engines:  # is there memory for another one?
                plan = plan_again(plan, planned.files, planned.config, Machine())
            engine = make_engine(replace(plan, profile=profile), planned.files, planned.config)
            assert isinstance(engine, CallerEngine), "engines with profiles are; a bug in embedlib"
            self._engines[profile.layout] = engine
        return self._engines[profile.layout]

    def keep(self, profile: Profile) -> None:
        """Close what is not needed for this profile."""
        for other in [other for other in self._runners if other != profile]:
            self._runners.pop(other).close()
        for layout in [layout for layout in self._engines if layout != profile.layout]:
            self._engines.pop(layout).close()

    def close(self) -> None:
        """Close everything."""
        for runner in self._runners.values():
            runner.close()
        for engine in self._engines.values():
            engine.close()
