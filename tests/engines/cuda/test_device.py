from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.engines.cuda import device, streams
from embedlib.engines.cuda.capability import check_capability, torch_version
from embedlib.engines.cuda.device import CpuDevice, CudaDevice, open_device
from embedlib.engines.cuda.kind import check_devices
from embedlib.errors import EngineUnavailableError, EngineUnsupportedError
from tests.machines import H200
from tests.waiting import WAIT_SECONDS

NEW = (2, 13)


@pytest.mark.parametrize(
    ("capability", "precision", "told"),
    [
        (
            (8, 0),
            "fp8",
            r"'fp8' needs a GPU of compute capability 8\.9; this one has 8\.0, which supports:",
        ),
        ((7, 5), "bf16", r"needs .* 8\.0; this one has 7\.5, which supports: fp16, float32"),
        ((7, 0), "fp16", r"which supports: none"),
    ],
)
def test_a_gpu_that_is_too_old(capability: tuple[int, int], precision: str, told: str) -> None:
    with pytest.raises(EngineUnsupportedError, match=told):
        check_capability(capability, precision, NEW)


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((8, 9), "fp8"), ((9, 0), "fp8"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((12, 0), "float32")],
)
def test_a_gpu_that_can(capability: tuple[int, int], precision: str) -> None:
    check_capability(capability, precision, NEW)


def test_a_torch_that_multiplies_on_another_stream_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    old = torch_version()
    assert old == (2, 11)
    told = r"'fp8' on compute capability 8\.9 needs torch 2\.12 or later; this is 2\.11; use"
    with pytest.raises(EngineUnsupportedError, match=told):
        check_capability((8, 9), "fp8", old)
    for capability, precision, version in (
        ((8, 9), "bf16", old),
        ((9, 0), "fp8", old),
        ((8, 9), "fp8", (2, 12)),
    ):
        check_capability(capability, precision, version)


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_of_the_driver_that_torch_does_not_see() -> None:
    with pytest.raises(EngineUnavailableError, match=r"^device = 'cuda:1': torch .* new enough"):
        check_devices(("cuda:1",), (H200,))


def test_a_torch_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    told = r"^torch cannot be loaded: import of torch halted.*; pip install .*cuda"
    with pytest.raises(EngineUnavailableError, match=told):
        check_devices(("cuda:0",), (H200,))


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton needs one at its first use."""
    triton = pytest.importorskip("triton")
    asked: list[None] = []

    class Driver:
        def get_current_target(self) -> None:
            asked.append(None)
            if len(asked) == 1:
                raise RuntimeError("Failed to find C compiler.\nMore.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: H200.name)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    told = r"^Triton cannot compile here: Failed to find C compiler\.; it needs a C compiler \(gcc"
    with pytest.raises(EngineUnavailableError, match=told):
        check_devices(("cuda:0",), (H200,))
    check_devices(("cuda:0",), (H200,))


class Watched(torch.Tensor):
    """A tensor that stands for one on a GPU and logs the operations on it."""

    log: list[str]

    def clone(self, *_: object, **__: object) -> Watched:  # type: ignore[override]
        self.log.append("clone")
        return self

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Watched:  # type: ignore[override]
        self.log.append(f"copy of {source.tolist()}, non_blocking={non_blocking}")
        return self

    def to(self, *_: object, non_blocking: bool = False) -> Watched:  # type: ignore[override]
        self.log.append(f"to the GPU, non_blocking={non_blocking}")
        return self

    def record_stream(self, stream: Any) -> None:
        self.log.append(f"memory waits for {stream.name}")


class Gpu:
    """Logs the calls of `CudaDevice` to torch, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        gpu, names = self, cycle(("compute", "copies", "results"))

        class Stream:
            def __init__(self, _: object, priority: int = 0) -> None:
                self.name = next(names)
                self.priority = priority

            def wait_stream(self, other: Stream) -> None:
                gpu.log.append(f"{self.name} waits for {other.name}")

            def record_event(self, _: object) -> None:
                gpu.log.append(f"event on {self.name}")

            def synchronize(self) -> None:
                gpu.log.append(f"waited for {self.name}")

        class Event:
            def synchronize(self) -> None:
                gpu.log.append("waited for the event")

        class Graph:
            def replay(self) -> None:
                gpu.log.append("replayed")

        def on(stream: Stream) -> AbstractContextManager[None]:
            self.log.append(f"on {stream.name}")
            return nullcontext()

        def graph(
            _: Graph, *, pool: str, stream: Stream, capture_error_mode: str
        ) -> AbstractContextManager[None]:
            self.log.append(f"recording {stream.name} into {pool}, {capture_error_mode}")
            return nullcontext()

        for name, value in {
            "set_per_process_memory_fraction": lambda share, device: self.log.append(
                f"{share} of {device}"
            ),
            "get_per_process_memory_fraction": lambda _: 1.0,
            "memory_reserved": lambda _: 0,
            "get_device_capability": lambda *_: (9, 0),
            "graph_pool_handle": lambda: "the pool",
            "synchronize": lambda device: self.log.append(f"waited for {device}"),
            "empty_cache": lambda: None,
            "device": lambda _: nullcontext(),
            "Stream": Stream,
            "stream": on,
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(streams, "_FREE", {})
        monkeypatch.setattr(device, "_page_locked", self.page_locked)
        self.device = CudaDevice("cuda:1", 0.7)
        assert self.log == ["0.7 of 1"]
        self.log.clear()

    def log_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Log also where a device is made the current one, and where it is no longer."""

        @contextmanager
        def on(device: torch.device) -> Iterator[None]:
            self.log.append(f"on {device}")
            yield
            self.log.append(f"off {device}")

        monkeypatch.setattr(torch.cuda, "device", on)

    def page_locked(self, values: NDArray[np.int32]) -> Watched:
        self.log.append("copied to page-locked memory")
        return self.tensor(values.tolist())

    def tensor(self, values: list[float]) -> Watched:
        found = torch.tensor(values).as_subclass(Watched)
        found.log = self.log
        return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu(monkeypatch)
    yield gpu
    gpu.device._give_back()


def test_a_gpu_takes_ids_beside_its_kernels_and_computes_behind_them(gpu: Gpu) -> None:
    gpu.device.upload(np.array([5], np.int32))
    assert gpu.log == [
        *("copied to page-locked memory", "on copies", "to the GPU, non_blocking=True"),
        *("compute waits for copies", "memory waits for compute"),
    ]


def test_a_gpu_takes_a_querys_ids_between_its_kernels(gpu: Gpu) -> None:
    """The previous recording may still read that memory."""
    gpu.device.refill(gpu.tensor([0]), np.array([5], np.int32))
    assert gpu.log == ["copied to page-locked memory", "copy of [5], non_blocking=True"]


def test_a_gpu_copies_behind_its_kernels_on_a_stream_of_its_own(gpu: Gpu) -> None:
    gpu.device.download(gpu.tensor([1.0]), gpu.tensor([0.0]))
    assert gpu.log == [
        "clone",
        "results waits for compute",
        "on results",
        "copy of [1.0], non_blocking=True",
        "memory waits for results",
        "event on results",
    ]


def test_a_gpu_copies_a_short_result_between_its_kernels(gpu: Gpu) -> None:
    """The next recording that writes these vectors runs behind the copy."""
    gpu.device.download(gpu.tensor([1.0]), gpu.tensor([0.0]), is_short=True)
    assert gpu.log == ["copy of [1.0], non_blocking=True", "event on compute"]


WARM_UP = ["waited for cuda:1", "on compute", "launched", "waited for compute"]


def test_a_gpu_is_warmed_up_on_the_stream_it_computes_on(gpu: Gpu) -> None:
    """Weights are copied on the caller's stream; nothing may be launched during a recording."""
    gpu.device.warm_up(lambda: gpu.log.append("launched"))
    assert gpu.log == WARM_UP


def test_a_gpu_records_what_it_has_computed_once(gpu: Gpu) -> None:
    """Kernels cannot be compiled, and handles cannot be created, during a recording."""
    result = gpu.tensor([1.0])

    def launch() -> torch.Tensor:
        gpu.log.append("launched")
        return result

    for _ in range(2):  # all recordings in one pool
        replay, found = gpu.device.record(launch)
        replay()
        assert found is result
    recorded = ["recording compute into the pool, thread_local", "launched", "replayed"]
    assert gpu.log == 2 * [*WARM_UP, "on compute", *recorded]


def test_a_recording_that_fails_leaves_its_thread_the_stream_it_had(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch leaves its own stream only where the recording could be ended."""
    current = ["default"]

    @contextmanager
    def on(stream: Any) -> Iterator[None]:
        before = current[0]
        current[0] = stream.name
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def graph(_: Any, *, stream: Any, **__: object) -> Iterator[None]:
        current[0] = stream.name
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with pytest.raises(RuntimeError, match="previous error"):
        gpu.device.record(lambda: gpu.tensor([1.0]))
    assert current == ["default"]


def test_a_gpu_takes_all_of_its_memory_for_a_whole_number(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch requires a float: `set_per_process_memory_fraction` rejects an int."""
    taken: list[object] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: taken.append(share)
    )
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    CudaDevice("cuda:1", 1).close()
    assert [type(share) for share in taken] == [float, float]


def test_engines_on_a_gpu_share_no_stream_and_take_those_of_closed_ones(gpu: Gpu) -> None:
    """Torch has 32 streams of each priority; a recording takes what is launched on its stream."""
    first = [gpu.device, CudaDevice("cuda:1", 0.7)]
    taken = [set(map(id, device._streams)) for device in first]
    assert len(set.union(*taken)) == 6
    priorities = [stream.priority for stream in gpu.device._streams]
    assert priorities == [0, -1, -1], "copies are not in the pool of what is recorded"
    first[1].close()
    on_another = CudaDevice("cuda:0", 0.7)
    assert not set.union(*taken) & set(map(id, on_another._streams))
    for _ in range(40):
        later = CudaDevice("cuda:1", 0.7)
        assert set(map(id, later._streams)) == taken[1]
        later.close()


def test_an_event_is_waited_for_on_its_own_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a thread without a CUDA context, torch would create one on the first GPU."""

    gpu.log_devices(monkeypatch)
    events = gpu.device.mark(), gpu.device.download(gpu.tensor([1.0]), gpu.tensor([0.0]))
    gpu.log.clear()
    for event in events:
        event.synchronize()
    assert gpu.log == 2 * ["on cuda:1", "waited for the event", "off cuda:1"]


def test_a_caller_launches_on_the_engines_gpu_and_leaves_it(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving a stream alone sets the former device, and creates a context on it."""

    gpu.log_devices(monkeypatch)
    with gpu.device.launching():
        gpu.log.append("launched")
    assert gpu.log == ["on cuda:1", "on compute", "launched", "off cuda:1"]


@pytest.mark.parametrize("what", ["record", "warm_up", "close"])
def test_nobody_waits_for_a_gpu_while_another_engine_records(what: str, gpu: Gpu) -> None:
    """Synchronizing the GPU would invalidate the recording."""
    has_begun, may_end = threading.Event(), threading.Event()
    launches = iter((False, True))
    result = gpu.tensor([1.0])

    def launch() -> torch.Tensor:
        if next(launches):  # the second one is recorded
            has_begun.set()
            assert may_end.wait(WAIT_SECONDS)
            gpu.log.append("recorded")
        return result

    other = {
        "record": lambda: gpu.device.record(lambda: result),
        "warm_up": lambda: gpu.device.warm_up(lambda: None),
        "close": gpu.device.close,
    }
    recording = threading.Thread(target=gpu.device.record, args=(launch,))
    recording.start()
    assert has_begun.wait(WAIT_SECONDS)
    gpu.log.clear()
    disturbing = threading.Thread(target=other[what])
    disturbing.start()
    disturbing.join(0.05)
    may_end.set()
    for thread in (recording, disturbing):
        thread.join(WAIT_SECONDS)
    assert gpu.log[:2] == ["recorded", "waited for cuda:1"]


def test_a_gpu_that_is_lost_is_closed_all_the_same(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError(
            "an illegal memory access was encountered\nSearch for it in CUDA's pages"
        )

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    gpu.device.close()
    assert not streams._FREE, "its streams are lost with it"
    told = "closing cuda:1: an illegal memory access was encountered"
    assert [record.getMessage() for record in caplog.records] == [told]
