from __future__ import annotations

import pytest
import torch

from embedlib.engines.cuda.device import CpuDevice, check_capability, open_device
from embedlib.errors import EngineUnavailableError, EngineUnsupportedError


@pytest.mark.parametrize(
    ("capability", "precision", "told"),
    [
        (
            (8, 0),
            "fp8",
            r"'fp8' needs a GPU of compute capability 8\.9; this one has 8\.0, which can:",
        ),
        ((7, 5), "bf16", r"needs .* 8\.0; this one has 7\.5, which can: fp16, float32"),
        ((7, 0), "fp16", r"which can: none"),
    ],
)
def test_a_gpu_that_is_too_old(capability: tuple[int, int], precision: str, told: str) -> None:
    with pytest.raises(EngineUnsupportedError, match=told):
        check_capability(capability, precision)


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((8, 9), "fp8"), ((9, 0), "fp8"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((12, 0), "float32")],
)
def test_a_gpu_that_can(capability: tuple[int, int], precision: str) -> None:
    check_capability(capability, precision)


def test_the_cpu_records_nothing_and_runs_again() -> None:
    device = CpuDevice()
    source = torch.tensor([1.0])
    replay, result = device.record(lambda: source * 2)
    source[0] = 5
    assert result.tolist() == [2]
    replay()
    assert result.tolist() == [10]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_no_gpu(name: str) -> None:
    with pytest.raises(
        EngineUnavailableError, match=rf"device = '{name}': torch .* sees no NVIDIA"
    ):
        open_device(name, "fp8", 0.9)
