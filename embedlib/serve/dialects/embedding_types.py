"""The types of numbers that clients ask vectors in, for the routes that have them."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.serve.errors import HTTPError
from embedlib.serve.sessions import check_quantization, ranges_of
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.quantization import quantize

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
"""Cohere's names; base64 is of float32."""


def check_type(
    session: Embedder,
    kind: EmbeddingType,
    field: str,
    *,
    dimensions: int | None,
    normalizes: bool = False,
) -> None:
    """Check that a model has what a type of its vectors needs.

    Args:
        session: the model.
        kind: the type.
        field: of the body, which names the type.
        dimensions: that are kept; None: all.
        normalizes: whether the vectors are scaled to unit length.

    Raises:
        HTTPError: it has no ranges of its dimensions, or those of other vectors.
    """
    if kind == "float" or kind == "base64":
        return
    if kind in ("int8", "uint8") and ranges_of(session) is None:
        raise HTTPError(
            400,
            f"{field} = {kind!r}, which needs the range of every dimension; ask for float or "
            "binary, or serve an Embedder with quantization_ranges through create_app",
            param=field,
        )
    try:
        check_quantization(session, kind, dimensions, normalizes=normalizes)
    except ConfigError as error:
        raise HTTPError(400, str(error), param=field) from None


def as_type(rows: Vectors, kind: EmbeddingType, session: Embedder) -> NDArray[Any]:
    """Return float32[N, D] in a type that `check_type` has let pass."""
    if kind == "float" or kind == "base64":
        return rows
    return quantize(rows, kind, ranges_of(session))
