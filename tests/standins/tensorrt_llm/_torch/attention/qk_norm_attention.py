from __future__ import annotations

from typing import Any

from torch import Tensor

from tensorrt_llm._torch.attention.attention import Attention
from tensorrt_llm._torch.modules.rms_norm import RMSNorm


class QKNormRoPEAttention(Attention):
    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        pretrained = config.pretrained_config
        for name in ("q_norm", "k_norm"):
            norm = RMSNorm(
                hidden_size=self.head_dim,
                eps=pretrained.rms_norm_eps,
                dtype=pretrained.torch_dtype,
            )
            setattr(self, name, norm)

    def apply_qk_norm(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._each_head(q, self.q_norm), self._each_head(k, self.k_norm)

    def _each_head(self, values: Tensor, norm: RMSNorm) -> Tensor:
        return norm(values.reshape(-1, self.head_dim)).reshape(values.shape)
