from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from tensorrt_llm.functional import PositionEmbeddingType


class PredefinedAttentionMask(str, Enum):
    CAUSAL = "causal"
    FULL = "full"


@dataclass(kw_only=True, unsafe_hash=True)
class RopeParams:
    dim: int = 0
    theta: float = 10000.0
    scale: float = 1.0
    max_positions: int = 1024
    original_max_positions: int = 1024


@dataclass(kw_only=True, frozen=True)
class PositionalEmbeddingParams:
    type: PositionEmbeddingType
    rope: RopeParams | None = None
    is_neox: bool = True

    def __post_init__(self) -> None:
        assert self.rope is not None, f"{self.type} requires a not-none rope"


class AttentionMetadata:
    """A batch without a KV cache; every request is a context request."""

    def __init__(self, seq_lens: list[int], num_tokens: int) -> None:
        self.seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
        # On a GPU this is a buffer that may be longer than the batch.
        self.seq_lens_cuda = torch.cat([self.seq_lens, torch.zeros(3, dtype=torch.int32)])
        self.num_contexts = len(seq_lens)
        self.num_tokens = num_tokens
        self.kv_cache_manager = None
