"""Convolutions over the neighbours of each token, beside a loop over texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.engines.cuda import kernels, reference
from embedlib.engines.cuda.device_weights import Convolution
from tests.engines.cuda.seeded import numbers

# In the interpreter, numpy warns about operations that a GPU computes silently.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")

COLUMNS = 40


def text_by_text(
    source: torch.Tensor, convolution: Convolution, lengths: list[int]
) -> NDArray[np.float64]:
    """Return each text convolved alone, with zeros before and behind it."""
    weight = convolution.weight.double().cpu().numpy()
    found = []
    for text in source.double().cpu().split(lengths):
        first, gate, last = np.split(text.numpy(), 3, axis=1)
        for place in range(len(text)):
            total = np.zeros(COLUMNS)
            if convolution.bias is not None:
                total += convolution.bias.double().cpu().numpy()
            for index in range(len(weight)):
                near = place + index - len(weight) // 2
                if 0 <= near < len(text):
                    total += weight[index] * first[near] * last[near]
            found.append(gate[place] * total)
    return np.stack(found)


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "has_bias"), [(3, True), (7, False)])
def test_neighbours_are_those_of_the_same_text(
    module: Any, width: int, has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    lengths = [1, 2, 9, 1, 1, 4]
    source = numbers(device, sum(lengths), 3 * COLUMNS).to(dtype)
    bias = numbers(device, COLUMNS) if has_bias else None
    convolution = Convolution(numbers(device, width, COLUMNS), bias)
    places = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    expected = torch.from_numpy(text_by_text(source, convolution, lengths)).to(device)
    source = torch.cat([source, source.new_full((3, 3 * COLUMNS), torch.nan)])
    # Unused rows of a recording: the positions of tokens that no text has.
    positions = torch.from_numpy(np.concatenate([places, np.zeros(3, np.int32)])).to(device)
    out = torch.full((len(source), COLUMNS), torch.nan, device=device).to(dtype)
    module.convolve(source, positions, convolution, out)
    step = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out[:-3].double(), expected, rtol=step, atol=step)
