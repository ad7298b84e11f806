"""The engine, as the parent drives it: seeded weights, ids in, vectors out."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda.attention import AttentionName
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.testing import make_batch
from tests.acceptance.gpu import gate
from tests.acceptance.gpu.clients import ask_all
from tests.acceptance.gpu.folder import roomy_place, weight_bytes, write_model
from tests.acceptance.gpu.models import TINY_BATCH_TOKENS, Precision, Shape, shape_of
from tests.acceptance.gpu.seeded import SeededWeights
from tests.acceptance.gpu.texts import (
    Ids,
    batches_of,
    id_tokenizer,
    lengths_of,
    percentiles,
    texts_of,
    written,
)
from tests.acceptance.gpu.traffic import Traffic, drive

WARM_UP: Final = 0.2
"""Share of a measurement's time that is spent before it."""
BULK_BATCHES: Final = 4
NUM_TEXTS: Final = 256
"""Different ones that clients ask for."""
NUM_QUERIES: Final = 16
"""Different ones, run in sequence: enough for a common beginning to be found (`MIN_VOTES` in
`engines.cuda.prefixes`) and for queries that use it."""
BULK_TOKENS_BESIDE: Final = "512"

Result = dict[str, Any]


class ContestantCalls:
    """The calls that the parent can make. Times are in seconds, or end in `_ms`."""

    _shape: Shape
    _engine: CudaEngine
    _embedder: Embedder

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._is_tiny = device == "cpu"
        self._is_loaded = False

    def load(
        self,
        model: str,
        precision: Precision,
        num_layers: int | None = None,
        has_marks: bool = False,
        has_outliers: bool = False,
        excluded: Sequence[str] = (),
        attention: AttentionName = "auto",
        keeps_prefix: bool = False,
    ) -> Result:
        """Make an engine, in place of the one before, and an Embedder around it.

        Unless it is asked for no prefix is kept: a text that is repeated would hardly be computed.
        """
        if self._is_loaded:
            self._embedder.close()
        begin = time.perf_counter()
        self._shape = shape_of(model, num_layers=num_layers, is_tiny=self._is_tiny)
        spec = self._shape.spec
        weights = SeededWeights(
            self._shape, self._device, has_marks=has_marks, has_outliers=has_outliers
        )
        self._engine = CudaEngine(
            spec,
            weights,
            precision=precision,
            device=str(self._device),
            excluded=excluded,
            max_batch_tokens=TINY_BATCH_TOKENS if self._is_tiny else None,
            attention=attention,
            keeps_prefix=keeps_prefix,
        )
        tokenizer = id_tokenizer(spec.encoder.vocab_size)
        self._embedder = Embedder.from_engine(self._engine, spec, tokenizer, Config())
        self._is_loaded = True
        gc.collect()  # as `embedlib serve` does; a collection of all that torch keeps takes 80 ms
        gc.freeze()
        result: Result = {"seconds": time.perf_counter() - begin}
        if self._device.type == "cuda":
            result["memory_gb"] = torch.cuda.memory_allocated(self._device) / 1e9
        return result

    def bulk(self, lengths: str, seconds: float) -> Result:
        """Measure batches, one after the other: ids in host memory to vectors in host memory."""
        batches = self._bulk_batches(lengths)
        self._drive(seconds * WARM_UP, bulk=batches)
        found = self._drive(seconds, bulk=batches)
        return {
            "tokens_per_s": found.tokens_per_s,
            "texts_per_s": found.num_seqs / found.seconds,
            "tflops": found.num_flops / found.seconds / 1e12,
        }

    def query(self, num_tokens: int, seconds: float, prefix_tokens: int = 0) -> Result:
        """Measure queries in sequence: ids, with a common beginning or none, to a vector."""
        texts = self._texts([num_tokens] * NUM_QUERIES, prefix_tokens)
        gate.alone(self._engine, texts)
        queries = cycle([make_batch([text], Lane.QUERY) for text in texts])
        return self._timed(lambda: self._engine.compute(next(queries)), seconds)

    def encode(self, num_tokens: int, seconds: float) -> Result:
        """Measure `Embedder.encode` of single texts: text to a vector."""
        text = written(self._texts([num_tokens])[0])
        return self._timed(lambda: self._embedder.encode(text, show_progress_bar=False), seconds)

    def _timed(self, ask: Callable[[], object], seconds: float) -> Result:
        """Ask again and again, as a caller does who waits for each answer."""
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end or not taken:
            ask()
            taken.append(time.perf_counter() - begin)
        return percentiles(taken[int(len(taken) * WARM_UP) :])

    def mixed(self, queries_per_s: float, num_tokens: int, seconds: float) -> Result:
        """Measure queries that arrive at random beside bulk, and what bulk loses to them."""
        bulk = self._bulk_batches(BULK_TOKENS_BESIDE)
        queries = [make_batch(self._texts([num_tokens]), Lane.QUERY)]
        before = self._drive(seconds / 2, bulk=bulk).tokens_per_s
        found = self._drive(seconds, bulk=bulk, queries=queries, queries_per_s=queries_per_s)
        after = self._drive(seconds / 2, bulk=bulk).tokens_per_s
        return {
            "queries_per_s": queries_per_s,
            **percentiles(found.query_s),
            "tokens_per_s": found.tokens_per_s,
            "bulk_loss": 1 - found.tokens_per_s / ((before + after) / 2),
        }

    def clients(self, num_clients: int, num_tokens: int, seconds: float) -> Result:
        """Measure many clients of one Embedder, tokenizing included."""
        texts = [written(ids) for ids in self._texts([num_tokens] * NUM_TEXTS)]
        for part in (seconds * WARM_UP, seconds):
            found = asyncio.run(ask_all(self._embedder.aencode, texts, num_clients, part))
        return found

    def vectors(self, path: str, lengths: list[int], prefix_tokens: int = 0) -> None:
        """Write float32[N, D] of texts of these lengths, each computed alone."""
        np.save(path, gate.alone(self._engine, self._texts(lengths, prefix_tokens)))

    def checks(self, allowed: float) -> list[Result]:
        """Return the outcomes of the checks that need no other engine; the marks must be loaded."""
        vocab_size = self._shape.spec.encoder.vocab_size
        return [check(self._engine, vocab_size, allowed) for check in gate.CHECKS]

    def compare(self, check: str, path: str, allowed: float) -> Result:
        """Return how close the gate's texts come to vectors that another contestant has written."""
        texts = gate.gate_texts(self._shape.spec.encoder.vocab_size)
        return gate.check_close(check, gate.alone(self._engine, texts), np.load(path), allowed)

    def find_room(self, model: str, copies: float) -> str:
        """Return a folder with room for `copies` copies of a model's weights."""
        shape = shape_of(model, is_tiny=self._is_tiny)
        return str(roomy_place(int(copies * weight_bytes(shape))))

    def write(self, folder: str, model: str, num_layers: int | None = None) -> Result:
        """Write a model's files."""
        begin = time.perf_counter()
        shape = shape_of(model, num_layers=num_layers, is_tiny=self._is_tiny)
        write_model(Path(folder), shape, self._device)
        return {"seconds": time.perf_counter() - begin, "gb": weight_bytes(shape) / 1e9}

    def _texts(self, lengths: list[int], prefix_tokens: int = 0) -> list[Ids]:
        """Return texts of these lengths, behind `prefix_tokens` tokens that are the same in all."""
        vocab_size = self._shape.spec.encoder.vocab_size
        texts = texts_of([prefix_tokens + length for length in lengths], vocab_size)
        for text in texts:
            text[:prefix_tokens] = texts[0][:prefix_tokens]
        return texts

    def _bulk_batches(self, lengths: str) -> list[Batch]:
        budget = self._engine.limits.max_batch_tokens
        drawn = lengths_of(lengths, BULK_BATCHES * budget, self._shape.max_seq_tokens)
        return batches_of(self._texts(drawn), budget)

    def _drive(self, seconds: float, **traffic: Any) -> Traffic:
        return drive(self._engine, self._shape.spec.encoder, seconds, **traffic)
