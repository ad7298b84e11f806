"""A fixture that runs a graph on one padded batch, compiled once per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.running.inputs import pad
from embedlib.engines.openvino.running.kept_prefixes import KeptPrefixes
from embedlib.models.spec import ModelSpec

Array = NDArray[np.float32]
Compiled = Callable[[Batch], Array]

# Not the engine's options: one compiled model instead of one per lane, on one thread.
OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}


@pytest.fixture(scope="session")
def compile_graph() -> Callable[[ModelSpec, Mapping[str, Array]], Compiled]:
    """Return a function that compiles a model and returns a function from batch to vectors."""
    core = ov.Core()

    def compiled(spec: ModelSpec, weights: Mapping[str, Array]) -> Compiled:
        [graph] = build_stages(spec, weights, GraphOptions())
        names = [node.get_node().get_friendly_name() for node in graph.inputs]
        model = core.compile_model(graph, "CPU", OPTIONS)
        prefixes = KeptPrefixes.of([model])

        reads = graph, weights  # in place, for as long as the model computes

        def run(batch: Batch) -> Array:
            assert reads
            token_ids = pad(batch)
            arrays = {
                "token_ids": token_ids,
                "indices": np.arange(token_ids.shape[1], dtype=np.int32),
                "seq_lens": batch.seq_lens,
                "num_type0_tokens": batch.num_type0_tokens,
                **(prefixes.none().arrays if prefixes else {}),
            }
            return np.array(model([arrays[name] for name in names])["vectors"])

        return run

    return compiled
