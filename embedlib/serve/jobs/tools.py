"""What the parts that run jobs share."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from embedlib.serve.jobs.answers import Answerer
from embedlib.serve.jobs.batches import BatchStore
from embedlib.serve.jobs.clock import Clock
from embedlib.serve.jobs.files import FileStore
from embedlib.serve.jobs.folder import DataFolder
from embedlib.serve.jobs.metrics import JobMetrics
from embedlib.serve.jobs.requests import RequestStore
from embedlib.serve.jobs.spans import WriteSpan
from embedlib.serve.jobs.thread import StoreThread
from embedlib.serve.jobs.webhook import Policy
from embedlib.serve.options import ServeOptions

log = logging.getLogger("embedlib.serve.jobs")


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The stores, their thread, and who answers."""

    folder: DataFolder
    files: FileStore
    batches: BatchStore
    requests: RequestStore
    thread: StoreThread
    options: ServeOptions
    answer: Answerer
    clock: Clock
    metrics: JobMetrics
    policy: Policy
    """Where webhooks may go."""
    write_span: WriteSpan
