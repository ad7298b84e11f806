"""TensorRT-LLM's attention, imported from the installed version's location.

The modules moved between 1.3.0rc25 and 1.3.0rc27, NVIDIA/TensorRT-LLM#17968. Of the three used here
only one can still be imported from its old location, and that import warns.
"""

from __future__ import annotations

try:
    from tensorrt_llm._torch.attention.attention import Attention
except ModuleNotFoundError:
    from tensorrt_llm._torch.modules.attention import Attention
try:
    from tensorrt_llm._torch.attention.qk_norm_attention import QKNormRoPEAttention
except ModuleNotFoundError:
    from tensorrt_llm._torch.modules.qk_norm_attention import QKNormRoPEAttention
try:
    from tensorrt_llm._torch.attention.backends.interface import (
        PositionalEmbeddingParams,
        PredefinedAttentionMask,
        RopeParams,
    )
except ModuleNotFoundError:
    from tensorrt_llm._torch.attention_backend.interface import (
        PositionalEmbeddingParams,
        PredefinedAttentionMask,
        RopeParams,
    )

__all__ = [
    "Attention",
    "PositionalEmbeddingParams",
    "PredefinedAttentionMask",
    "QKNormRoPEAttention",
    "RopeParams",
]
