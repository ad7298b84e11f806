"""Fixtures that simulate a machine with a GPU and TensorRT-LLM."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STANDINS = Path(__file__).parents[2] / "standins"
OURS = "embedlib.engines.tensorrt_llm"
KEPT_VARIABLES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TLLM_AUTOTUNER_CACHE_PATH",
    "TRTLLM_NO_USAGE_STATS",
    "CUDA_VISIBLE_DEVICES",
)

H200 = "GPU-1, NVIDIA H200, 143771, 143000, 580.1, 9.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("torch") is None:
        skip = pytest.mark.skip(reason="needs torch (CPU): pip install torch==2.13.0")
        for item in items:
            if "gpu" in getattr(item, "fixturenames", ()) or item.path.name == "test_pooling.py":
                item.add_marker(skip)


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder, so that engine directories are compiled once per run."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a fake nvidia-smi that prints these lines."""

    def install(*rows: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        tool = folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    for name in KEPT_VARIABLES:  # monkeypatch restores variables that a test sets
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return install


class FakeStream:
    """A fake CUDA stream. Copies finish at once on the CPU, but events do not report it."""

    def wait_stream(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)

    def synchronize(self) -> None:
        FakeEvent.num_reached = FakeEvent.num_recorded


class FakeEvent:
    """A fake CUDA event; reached only after a wait for it or for a later event."""

    num_recorded = 0
    num_reached = 0

    def __init__(self) -> None:
        self.number: int | None = None

    def record(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)
        FakeEvent.num_recorded += 1
        self.number = FakeEvent.num_recorded

    def synchronize(self) -> None:
        assert self.number is not None
        FakeEvent.num_reached = max(FakeEvent.num_reached, self.number)

    def query(self) -> bool:
        assert self.number is not None
        return self.number <= FakeEvent.num_reached


@contextmanager
def on_stream(stream: FakeStream) -> Iterator[None]:
    assert isinstance(stream, FakeStream)
    yield


@pytest.fixture
def gpu(nvidia_smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install the stand-in of tensorrt_llm and a fake H200; return the package."""
    import torch

    torch.set_num_threads(1)  # with tensors this small, more threads only slow each other down
    nvidia_smi(H200)
    for name, fake in (
        ("Stream", FakeStream),
        ("Event", FakeEvent),
        ("stream", on_stream),
        ("current_stream", FakeStream),
        ("get_device_name", lambda index=0: "NVIDIA H200"),
        ("get_per_process_memory_fraction", lambda index: 1.0),
        ("set_per_process_memory_fraction", lambda fraction, index: None),
        ("empty_cache", lambda: None),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.syspath_prepend(str(STANDINS))
    before = set(sys.modules)
    import tensorrt_llm

    yield tensorrt_llm
    for name in set(sys.modules) - before:
        if name.startswith(("tensorrt_llm", OURS)):
            del sys.modules[name]
