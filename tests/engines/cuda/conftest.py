"""Runs kernels on the GPU if there is one, otherwise on the CPU with Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["*.py"]
else:
    import torch

    # Tiny products would only wait for more threads, one for each core in each pytest-xdist worker.
    torch.set_num_threads(1)
    HAS_GPU = torch.cuda.is_available()
    if not HAS_GPU:
        assert "triton" not in sys.modules, "too late: kernels are made when they are imported"
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.insert(0, str(Path(__file__).parent))
        import interpreter

        sys.path.pop(0)
        interpreter.correct()

    @pytest.fixture
    def device() -> torch.device:
        return torch.device("cuda" if HAS_GPU else "cpu")
