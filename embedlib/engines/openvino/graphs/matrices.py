"""The matrix of a linear layer, in float32 or int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.machine import VNNI_FLAGS, Machine
from embedlib.engines.openvino.graphs.nodes import int_constants
from embedlib.engines.openvino.library import op, ov
from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.int8 import INT8_GROUPS, dequantize
from embedlib.models.compiled.row_scales import SCALE_SUFFIX
from embedlib.models.weights.mapped import StoredBits, stored_bits
from embedlib.vectors.bfloat16 import bfloat16_bits

SHORT_COLUMNS: Final = max(INT8_GROUPS.values())
"""OpenVINO 2026.4 multiplies int8 wrongly in bf16 where columns are odd and fewer than those of a
group of activations."""
ONE_FORM_WEIGHTS: Final = 1 << 22
"""From so many weights on oneDNN packs a matrix in one form for any number of vectors. Source:
`get_adjusted_oc_block` of OpenVINO's oneDNN, cpu/x64/jit_brgemm_inner_product_utils.cpp: 16 MiB of
float32."""
SMALL_FORM_ROWS: Final = 32
"""It packs a smaller one in another form for 7 to 80 vectors, and keeps both, if its rows are a
multiple of this. Source: `use_small_os_kernels`, in the same file."""
_EXPONENTS: Final = {"BF16": np.uint16(0x7F80), "F16": np.uint16(0x7C00)}
"""Bits that are all set in infinity and NaN alone. Source: IEEE 754-2019, 3.4; of bfloat16 those of
the upper half of a float32."""
LAST_ROWS: Final = 16
"""Rows that are multiplied apart, so that those of neither part are such a multiple."""


def parts_packed_once(weights: Mapping[str, NDArray[Any]], role: str) -> list[ov.Node]:
    """Return the nodes of a weight matrix, each of some rows, that the plugin packs in one form.

    A matrix that is stored in float32 is one part, for MLAS. So is an int8 matrix where activations
    are rounded to int8 too: there oneDNN has only one form.
    """
    narrow = stored_bits(weights, role)
    stored = weights[role] if narrow is None else narrow.bits
    is_coded = stored.dtype == np.int8 and not rounds_activations()
    num_rows = stored.shape[0]
    has_two_forms = stored.size < ONE_FORM_WEIGHTS and num_rows % SMALL_FORM_ROWS == 0
    if not (has_two_forms and (is_coded or narrow is not None)):
        return [matrix_rows(weights, role)]
    most = num_rows - LAST_ROWS
    return [matrix_rows(weights, role, slice(most)), matrix_rows(weights, role, slice(most, None))]


def rounds_activations() -> bool:
    """Return whether this CPU has what makes OpenVINO round activations to int8."""
    return not VNNI_FLAGS.isdisjoint(Machine().cpu_features())


def matrix_rows(
    weights: Mapping[str, NDArray[Any]], role: str, rows: slice = slice(None)
) -> ov.Node:
    """Return the node of these rows of a weight matrix, a view of them: float32[rows, columns].

    An int8 weight becomes its codes times the scales of their groups. The plugin recognizes this
    form: it keeps the codes in int8 and multiplies them with activations that it has quantized to
    int8. A 16-bit weight is widened when the plugin packs it, and never as a whole.
    """
    narrow = stored_bits(weights, role)
    if narrow is not None:
        return widened(StoredBits(narrow.dtype, narrow.bits[rows]))
    stored = np.ascontiguousarray(weights[role][rows])
    if stored.dtype != np.int8:
        return op.constant(stored, shared_memory=True)
    scales = np.ascontiguousarray(weights[role + SCALE_SUFFIX][rows])
    if stored.shape[1] < SHORT_COLUMNS and stored.shape[1] % 2:  # only models for tests
        return op.constant(dequantize(stored, scales))
    is_grouped = scales.shape[1] > 1
    codes = stored.reshape(*scales.shape, -1) if is_grouped else stored
    factors = scales[:, :, np.newaxis] if is_grouped else scales
    numbers = op.convert(op.constant(codes, shared_memory=True), "f32")
    product = op.multiply(numbers, op.constant(factors, shared_memory=True))
    return op.reshape(product, int_constants(*stored.shape), False) if is_grouped else product


def check_finite(weights: Mapping[str, NDArray[Any]], role: str, rows: slice = slice(None)) -> None:
    """Check these rows of a tensor where NaN would pass unseen: the plugin's ReLU makes it 0.

    Raises:
        ModelWeightsError: there is a number that is not finite.
    """
    narrow = stored_bits(weights, role)
    if narrow is not None:
        exponent = _EXPONENTS[narrow.dtype]
        is_finite = ((narrow.bits[rows] & exponent) != exponent).all()
    else:
        is_coded = weights[role].dtype == np.int8
        is_finite = np.isfinite(weights[role + SCALE_SUFFIX if is_coded else role][rows]).all()
    if not is_finite:
        raise ModelWeightsError(
            f"{role} has a number that is not finite; the file is damaged or was trained so, "
            "take another copy of the model"
        )


def matrix_columns(weights: Mapping[str, NDArray[Any]], role: str, columns: slice) -> ov.Node:
    """Return the node of these columns of a weight matrix, for a graph in bf16: a copy of them.

    In 16 bits, to which the plugin would round them when it packs them.
    """
    narrow = stored_bits(weights, role)
    if narrow is None:
        assert weights[role].dtype == np.float32, "in bf16 no MLP is int8; a bug in embedlib"
        narrow = StoredBits("BF16", bfloat16_bits(weights[role][:, columns]))
    else:
        narrow = StoredBits(narrow.dtype, np.ascontiguousarray(narrow.bits[:, columns]))
    return widened(narrow, is_copied=True)


def widened(narrow: StoredBits, *, is_copied: bool = False) -> ov.Node:
    """Return the node float32[...] of a 16-bit tensor: a constant in its file, and a conversion.

    Marked as a decompression, the conversion stays behind the constant; otherwise the plugin would
    compute it when it compiles, and keep the result. Source: class Decompression of OpenVINO,
    rt_info/decompression.hpp, whose name and version are the key.

    Args:
        narrow: the tensor.
        is_copied: whether the constant is a copy of it.
    """
    kind = ov.Type.f16 if narrow.dtype == "F16" else ov.Type.bf16
    tensor = ov.Tensor(narrow.bits, ov.Shape(narrow.bits.shape), kind)
    node = op.convert(op.constant(tensor, shared_memory=not is_copied), "f32")
    node.get_rt_info()["decompression_0"] = ""
    return node


def float_matrix(weights: Mapping[str, NDArray[Any]], role: str) -> NDArray[np.float32]:
    """Return a weight matrix as float32[rows, columns]; int8 codes are dequantized."""
    stored: NDArray[Any] = np.ascontiguousarray(weights[role])
    if stored.dtype == np.int8:
        return dequantize(stored, weights[role + SCALE_SUFFIX])
    return stored
