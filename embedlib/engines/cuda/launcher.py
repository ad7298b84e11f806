"""Launches a batch, or a group of one, on the thread that calls; one thread at a time."""

from __future__ import annotations

import threading
from typing import Final

import torch

from embedlib.engines.cuda.executor import device_batch
from embedlib.engines.cuda.jobs import BatchInFlight
from embedlib.engines.cuda.loaded_model import LoadedModel
from embedlib.engines.cuda.results import Results
from embedlib.engines.cuda.turns import Turn

LAUNCH_SECONDS: Final = 10.0
"""How long the launch of a short batch waits for that of another thread, which takes a millisecond.
A signal handler may run in that thread and wait for this batch, which would be for ever."""


class Launcher:
    """Launches the turns of a model: those of its launching thread, and queries on their callers'.

    All go to one stream. Recordings share their memory, so that filling and replaying one is for
    one thread at a time.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Create the launcher of a loaded model."""
        self._model = model
        self._results = Results(model.device)
        # `with` on it is safe from Ctrl-C, as it is on no other lock.
        self._launching = threading.RLock()

    def launch(self, turn: Turn[BatchInFlight]) -> None:
        """Launch a turn on the launching thread, which no signal handler interrupts.

        Raises:
            RuntimeError: a short batch could not be launched, as another thread did not go on.
        """
        timeout = LAUNCH_SECONDS if turn.group is None else -1
        if not self._launching.acquire(timeout=timeout):
            raise RuntimeError("a signal handler keeps a thread from launching its query")
        try:
            if turn.group is None:
                self._launch_short(turn.job)
            else:
                self._launch_group(turn, turn.group)
        finally:
            self._launching.release()

    def launch_here(self, job: BatchInFlight) -> None:
        """Launch a short batch on its caller's thread."""
        with torch.inference_mode(), self._model.device.launching(), self._launching:
            self._launch_short(job)

    def _launch_short(self, job: BatchInFlight) -> None:
        vectors = self._model.short.launch(job.batch, job.num_kept)
        job.arrival = job.vectors = self._results.start(vectors, is_short=True)

    def _launch_group(self, turn: Turn[BatchInFlight], group: int) -> None:
        job, model = turn.job, self._model
        assert job.prepared is not None, "a short batch has no groups; this is a bug in embedlib"
        if group == 0:
            values = model.device.upload(job.prepared.values)
            job.on_device = device_batch(values, job.prepared.layout, job.prepared.ends)
        assert job.on_device is not None, "group 0 was not launched; this is a bug in embedlib"
        model.executor.run(job.prepared.groups[group], job.on_device, model.workspace)
        if turn.is_last and job.has_vectors:
            vectors = model.executor.finish(job.on_device, model.workspace)
            job.arrival = job.vectors = self._results.start(vectors)
        elif turn.is_last:
            job.arrival = model.device.mark()
