"""How a model is laid out on the CPU: threads and streams, lanes, budget, precision, library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from embedlib.engines.base import PADDING_TOKENS, EngineLimits
from embedlib.engines.machine import Machine, has_avx2_alone
from embedlib.engines.openvino.graphs.distances import most_batch_tokens
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.graphs.weighted import Multiplier
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.plans.memory import best_batch_tokens
from embedlib.engines.openvino.sizes.mlp_sizes import num_mlp_parts
from embedlib.engines.openvino.sizes.number_types import multiplies_tiles
from embedlib.engines.openvino.sizes.operator_sizes import PREPARED, PREPARED_FOR_QUERIES
from embedlib.engines.openvino.sizes.padding import MIN_ROWS, QUERY_ROWS, Padding
from embedlib.engines.openvino.sizes.stage_sizes import max_stages
from embedlib.engines.profile import Library
from embedlib.models.spec import Encoder, ModelSpec

MAX_INFLIGHT_QUERIES: Final = 1
"""Those that wait become one batch. With one more ready behind it, 4 clients of MiniLM in bf16 got
a fifth fewer answers, and 16 of them, or 8 of BERT-base, some 6 % fewer. Source:
docs/measurements/server.md, several connections with one short text each."""
TILES_PADDING_TOKENS: Final = 150
"""Where AMX multiplies: reading the weights takes as long as many more tokens, and few rows are
multiplied at a fraction of the rate. Source: docs/measurements/cpu-amx.md, padding."""
MAX_UNFUSED_TOKENS: Final = 512
"""Where AMX multiplies with one thread a batch, products, softmax and mask of attention are not
fused in models that take so many tokens at most: short texts gain more than long ones lose. With
all threads in a batch they gain less than long ones lose. Source:
docs/measurements/cpu-amx.md, batches, queries and attention."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is decided about an engine before its graph is built; the spec and weights are given."""

    threads: int
    """Cores to use."""
    max_batch_tokens: int | None = None
    """Token budget of a batch; None: the measured best."""
    max_inflight_bulk: int | None = None
    """Bulk batches taken at once; None: one per core and one ready."""
    shares_lanes: bool = False
    """Whether both lanes use one compiled model, to save memory."""
    precision: Literal["float32", "bf16"] = "float32"
    """Of everything that is not int8."""
    activation_group: int | None = None
    """Activations per quantization group where the matrix is int8; None: no matrix is.

    OpenVINO quantizes the activations to int8 at run time, with one scale per group of this many
    neighboring elements of a token's vector: `scale = largest / 127`. A shorter remainder is a
    group of its own, and a vector shorter than one group stays float32. On CPUs without
    instructions that multiply int8 (x86 without VNNI, ARM), all activations stay float32, and so
    they do where a group is longer than one of the weights. Smaller groups are more accurate and
    slower. Source: docs/int8.md, group sizes."""
    is_large: bool = False
    """Whether the weights are too large for copies that can be saved otherwise: by packing a matrix
    once for any number of rows, and by letting mapped pages go."""
    is_narrow: bool = False
    """Whether a file stores weights in 16 bits, which oneDNN multiplies anyway."""
    num_streams: int | None = None
    """Bulk batches computed at the same time; None: one per core, or one where the lanes share a
    compiled model."""
    library: Library = "auto"
    """What multiplies."""

    @property
    def _is_lower(self) -> bool:
        """Whether matrices are multiplied in a lower precision than float32."""
        return self.precision == "bf16" or self.activation_group is not None

    @property
    def streams(self) -> int:
        """How many bulk batches are computed at the same time."""
        return 1 if self.shares_lanes else min(self.num_streams or self.threads, self.threads)

    @property
    def _has_tiles(self) -> bool:
        """Whether AMX multiplies."""
        return multiplies_tiles(self.precision, Machine().cpu_features())

    def limits(self, spec: ModelSpec) -> EngineLimits:
        """Return what the scheduler must know."""
        num_bulk = self.max_inflight_bulk or self.streams + 1
        return EngineLimits(
            embedding_dim=spec.embedding_dim,
            is_per_token=not spec.is_splade and not spec.has_pooling,
            is_sparse=spec.is_splade,
            is_padded=True,
            max_padding_tokens=TILES_PADDING_TOKENS if self._has_tiles else PADDING_TOKENS,
            max_batch_tokens=self._batch_tokens(spec.encoder),
            num_parallel_batches=self.streams,
            max_inflight_batches=num_bulk + MAX_INFLIGHT_QUERIES,
            max_inflight_bulk=num_bulk,
        )

    def _batch_tokens(self, encoder: Encoder) -> int:
        """Return the token budget: the wanted one, unless the graph takes fewer."""
        best = best_batch_tokens(self.precision, shares_lanes=self.shares_lanes)
        wanted = self.max_batch_tokens or best
        has_distances = encoder.relative_positions is not None
        return min(wanted, most_batch_tokens(encoder)) if has_distances else wanted

    def settings(self, spec: ModelSpec) -> list[dict[str, Any]]:
        """Return the properties of the compiled models: of bulk unless they are shared, of queries.

        The one for queries is the last.
        """
        is_bf16 = self.precision == "bf16"
        both = {
            # On a CPU with AMX OpenVINO would compute in bfloat16 unasked.
            "INFERENCE_PRECISION_HINT": "bf16" if is_bf16 else "f32",
            "EXECUTION_MODE_HINT": "PERFORMANCE" if is_bf16 else "ACCURACY",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.activation_group or 0,
            "INFERENCE_NUM_THREADS": self.threads,
            # Pinned threads of two models, or two Embedders, would sit on the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        is_short = spec.max_seq_tokens <= MAX_UNFUSED_TOKENS
        if self._has_tiles and not self.shares_lanes and is_short:
            both["SNIPPETS_MODE"] = "DISABLE"
        # By itself memory grows with every new size of a batch, to 5,000 operators of a kind.
        capacity = "CPU_RUNTIME_CACHE_CAPACITY"
        num_kept = PREPARED if self.shares_lanes else PREPARED_FOR_QUERIES
        bulk = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": self.streams, capacity: PREPARED}
        query = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, capacity: num_kept}
        return [both | lane for lane in ([query] if self.shares_lanes else [bulk, query])]

    def multiplier(self, core: ov.Core) -> Multiplier:
        """Return which library shall multiply on this CPU.

        In bf16 oneDNN multiplies everything, packs a matrix once, and fuses an activation with the
        product. With AMX it must be told so, whatever a profile says: OpenVINO fuses a gated MLP
        with GELU to an operator of its own, which divides by zero on one thread and writes beyond
        its memory, by its source, on any other odd number (`LinearKsplit2` in nodes/llm_mlp.cpp).

        Else a large model is multiplied by MLAS, which packs a matrix once. For the few tokens of a
        query of a small one, oneDNN is faster on Intel. On other CPUs OpenVINO gives oneDNN the
        products that an activation follows. With AVX2 and no AVX-512 that loses more than fusing
        saves, so there MLAS multiplies float32 matrices of a small model, too. Source:
        docs/measurements/, queries.md (single queries), memory.md (packings), zen4-precisions.md
        (tried on Zen 4) and cpu-avx2.md (as it comes on AVX2 alone); CPUs of vendors other
        than Intel and AMD were not measured.

        Args:
            core: OpenVINO's, with its CPU plugin loaded.
        """
        if self._has_tiles:
            return "onednn"
        if self.library != "auto":
            return self.library
        if self.precision == "bf16":
            return "any"
        if self.is_large:
            return "mlas"
        if "Intel" in core.get_property("CPU", "FULL_DEVICE_NAME"):
            return "onednn"
        is_float32 = self.activation_group is None and not self.is_narrow
        has_avx2 = has_avx2_alone(Machine().cpu_features())
        return "mlas" if is_float32 and has_avx2 else "any"

    def graph_options(
        self, core: ov.Core, encoder: Encoder, *, is_whole: bool = False
    ) -> GraphOptions:
        """Return how the graph is built on this CPU.

        Args:
            core: OpenVINO's, with its CPU plugin loaded.
            encoder: of the model.
            is_whole: whether it is not cut into stages, also where the lanes share it.
        """
        is_cut = self.shares_lanes and not is_whole
        has_tiles = self._has_tiles
        mlp_parts = num_mlp_parts(encoder, self.threads, shares_lanes=self.shares_lanes)
        most_stages = max_stages(encoder.num_layers, is_float32=not self._is_lower)
        return GraphOptions(
            multiplier=self.multiplier(core),
            max_stages=most_stages if is_cut else 1,
            is_bf16=self.precision == "bf16",
            has_narrow_residual=has_tiles,
            mlp_parts=mlp_parts if has_tiles else 1,
        )

    def padding(self, encoder: Encoder) -> Padding:
        """Return to how many tokens batches of a model are padded."""
        return Padding(
            encoder.max_tokens,
            min_rows=MIN_ROWS if self.is_large else 1,
            query_rows=QUERY_ROWS if self._is_lower else 1,
            has_tiles=self._has_tiles,
        )
