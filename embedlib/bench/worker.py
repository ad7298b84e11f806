"""What runs in a child process: one contestant, called by JSON lines on standard input.

`measuring.child` describes the lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.bench.contestants.contestant import Contestant
from embedlib.bench.contestants.llama_cpp import LlamaCppContestant
from embedlib.bench.contestants.others import (
    FastembedContestant,
    InfinityContestant,
    Model2vecContestant,
)
from embedlib.bench.contestants.own import (
    CROSS_ENCODER,
    INT8_RERANKER,
    RERANKER,
    EmbedlibContestant,
)
from embedlib.bench.contestants.rerank import CrossEncoderContestant, RerankerContestant
from embedlib.bench.contestants.sentence_transformers import (
    OnnxInt8Contestant,
    OpenVINOContestant,
    SentenceTransformersContestant,
)
from embedlib.bench.contestants.tei import TeiContestant
from embedlib.bench.peers import EMBEDLIB, FLOAT32, INT8, ST, missing_modules
from embedlib.engines.machine import Machine
from embedlib.measuring.child import Memory, serve_standard_streams
from embedlib.measuring.sgemm import SGEMM, SgemmCalls
from embedlib.vectors.arrays import Vectors


def make_contestant(name: str) -> Contestant:
    """Return a contestant by its name; it has loaded nothing yet."""
    makers: dict[str, Callable[[], Contestant]] = {
        EMBEDLIB: EmbedlibContestant,
        FLOAT32: lambda: EmbedlibContestant("float32"),
        INT8: lambda: EmbedlibContestant("int8"),
        RERANKER: RerankerContestant,
        INT8_RERANKER: lambda: RerankerContestant("int8"),
        CROSS_ENCODER: CrossEncoderContestant,
        ST: SentenceTransformersContestant,
        f"{ST}-bf16": lambda: SentenceTransformersContestant("bfloat16"),
        f"{ST}-openvino": OpenVINOContestant,
        f"{ST}-openvino-float32": lambda: OpenVINOContestant(INFERENCE_PRECISION_HINT="f32"),
        f"{ST}-onnx-int8": OnnxInt8Contestant,
        "fastembed": FastembedContestant,
        "llama.cpp-float32": lambda: LlamaCppContestant("float32"),
        "llama.cpp-bf16": lambda: LlamaCppContestant("bf16"),
        "llama.cpp-q8_0": lambda: LlamaCppContestant("q8_0"),
        "infinity": InfinityContestant,
        "model2vec": Model2vecContestant,
        "text-embeddings-inference": TeiContestant,
    }
    return makers[name]()


class ContestantCalls:
    """The calls that the parent can make. Times are in seconds, or end in `_ms`."""

    def __init__(
        self, contestant: Contestant, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._contestant = contestant
        self._clock = clock
        self._texts: list[str] = []
        self._queries: list[str] = []
        self._vectors: Vectors | None = None

    def missing(self, peer: str) -> list[str]:
        """Return the modules that a peer needs and this interpreter lacks."""
        return missing_modules(peer)

    def load(
        self, folder: str, cache_dir: str, threads: int, options: dict[str, Any], query: str
    ) -> dict[str, Any]:
        """Load the model and compute a first vector."""
        self._contestant.import_library()
        started = self._clock()
        self._contestant.load(Path(folder), Path(cache_dir), threads, options)
        constructor_s = self._clock() - started
        self._contestant.query(query)
        return {
            "constructor_s": constructor_s,
            "precision": self._contestant.precision(),
            "memory_mib": self._contestant.memory(),
            "versions": Machine().versions(self._contestant.packages),
        }

    def fill_cache(self, cache_dir: str) -> None:
        """Store what makes the next start quicker."""
        self._contestant.fill_cache(Path(cache_dir))

    def set_texts(self, texts: list[str], queries: list[str]) -> None:
        """Keep the texts of a bulk pass, and the queries."""
        self._texts, self._queries = texts, queries

    def bulk(self, batch_size: int | None, stride: int = 1) -> float:
        """Embed every `stride`-th text; return the time."""
        texts = self._texts[::stride]
        started = self._clock()
        self._vectors = self._contestant.encode(texts, batch_size)
        return self._clock() - started

    def query(self, seconds: float) -> list[float]:
        """Run one query after the other for `seconds`; return the latencies in ms."""
        latencies_ms: list[float] = []
        started = self._clock()
        # Each query at least once, so that a slow model has more than one sample as well.
        while len(latencies_ms) < len(self._queries) or self._clock() - started < seconds:
            latencies_ms.append(self._ask(len(latencies_ms)))
        return latencies_ms

    def mixed(
        self, seconds: float, interval_s: float, batch_size: int | None
    ) -> dict[str, list[float]]:
        """Alternate bulk passes without and with queries beside them, beginning and ending without.

        Returns the times of both kinds of passes, and the latencies of the queries.
        """
        without_s = [self.bulk(batch_size)]
        with_s: list[float] = []
        latencies_ms: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            while sum(with_s) < seconds:
                is_over = threading.Event()
                asker = pool.submit(self._ask_until, is_over, interval_s, latencies_ms)
                try:
                    with_s.append(self.bulk(batch_size))
                finally:
                    is_over.set()
                asker.result()
                without_s.append(self.bulk(batch_size))
        return {"without_s": without_s, "with_s": with_s, "latencies_ms": latencies_ms}

    def _ask_until(
        self, is_over: threading.Event, interval_s: float, latencies_ms: list[float]
    ) -> None:
        due = self._clock()
        while not is_over.is_set():
            latencies_ms.append(self._ask(len(latencies_ms)))
            # On a fixed schedule: a slow answer does not lower the number of queries, and one that
            # took longer than the interval is followed by the next query at once.
            due = max(due + interval_s, self._clock())
            is_over.wait(due - self._clock())

    def _ask(self, index: int) -> float:
        text = self._queries[index % len(self._queries)]
        started = self._clock()
        self._contestant.query(text)
        return (self._clock() - started) * 1e3

    def stats(self) -> dict[str, float]:
        """Return what the contestant has counted."""
        return self._contestant.stats()

    def memory(self) -> Memory:
        """Return the memory of the process that holds the model."""
        return self._contestant.memory()

    def save_vectors(self, path: str) -> None:
        """Write the vectors of the last bulk pass as .npy, in float32."""
        assert self._vectors is not None, "bulk comes first; this is a bug in embedlib"
        np.save(path, np.asarray(self._vectors, np.float32))


def main(name: str, threads: int) -> None:
    """Serve one contestant on standard input and output."""
    calls: object = SgemmCalls(threads) if name == SGEMM else ContestantCalls(make_contestant(name))
    serve_standard_streams(calls)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
