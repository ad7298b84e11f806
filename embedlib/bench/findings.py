"""What follows from the measurements: cosines, and how near the machine's limits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from embedlib.bench.result import Closeness, Limits, OfTheLimit
from embedlib.fidelity.compare import cosines, mean_and_p1
from embedlib.measuring.openvino_products import ROWS
from embedlib.measuring.sgemm import Rates, flop_per_token
from embedlib.measuring.spread import Spread
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import list_files, place_of
from embedlib.models.spec import Encoder
from embedlib.vectors.arrays import Vectors

_WEIGHT_BYTES: Final = {"float32": 4, "bf16": 2, "int8": 1}


def why_not_comparable(vectors: Vectors, reference: Vectors) -> str | None:
    """Return why vectors have no cosines to float32[N, D]; None: they have."""
    if vectors.shape != reference.shape:
        made, right = (" x ".join(map(str, each.shape)) for each in (vectors, reference))
        return f"its vectors are {made} numbers, and embedlib's {right}"
    if not np.isfinite(vectors).all():
        return "its vectors have NaN or infinite numbers"
    return None


def closeness(vectors: Vectors, reference: Vectors) -> Closeness:
    """Return the cosines between rows of two float32[N, D]."""
    found = cosines(vectors, reference)
    mean, p1 = mean_and_p1(found)
    return Closeness(mean=mean, p1=p1, min=float(found.min()))


def weights_mib(files: ModelFiles) -> float:
    """Return the size of a model's weights files."""
    found = (path for folder in files.directories for path in list_files(folder, "*.safetensors"))
    return sum(place_of(path).num_bytes for path in found) / (1 << 20)


def limits_of(encoder: Encoder, products: Sequence[Rates], reads: Sequence[float]) -> Limits:
    """Return the machine's limits of all rounds.

    Args:
        encoder: the model.
        products: FLOP/s by precision and library, of each round.
        reads: bytes/s, of each round.
    """
    flop = flop_per_token(encoder)
    return Limits(
        rows=ROWS,
        flop_per_token=flop,
        num_weights=flop // 2,
        gflop_per_s={
            precision: {
                library: Spread.of([one[precision][library] / 1e9 for one in products])
                for library in libraries
            }
            for precision, libraries in products[0].items()
        },
        read_gb_per_s=Spread.of([rate / 1e9 for rate in reads]),
    )


def of_the_limit(
    limits: Limits, precision: str, tokens_per_s: float, query_ms: float, query_tokens: float
) -> OfTheLimit | None:
    """Return how near a contestant is to the machine's limits in its precision.

    None: they were not measured, or the model has no layers.

    Attention, norms and tokenizing count as free, and weights as read once: nothing is faster.
    """
    precision = precision.partition("-")[0]  # products in int8-g128 are in int8
    if precision not in limits.gflop_per_s or not limits.num_weights:
        return None
    rate = max(spread.median for spread in limits.gflop_per_s[precision].values()) * 1e9
    reading_s = limits.num_weights * _WEIGHT_BYTES[precision] / (limits.read_gb_per_s.median * 1e9)
    floor_ms = max(reading_s, query_tokens * limits.flop_per_token / rate) * 1e3
    return OfTheLimit(
        bulk_share=tokens_per_s * limits.flop_per_token / rate,
        query_floor_ms=floor_ms,
        query_ratio=query_ms / floor_ms,
    )
