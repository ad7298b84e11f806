"""CPU time of a DeBERTa beside a BERT of the same size, in turns in one process.

    python -m tests.acceptance.relative_costs --tokens 24 112 300 512

Both have seeded weights of the base size and take the first token's vector, as classifiers and
rerankers do. Bulk is a batch of as many texts as the token budget takes, on a stream of one thread;
a query is one text on all threads. What is told is the lower quartile of the CPU time of all
threads, and the median of the ratio of neighbours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from embedlib.engines.base import Batch, Lane
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.encoder_parts import RelativePositions
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.testing import fake_spec, make_batch
from tests.tiny_encoders import CLS, PLAIN, computed

WIDTH, HEADS, POSITIONS = 768, 12, 512
MIN_SECONDS = 0.25
"""Of a turn: short batches are computed several times."""


def spec_of(num_layers: int, relative: RelativePositions | None) -> ModelSpec:
    encoder = replace(
        PLAIN,
        vocab_size=1000,
        hidden_size=WIDTH,
        num_layers=num_layers,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=WIDTH // HEADS,
        intermediate_size=4 * WIDTH,
        num_positions=POSITIONS,
        windows=(None,) * num_layers,
        relative_positions=relative,
    )
    return replace(fake_spec(POSITIONS), encoder=encoder, modules=(CLS,), embedding_dim=WIDTH)


def load(num_layers: int, relative: RelativePositions | None, threads: int) -> OpenVINOEngine:
    spec, dice = spec_of(num_layers, relative), np.random.default_rng(0)
    weights = {}
    for role, shape in encoder_shapes(spec.encoder).items():
        values = dice.standard_normal(shape, dtype=np.float32)
        weights[role] = 1 + values / 10 if role.endswith("norm.weight") else values / 30
    return OpenVINOEngine(spec, weights, Layout(threads=threads))


def batch_of(lane: Lane, length: int, budget: int) -> Batch:
    dice = np.random.default_rng(length)
    count = max(1, budget // length) if lane is Lane.BULK else 1
    return make_batch(list(dice.integers(0, 1000, (count, length), np.int32)), lane)


def cpu_seconds(call: Callable[[], object], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def main() -> None:
    """Print a line for each lane and length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[24, 112, 300, 512])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    kinds = (None, RelativePositions(num_buckets=256, max_distance=POSITIONS))
    engines = [load(given.layers, kind, given.threads) for kind in kinds]
    for lane in (Lane.BULK, Lane.QUERY):
        for length in given.tokens:
            batch = batch_of(lane, length, engines[0].limits.max_batch_tokens)
            calls = [partial(computed, engine, batch) for engine in engines]
            once = [max(cpu_seconds(call, 1) for _ in range(2)) for call in calls]
            times = max(1, int(MIN_SECONDS / once[0]))
            rows = [[cpu_seconds(call, times) for call in calls] for _ in range(given.rounds)]
            bert, deberta = np.quantile(rows, 0.25, axis=0)
            ratio = np.median([second / first for first, second in rows])
            print(  # noqa: T201
                f"{lane.value}, {batch.num_seqs} x {length} tokens: BERT {1000 * bert:.1f} ms, "
                f"DeBERTa {1000 * deberta:.1f} ms, {deberta / bert:.3f}; of neighbours {ratio:.3f}",
                flush=True,
            )
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
