"""Reports a skip if the tests of the CUDA engine, in cuda/, cannot even be collected."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_the_cuda_engine_is_tested(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: nothing in tests/engines/cuda runs")
