"""What a graph depends on besides the model and its weights."""

from __future__ import annotations

from dataclasses import dataclass

from embedlib.engines.openvino.graphs.weighted import Multiplier


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How a graph is built; the vectors are equal up to rounding."""

    multiplier: Multiplier = "any"
    """The library that multiplies."""
    max_stages: int = 1
    """Into how many graphs it is cut at most."""
    is_bf16: bool = False
    """Whether it is for a compiled model in bf16."""
    has_narrow_residual: bool = False
    """Whether the residual stream is in bf16, too, of a model that pools one token or the mean. The
    plugin computes in float32 what lies between an output in float32 and the products before it,
    and that is the residual stream of all layers unless a product makes the output. Where the
    tokens themselves are the output, or their largest numbers, it stays in float32."""
    mlp_parts: int = 1
    """Into how many parts each MLP is cut, see `mlp`."""
