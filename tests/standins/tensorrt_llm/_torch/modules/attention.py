"""The re-export that remains here in 1.3.0rc27 and later; the two other paths are gone."""

from __future__ import annotations

import warnings

from tensorrt_llm._torch.attention.attention import Attention

warnings.warn(
    "tensorrt_llm._torch.modules.attention has moved to tensorrt_llm._torch.attention.attention",
    FutureWarning,
    stacklevel=2,
)

__all__ = ["Attention"]
