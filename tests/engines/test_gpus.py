"""What is read from nvidia-smi, on a machine without one."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.engines.gpu_memory import room_of
from embedlib.engines.gpus import Gpu, list_gpus
from embedlib.errors import EngineUnavailableError

H200_ROW = "GPU-aa11, NVIDIA H200, 143771, 143000, 580.1, 9.0"
A100_ROW = "GPU-bb22, NVIDIA A100, 40960, 40000, 580.1, 8.0"
T4_ROW = "GPU-cc33, Tesla T4, 15360, 15000, 580.1, 7.5"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs an `nvidia-smi` that prints these rows.

    With -L it prints the lines `listed`, and its status is that of a call it does not know if there
    are none.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*rows: str, status: int = 0, listed: str = "") -> None:
        tool = tmp_path / "nvidia-smi"
        lines = "".join(f"echo '{row}'\n" for row in rows)
        others = f"cat <<'END'\n{listed}END\nexit {0 if listed else 2}"
        tool.write_text(f'#!/bin/sh\nif [ "$1" = -L ]; then\n{others}\nfi\n{lines}exit {status}\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["NVIDIA H200", "NVIDIA A100", "Tesla T4"]),
        ("", []),
        ("2,0", ["Tesla T4", "NVIDIA H200"]),
        ("GPU-bb", ["NVIDIA A100"]),
        ("1,7,0", ["NVIDIA A100"]),
        ("MIG-1", []),
    ],
)
def test_the_gpus_a_process_sees(
    setting: str | None,
    names: list[str],
    driver: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(H200_ROW, A100_ROW, T4_ROW)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.name for gpu in list_gpus()] == names


MIG_UUID = "MIG-a1b2c3d4-0000-1111-2222-333344445555"
LISTED = f"""\
GPU 0: NVIDIA H200 (UUID: GPU-aa11)
GPU 1: NVIDIA A100 (UUID: GPU-bb22)
  MIG 3g.20gb     Device  0: (UUID: {MIG_UUID})
  MIG 3g.20gb     Device  1: (UUID: MIG-GPU-bb22/1/0)
GPU 2: Tesla T4 (UUID: GPU-cc33)
"""


@pytest.mark.parametrize("setting", [MIG_UUID, "MIG-a1b2", "MIG-GPU-bb22/1/0"])
def test_a_mig_device(
    setting: str, driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(H200_ROW, A100_ROW, T4_ROW, listed=LISTED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    (gpu,) = list_gpus()
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA A100", (8, 0))
    assert (gpu.total_bytes, gpu.free_bytes, gpu.uuid) == (None, None, "")


@pytest.mark.parametrize("listed", ["", LISTED])
def test_a_mig_device_that_is_not_listed(
    listed: str,
    driver: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver(H200_ROW, A100_ROW, T4_ROW, listed=listed)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-77,0")
    with caplog.at_level(logging.WARNING):
        assert list_gpus() == []
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("CUDA_VISIBLE_DEVICES names MIG-77, which `nvidia-smi -L` does not list")


def test_a_driver_that_does_not_answer(driver: Callable[..., None]) -> None:
    driver(status=9)
    with pytest.raises(EngineUnavailableError, match=r"nvidia-smi ended with 9: without a word$"):
        list_gpus()
    driver("NVIDIA-SMI has failed", "Make sure that the driver is running.", status=9)
    with pytest.raises(EngineUnavailableError, match=r"ended with 9: Make sure that the driver is"):
        list_gpus()


def test_a_driver_that_lists_its_gpus_and_warns(driver: Callable[..., None]) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    driver(H200_ROW, warning, status=14)
    assert [gpu.name for gpu in list_gpus()] == ["NVIDIA H200"]


def test_a_driver_without_the_field(driver: Callable[..., None]) -> None:
    driver('Field "compute_cap" is not a valid field to query.', status=2)
    with pytest.raises(EngineUnavailableError, match=r"the driver is too old \(Field \"compute_ca"):
        list_gpus()


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailableError, match=r"^no NVIDIA GPU was found \(there is"):
        list_gpus()


def test_what_a_gpu_tells(driver: Callable[..., None]) -> None:
    driver(H200_ROW, "GPU-dd, NVIDIA GB10, [N/A], [N/A], 580.1, 12.1")
    first, second = list_gpus()
    assert first == Gpu(
        name="NVIDIA H200",
        total_bytes=143771 << 20,
        free_bytes=143000 << 20,
        driver="580.1",
        compute_capability=(9, 0),
        uuid="GPU-aa11",
    )
    assert second.total_bytes is None
    assert room_of(second, 0.9) == math.inf  # the memory is unknown, so nothing is rejected
