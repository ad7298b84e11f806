"""Measures the engine on a GPU: `python -m embedlib.engines.cuda.bench`.

One line of JSON per result. Token ids are in host memory at the start and float32 vectors at the
end; only the tokenizer is left out. Weights are seeded and as large as trained ones: their numbers
do not change what is computed, except that zeros would be faster. Ceilings are measured first, in
the same run, so that every figure can be read as a share of what this chip does.

A block that fails is told, and the next one begins.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from queue import Empty, SimpleQueue
from typing import Any, Final, get_args

import numpy as np
import torch

from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda.bench_models import MODELS, SeededWeights
from embedlib.engines.cuda.buffers import FP8
from embedlib.engines.cuda.engine import CudaEngine, Precision
from embedlib.models.spec import Encoder, ModelSpec

Result = dict[str, Any]

BULK_LENGTHS: Final = (32, 128, 512, 2048, 8192)
QUERY_LENGTHS: Final = (8, 16, 64, 512)
UNDER_BULK_TOKENS: Final = 16
QUERIES_PER_S: Final = (20.0, 100.0)
MIXED_MEDIAN_TOKENS: Final = 180
"""Of passages; their logarithms are normal with the deviation 1."""
CEILING_ROWS: Final = (16, 64, 512, 2048, 8192, 16384)
CEILING_REPEATS: Final = 20
FLUSH_BYTES: Final = 1 << 28
"""Weights of so much in turn: more than any cache keeps."""


@dataclass
class Traffic:
    """What came back."""

    query_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_seqs: int = 0
    num_flops: float = 0.0
    seconds: float = 0.0


def drive(
    engine: CudaEngine,
    spec: ModelSpec,
    seconds: float,
    *,
    bulk: Sequence[Batch] = (),
    query: Batch | None = None,
    queries_per_s: float = float("inf"),
) -> Traffic:
    """Keep an engine full of bulk, and send queries beside it, from one thread.

    Args:
        engine: what is measured.
        spec: its model.
        seconds: for how long.
        bulk: batches, again and again; none: only queries.
        query: a batch on the query lane.
        queries_per_s: mean of random arrivals; infinity: one behind the other.
    """
    done: SimpleQueue[tuple[Any, Batch, float]] = SimpleQueue()
    random = np.random.default_rng(0)
    batches = cycle(bulk)
    num_bulk = num_queries = 0
    traffic = Traffic()
    begin = next_query = time.perf_counter()
    end = begin + seconds

    def send(batch: Batch) -> None:
        jobs: list[Any] = []
        sent = time.perf_counter()
        jobs.append(engine.submit(batch, lambda: done.put((jobs, batch, sent))))

    while (now := time.perf_counter()) < end or num_bulk or num_queries:
        if now < end:
            while bulk and num_bulk < engine.limits.max_inflight_bulk:
                send(next(batches))
                num_bulk += 1
            if query is not None and now >= next_query and not num_queries:
                send(query)
                num_queries += 1
                next_query += random.exponential(1 / queries_per_s)
        waits = query is not None and not num_queries and now < end
        try:
            jobs, batch, sent = done.get(timeout=max(0.0, next_query - now) if waits else None)
        except Empty:
            continue
        jobs[0].result()
        if batch.lane is Lane.QUERY:
            num_queries -= 1
            traffic.query_s.append(time.perf_counter() - sent)
        else:
            num_bulk -= 1
            traffic.num_tokens += len(batch.token_ids)
            traffic.num_seqs += batch.num_seqs
            traffic.num_flops += batch_flops(spec.encoder, batch.seq_lens.tolist())
    traffic.seconds = time.perf_counter() - begin
    return traffic


def batch_flops(encoder: Encoder, lengths: Sequence[int]) -> float:
    """Return the floating-point operations that the vectors of a batch need.

    Two for each weight of a linear layer and token, and four for each head dimension and pair of
    tokens that see one another; what pruning saves is counted as done, so it counts as speed.
    """
    queries = encoder.num_heads * encoder.head_dim
    linear = encoder.hidden_size * (2 * queries + 2 * encoder.num_kv_heads * encoder.head_dim)
    linear += encoder.hidden_size * encoder.intermediate_size * (3 if encoder.is_gated else 2)
    pairs = sum(n * (n + 1) / 2 if encoder.is_causal else n * n for n in lengths)
    return encoder.num_layers * (2.0 * linear * sum(lengths) + 4.0 * queries * pairs)


def batches_of(lengths: Sequence[int], spec: ModelSpec, max_tokens: int) -> list[Batch]:
    """Return bulk batches with all these lengths, each within the token budget or of one text."""
    parts: list[list[int]] = [[]]
    for length in lengths:
        if parts[-1] and sum(parts[-1]) + length > max_tokens:
            parts.append([])
        parts[-1].append(length)
    return [make_batch(part, spec, Lane.BULK) for part in parts]


def make_batch(lengths: Sequence[int], spec: ModelSpec, lane: Lane) -> Batch:
    """Return a batch of random ids."""
    ids = np.random.default_rng(0).integers(0, spec.encoder.vocab_size, sum(lengths))
    return Batch(
        lane=lane,
        token_ids=ids.astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        num_prompt_tokens=np.zeros(len(lengths), np.int32),
        num_first_tokens=np.array(lengths, np.int32),
    )


def ceilings(encoder: Encoder, device: torch.device) -> Iterator[Result]:
    """Yield the rate of matrix products in the model's shapes, and that of copies."""
    hidden, inner = encoder.hidden_size, encoder.intermediate_size
    queries = encoder.num_heads * encoder.head_dim
    qkv = queries + 2 * encoder.num_kv_heads * encoder.head_dim
    wide = inner * (2 if encoder.is_gated else 1)
    for columns, inputs in ((qkv, hidden), (hidden, queries), (wide, hidden), (hidden, inner)):
        for rows in CEILING_ROWS:
            for name, product in _products(rows, columns, inputs, device):
                took = _median_s(product)
                rate = 2 * rows * columns * inputs / took / 1e12
                shape = [rows, columns, inputs]
                yield {"block": "ceiling", "what": name, "shape": shape, "tflops": rate}
    source = torch.randn(FLUSH_BYTES, device=device)
    target = torch.empty_like(source)
    took = _median_s(partial(target.copy_, source))
    rate = 2 * source.nbytes / took / 1e12
    yield {"block": "ceiling", "what": "copy, read and written", "tbytes_per_s": rate}


def _products(
    rows: int, columns: int, inputs: int, device: torch.device
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a name and a call that multiplies with another weight each time."""
    count = max(1, FLUSH_BYTES // (columns * inputs))
    source = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    weights = cycle(
        [torch.randn(columns, inputs, device=device).to(torch.bfloat16) for _ in range(count)]
    )
    yield "bf16", lambda: torch.mm(source, next(weights).t())
    codes = source.to(FP8)
    fp8_weights = cycle([next(weights).to(FP8) for _ in range(count)])
    one = torch.ones((), device=device)
    ways = {
        "fp8, scales of rows": (torch.ones(rows, 1, device=device), one.expand(1, columns).clone()),
        "fp8, one scale": (one, one),
    }
    for name, scales in ways.items():
        for is_fast in (True, False):
            call = partial(_scaled_mm, codes, fp8_weights, scales, is_fast)
            yield f"{name}, {'fast' if is_fast else 'exact'} sum", call


def _scaled_mm(
    codes: torch.Tensor,
    weights: Iterator[torch.Tensor],
    scales: tuple[torch.Tensor, torch.Tensor],
    is_fast: bool,
) -> torch.Tensor:
    return torch._scaled_mm(
        codes, next(weights).t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=is_fast
    )


def _median_s(launch: Callable[[], object]) -> float:
    """Return the median of a launch on the GPU, in seconds."""
    for _ in range(3):
        launch()
    pairs = []
    for _ in range(CEILING_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in pairs])) / 1e3


def measure(engine: CudaEngine, spec: ModelSpec, seconds: float) -> Iterator[Callable[[], Result]]:
    """Yield measurements to be made: bulk, single queries, queries under bulk."""
    budget = engine.limits.max_batch_tokens

    def bulk(name: str, lengths: Sequence[int]) -> Result:
        batches = batches_of(lengths, spec, budget)
        drive(engine, spec, seconds / 5, bulk=batches)
        found = drive(engine, spec, seconds, bulk=batches)
        return {
            "block": "bulk",
            "lengths": name,
            "tokens_per_s": found.num_tokens / found.seconds,
            "texts_per_s": found.num_seqs / found.seconds,
            "tflops": found.num_flops / found.seconds / 1e12,
        }

    def queries(num_tokens: int) -> Result:
        query = make_batch([num_tokens], spec, Lane.QUERY)
        drive(engine, spec, seconds / 5, query=query)
        found = drive(engine, spec, seconds, query=query)
        return {"block": "query", "tokens": num_tokens, **_percentiles(found.query_s)}

    def both(queries_per_s: float) -> Result:
        query = make_batch([min(UNDER_BULK_TOKENS, spec.max_seq_tokens)], spec, Lane.QUERY)
        length = min(512, spec.max_seq_tokens)
        batches = batches_of([length] * (4 * budget // length), spec, budget)
        found = drive(engine, spec, seconds, bulk=batches, query=query, queries_per_s=queries_per_s)
        return {
            "block": "queries under bulk",
            "queries_per_s": queries_per_s,
            **_percentiles(found.query_s),
            "bulk_tokens_per_s": found.num_tokens / found.seconds,
        }

    for length in BULK_LENGTHS:
        if length <= spec.max_seq_tokens:
            yield partial(bulk, str(length), [length] * max(2, 4 * budget // length))
    random = np.random.default_rng(0)
    mixed = MIXED_MEDIAN_TOKENS * np.exp(random.standard_normal(8 * budget // MIXED_MEDIAN_TOKENS))
    yield partial(bulk, "mixed", np.clip(mixed, 2, min(4096, spec.max_seq_tokens)).astype(int))
    for length in QUERY_LENGTHS:
        if length <= spec.max_seq_tokens:
            yield partial(queries, length)
    for rate in QUERIES_PER_S:
        yield partial(both, rate)


def _percentiles(times: Sequence[float]) -> Result:
    marks = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    return {
        "num_queries": len(times),
        **{f"{name}_ms": float(np.percentile(times, mark)) * 1e3 for name, mark in marks.items()},
    }


def run(
    spec: ModelSpec, precision: Precision, device: str, seconds: float, max_batch_tokens: int | None
) -> Iterator[Result]:
    """Yield all results for one model; a measurement that fails is a result too."""
    begin = time.perf_counter()
    on_device = torch.device(device)
    weights = SeededWeights(spec, on_device)
    engine = CudaEngine(
        spec, weights, precision=precision, device=device, max_batch_tokens=max_batch_tokens
    )
    result = {"block": "start", "seconds": time.perf_counter() - begin, "torch": torch.__version__}
    if on_device.type == "cuda":
        result["gpu"] = torch.cuda.get_device_name(on_device)
        result["memory_gb"] = torch.cuda.memory_allocated(on_device) / 1e9
    yield result
    for measurement in measure(engine, spec, seconds):
        try:
            yield measurement()
        except Exception as error:  # the other blocks are worth their time all the same
            yield {"block": "failed", "error": f"{type(error).__name__}: {error}"}
    engine.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m embedlib.engines.cuda.bench")
    parser.add_argument("--model", choices=MODELS, default="bge-en-icl", help="whose sizes")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--max-batch-tokens", type=int, help="default: the engine's own")
    parser.add_argument("--no-ceilings", action="store_true", help="leave the chip's own rates out")
    options = parser.parse_args(arguments)
    spec = MODELS[options.model]
    if not options.no_ceilings:
        for result in ceilings(spec.encoder, torch.device(options.device)):
            _tell(result)
    for result in run(
        spec, options.precision, options.device, options.seconds, options.max_batch_tokens
    ):
        _tell({"model": options.model, "precision": options.precision, **result})


def _tell(result: Result) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
