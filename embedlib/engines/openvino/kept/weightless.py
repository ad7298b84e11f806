"""Graphs of large models that are kept without weights, which stay in the model's own file.

OpenVINO leaves a constant out of what it exports if the constant knows its place in a file. The
reader of its IR format alone writes such places, so constants that lie in the mapped file are
replaced by those of a model in that format which has nothing else. Source:
`WeightlessCacheAttribute` and the IR reader of OpenVINO 2026.4,
src/core/xml_util/src/xml_deserialize_util.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.library import ov

WITHOUT_WEIGHTS: Final = {"CACHE_MODE": "OPTIMIZE_SIZE"}
"""The setting with which a compiled model is exported and imported without weights."""
SMALLEST_BYTES: Final = 4096
"""Smaller constants are kept with the graph."""
MOST_BYTES: Final = 64 << 20
"""Of constants that are not in the file: more of them would be a copy worth avoiding."""
_PORT_TYPES: Final = {"f32": "FP32", "f16": "FP16", "bf16": "BF16", "i8": "I8"}
"""Names of element types in the IR format, where a port has them in another spelling."""


@dataclass(frozen=True)
class _Place:
    node: ov.Node
    """A constant of a graph."""
    start: int
    """Its first byte in the file."""
    num_bytes: int


def refer(
    core: ov.Core, graphs: Sequence[ov.Model], file: NDArray[np.uint8], copied_bytes: int = 0
) -> ov.Tensor | None:
    """Let the constants of graphs that lie in a mapped file know their places in it.

    Args:
        core: reads the IR format.
        graphs: are changed; constants that are copied into memory stay as they are.
        file: uint8[file size], the mapped file; its pages are read later.
        copied_bytes: of constants that are copies of weights on purpose; they are kept.

    Returns:
        What the constants read in place; it must live as long as they do. None: too many weights
        are not in the file, and the graphs stay as they are.
    """
    first, behind = file.ctypes.data, file.ctypes.data + file.nbytes
    places = []
    num_left = 0
    for node in (node for graph in graphs for node in graph.get_ops()):
        if node.get_type_name() != "Constant":
            continue
        values = node.data
        start, num_bytes = values.ctypes.data, values.nbytes
        is_inside = first <= start and start + num_bytes <= behind
        is_known = node.get_element_type().get_type_name() in _PORT_TYPES
        if is_inside and is_known and num_bytes >= SMALLEST_BYTES:
            places.append(_Place(node, start - first, num_bytes))
        else:
            num_left += num_bytes
    if num_left > MOST_BYTES + copied_bytes:
        return None
    tensor = ov.Tensor(file, shared_memory=True)
    read = core.read_model(_ir(places), tensor)
    found = {node.get_friendly_name(): node for node in read.get_ops()}
    for number, place in enumerate(places):
        place.node.output(0).replace(found[f"weight{number}"].output(0))
    return tensor


def _ir(places: Sequence[_Place]) -> str:
    """Return a model in the IR format: each of these constants, and a result of it."""
    layers, edges = [], []
    for number, place in enumerate(places):
        kind = place.node.get_element_type().get_type_name()
        shape = [str(size) for size in place.node.get_output_shape(0)]
        sizes = "".join(f"<dim>{size}</dim>" for size in shape)
        port = f'<port id="0" precision="{_PORT_TYPES[kind]}">{sizes}</port>'
        layers.append(
            f'<layer id="{2 * number}" name="weight{number}" type="Const" version="opset1">'
            f'<data element_type="{kind}" shape="{", ".join(shape)}" offset="{place.start}" '
            f'size="{place.num_bytes}"/><output>{port}</output></layer>'
            f'<layer id="{2 * number + 1}" name="result{number}" type="Result" version="opset1">'
            f"<input>{port}</input></layer>"
        )
        edges.append(
            f'<edge from-layer="{2 * number}" from-port="0" to-layer="{2 * number + 1}" '
            'to-port="0"/>'
        )
    return (
        f'<net name="weights" version="11"><layers>{"".join(layers)}</layers>'
        f"<edges>{''.join(edges)}</edges></net>"
    )
