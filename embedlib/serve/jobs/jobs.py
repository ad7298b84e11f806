"""Jobs: what a server keeps for its clients, wired to a folder and to what runs it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import ExitStack

from embedlib.errors import ConfigError
from embedlib.serve.jobs.answers import Answerer
from embedlib.serve.jobs.batches import BatchStore
from embedlib.serve.jobs.database import open_database
from embedlib.serve.jobs.files import FileStore
from embedlib.serve.jobs.folder import DataFolder, told
from embedlib.serve.jobs.metrics import JobMetrics
from embedlib.serve.jobs.own_jobs import OwnJobs
from embedlib.serve.jobs.requests import RequestStore
from embedlib.serve.jobs.spans import WriteSpan, write_nowhere
from embedlib.serve.jobs.thread import StoreThread
from embedlib.serve.jobs.tools import Clock, Tools
from embedlib.serve.jobs.webhook import Policy, Sender
from embedlib.serve.jobs.worker import Worker
from embedlib.serve.options import ServeOptions


class Jobs(OwnJobs):
    """All files, batches and asynchronous requests of a folder, and what runs them."""

    def __init__(
        self,
        options: ServeOptions,
        answer: Answerer,
        *,
        clock: Clock | None = None,
        sender: Sender | None = None,
        write_span: WriteSpan = write_nowhere,
    ) -> None:
        """Take the folder, and put right what a killed server left; nothing runs before `start`.

        Args:
            options: the bounds, and the folder.
            answer: answers a request of a job.
            clock: the time; None: the machine's.
            sender: delivers webhooks; None: over the network, as the options allow.
            write_span: is told of runs and deliveries that are over.

        Raises:
            ConfigError: another server has the folder, or it cannot be used.
        """
        policy = Policy(options.webhook_hosts)
        assert options.data_dir is not None, "a server without a folder keeps no jobs"
        folder = DataFolder(options.data_dir)
        with ExitStack() as opened:
            opened.callback(folder.close)
            try:
                folder.check_whole()
                connection = open_database(folder.database)
                opened.callback(connection.close)
                files = FileStore(connection)
                requests = RequestStore(connection)
                requests.recover()
                folder.remove_others(files.ids())
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(str(told(error))) from error
            opened.pop_all()
        tools = Tools(
            folder=folder,
            files=files,
            batches=BatchStore(connection, folder, files),
            requests=requests,
            thread=StoreThread(connection),
            options=options,
            answer=answer,
            clock=clock or Clock(),
            metrics=JobMetrics(),
            policy=policy,
            write_span=write_span,
        )
        super().__init__(tools, Worker(tools, sender or Sender(policy)), "")
        self._is_closed = False

    @property
    def metrics(self) -> JobMetrics:
        """The counters."""
        return self._tools.metrics

    def of(self, owner: str) -> OwnJobs:
        """Return the jobs that an owner sees."""
        return OwnJobs(self._tools, self._worker, owner)

    def start(self) -> None:
        """Run what is there, and what comes."""
        self._worker.start()

    async def stop(self) -> None:
        """Stop what runs; what is accepted from now on is kept for the next start."""
        await self._worker.stop()

    async def close(self) -> None:
        """Stop, and give the folder back. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        await self.stop()
        await asyncio.to_thread(self._tools.thread.close)
        self._tools.folder.close()
