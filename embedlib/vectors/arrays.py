"""Type names of arrays of vectors, and of what stands in for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Vectors as they are computed: float32[N, D], or float32[D] for one text."""
AnyVectors = NDArray[Any]
"""Vectors in the type that the caller asked for: float32, float16, int8, uint8 or packed bits."""


class SupportsArray(Protocol):
    """What numpy makes an array of: its own arrays, columns of data frames, tensors."""

    def __array__(self) -> NDArray[Any]:
        """Return the array."""


class TensorLike(SupportsArray, Protocol):
    """A tensor of torch, by a member that arrays lack; torch need not be installed for it."""

    @property
    def requires_grad(self) -> bool:
        """Whether torch records what is computed with it."""


TensorT = TypeVar("TensorT", bound=TensorLike)

DenseVectors: TypeAlias = (
    SupportsArray | Sequence[float] | Sequence[Sequence[float]] | Sequence[SupportsArray]
)
"""Vectors of any origin, [N, D] or [D]; or a list of [T, D], the vectors of the tokens of texts."""

if TYPE_CHECKING:

    class ArrayOrTensor(np.ndarray[Any, np.dtype[np.float32]], Any):  # type: ignore[misc]
        """An array of float32, or where the program has imported torch a tensor.

        Editors complete it as an array; type checkers take it for a tensor, too.
        """

else:
    ArrayOrTensor = NDArray[np.float32]
