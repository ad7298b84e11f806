"""Copies to the host, on a device that copies at the last moment its events allow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embedlib.engines.cuda import loaded_model, short_batches
from embedlib.engines.cuda.device import CpuDevice, Event
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.results import MIN_BUFFER_NUMBERS, Results
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch
from tests.waiting import WAIT_SECONDS


class LateCopy:
    """Copies when a thread waits for it, and not before the gate is open."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor, gate: threading.Event) -> None:
        self.source, self.target, self.gate = source, target, gate

    def synchronize(self) -> None:
        assert self.gate.wait(WAIT_SECONDS)
        with torch.inference_mode():  # a GPU's copy does not depend on the thread's mode
            self.target.copy_(self.source)


class LateDevice(CpuDevice):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.copies = 0
        self.buffers: list[int] = []
        """Sizes of the buffers created."""

    def host_buffer(self, size: int) -> torch.Tensor:
        self.buffers.append(size)
        return torch.full((size,), torch.nan)

    def download(
        self, vectors: torch.Tensor, target: torch.Tensor, *, is_short: bool = False
    ) -> Event:
        self.copies += 1
        return LateCopy(vectors.clone(), target, self.gate)


def test_a_buffer_is_not_used_before_its_vectors_are_read() -> None:
    device = LateDevice()
    device.gate.set()
    results = Results(device)
    values = [torch.full((2, 3), float(number)) for number in range(4)]
    first, second = results.start(values[0]), results.start(values[1])
    assert len(device.buffers) == 2
    for result in (second, first):  # in any order
        result.synchronize()
    kept = first.read()
    third = results.start(values[2])  # where the first was
    fourth = results.start(values[3])  # the second is not read yet
    assert len(device.buffers) == 3
    for result in (third, fourth):
        result.synchronize()
    found = [kept, second.read(), third.read(), fourth.read()]
    np.testing.assert_array_equal(found, torch.stack(values))


def test_a_buffer_that_is_too_small_is_given_up() -> None:
    device = LateDevice()
    device.gate.set()
    results = Results(device)
    for rows, columns in ((1, 4), (64, 1024), (65, 1024), (1, 4), (65, 1024)):
        vectors = torch.rand(rows, columns)
        result = results.start(vectors)
        result.synchronize()
        np.testing.assert_array_equal(result.read(), vectors)
    assert device.buffers == [MIN_BUFFER_NUMBERS, 2 * MIN_BUFFER_NUMBERS]


def test_the_next_batches_are_launched_while_vectors_are_copied(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16,))
    device = LateDevice()
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: device)
    files = read_model_files(tiny_folder("mistral"))
    engine = CudaEngine(
        files.spec, load_weights(files), precision="float32", device="cpu", max_batch_tokens=256
    )
    finished = threading.Condition()
    num_finished = 0
    finish = engine._model.executor.finish

    def count(*args: Any) -> torch.Tensor:
        nonlocal num_finished
        vectors = finish(*args)
        with finished:
            num_finished += 1
            finished.notify()
        return vectors

    monkeypatch.setattr(engine._model.executor, "finish", count)
    done: list[int] = []
    jobs = []
    lengths = [50, 4, 40, 5, 45, 44]  # more groups than may be out at a time, and recordings
    for number, length in enumerate(lengths):
        batch = make_batch([np.arange(3, 3 + length)])
        jobs.append(engine.submit(batch, lambda number=number: done.append(number)))  # type: ignore[misc]
    with finished:  # all of them are computed, and none has come to the host
        assert finished.wait_for(lambda: num_finished == len(lengths), WAIT_SECONDS)
    assert done == []
    device.gate.set()
    engine.close()
    assert sorted(done) == list(range(6))
    vectors = np.concatenate([job.result() for job in jobs])
    assert np.isfinite(vectors).all()
    assert device.copies == 6
    assert len(np.unique(vectors.round(4), axis=0)) == 6
