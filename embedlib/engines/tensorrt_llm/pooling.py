"""The modules after the transformer, on packed tokens and inside the CUDA graph.

Nothing here synchronizes with the host, and everything is float32. A CUDA graph may be replayed
with padding: more sequences (of one token each) and more tokens than the batch has. Tokens of no
sequence are pooled into an extra row that is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedlib.models.spec import (
    Activation,
    Dense,
    LayerNorm,
    ModelSpec,
    Normalize,
    Pooling,
    PoolingMode,
)


def _identity(values: Tensor) -> Tensor:
    return values


ACTIVATIONS: Final[Mapping[Activation, Callable[[Tensor], Tensor]]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": _identity,
}


class Head(nn.Module):  # type: ignore[misc]
    """The modules of a spec: computes one vector per sequence from token vectors."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleDict()
        """The modules that have weights, by position in the spec."""
        for position, module in enumerate(spec.modules):
            if isinstance(module, Dense):
                layer: nn.Module = nn.Linear(
                    module.in_features, module.out_features, module.has_bias, dtype=torch.float32
                )
            elif isinstance(module, LayerNorm):
                layer = nn.LayerNorm(
                    module.dim, module.eps, bias=module.has_bias, dtype=torch.float32
                )
            else:
                continue
            self.layers[str(position)] = layer

    def forward(self, hidden: Tensor, token_ids: Tensor, seq_lens: Tensor) -> Tensor:
        """Return float32[B, D].

        Args:
            hidden: float[T, H].
            token_ids: int[T].
            seq_lens: int[B]; their sum is at most T.
        """
        vectors = hidden
        for position, module in enumerate(self.spec.modules):
            if isinstance(module, Pooling):
                vectors = pool(hidden, token_ids, seq_lens, module)
            elif isinstance(module, Dense):
                activate = ACTIVATIONS[module.activation]
                vectors = activate(self.layers[str(position)](vectors))
            elif isinstance(module, LayerNorm):
                vectors = self.layers[str(position)](vectors)
            elif isinstance(module, Normalize):
                vectors = functional.normalize(vectors, dim=1)
        return vectors


def pool(hidden: Tensor, token_ids: Tensor, seq_lens: Tensor, pooling: Pooling) -> Tensor:
    """Return float32[B, H * number of modes]; the arguments are those of `Head.forward`."""
    ends = torch.cumsum(seq_lens, 0)
    vectors = [
        _pool_mode(hidden, token_ids, seq_lens, ends, mode, pooling) for mode in pooling.modes
    ]
    return torch.cat(vectors, 1).float()


def _pool_mode(
    hidden: Tensor,
    token_ids: Tensor,
    seq_lens: Tensor,
    ends: Tensor,
    mode: PoolingMode,
    pooling: Pooling,
) -> Tensor:
    if mode == "cls":
        return hidden[ends - seq_lens]
    if mode == "last_token":
        if pooling.skipped_token_id is None:
            return hidden[ends - 1]
        return hidden[_last_but(pooling.skipped_token_id, token_ids, ends)]
    assert mode == "mean", f"check_supported rejects pooling {mode}; this is a bug in embedlib"
    sums = hidden.new_zeros((len(seq_lens) + 1, hidden.shape[1]), dtype=torch.float32)
    sums.index_add_(0, _sequences(len(hidden), ends), hidden.float())
    return sums[:-1] / seq_lens[:, None]


def _sequences(num_tokens: int, ends: Tensor) -> Tensor:
    """Return int64[T]: the index of each token's sequence; B for tokens of no sequence."""
    tokens = torch.arange(num_tokens, device=ends.device)
    return torch.searchsorted(ends, tokens, right=True)


def _last_but(skipped: int, token_ids: Tensor, ends: Tensor) -> Tensor:
    """Return int64[B]: each sequence's last token that is not `skipped`; its first if all are.

    Source: `pooled_logits` in `GenericForSequenceClassification` of transformers 5.5,
    modeling_layers.py, for texts padded on the right.
    """
    tokens = torch.arange(len(token_ids), device=ends.device)
    candidates = torch.where(token_ids != skipped, tokens, -1)
    last = torch.full((len(ends) + 1,), -1, dtype=torch.int64, device=ends.device)
    last = last.scatter_reduce(0, _sequences(len(token_ids), ends), candidates, "amax")[:-1]
    starts = torch.nn.functional.pad(ends[:-1], (1, 0))
    return torch.where(last >= 0, last, starts)
