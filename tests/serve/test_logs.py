"""Lines of the access log, and faults."""

from __future__ import annotations

import errno
import io
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.errors import (
    EngineBuildError,
)
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.logs.fault_log import fault_log
from embedlib.serve.models.catalog import ServedModel
from embedlib.testing import FakeEngine, fake_embedder
from tests.serve.conftest import Client
from tests.waiting import WAIT_SECONDS


def test_an_id_of_a_request_that_is_none_is_replaced(client: Client) -> None:
    for given, is_kept in (("r" * 128, True), ("r" * 129, False), ("a\tb", False)):
        answer = client.send("GET", "/health", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is is_kept


def test_a_bug_is_logged_and_its_text_not_told(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(ServedModel, "open", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.send("POST", "/embed", {"inputs": "a"}, headers={"x-request-id": "r7"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] == "r7"
    assert "request r7" in caplog.text


def test_a_line_for_each_request_without_its_texts(engine: FakeEngine, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as stream:
        options = ServeOptions(data_dir=str(tmp_path / "data"))
        models = {"embed": fake_embedder(engine)}
        application = create_app(models, log=AccessLog(stream), options=options)
        client = Client(application)
        client.start()
        body = b'{"input": "hidden"}'
        client.send("POST", "/v1/embeddings?key=abc", body, headers={"x-api-key": "k"})
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"hidden" * 1000)}}
        assert client.send("POST", "/v1/files", **form).status_code == 200
        client.send("GET", "/" + "p" * 300, headers={"user-agent": "u" * 300})
        client.close()
        stream.seek(0)
        [line, upload, long] = stream.read().splitlines()
    told = json.loads(long)
    assert (len(told["route"]), len(told["user_agent"]), "error" in told) == (200, 200, False)
    assert json.loads(line)["bytes_in"] == len(body)
    assert json.loads(upload)["bytes_in"] > 6000
    assert "hidden" not in upload
    assert "hidden" not in line
    assert '"k"' not in line
    assert '"status":200' in line
    assert '"lane":"query"' in line
    assert '"tokens":6' in line


def test_a_stream_of_few_letters_gets_every_line() -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, "ascii")
    log = AccessLog(stream)
    log.write({"route": "/\xe9\u20ac\n"})
    log.close(WAIT_SECONDS)
    assert content.getvalue() == b'{"route": "/\\u00e9\\u20ac\\n"}\n'


def test_lines_are_dropped_and_counted_while_their_reader_stalls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embedlib.serve.logs.line_writer.MAX_LINES", 2)
    has_begun, may_go_on = threading.Event(), threading.Event()

    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            has_begun.set()
            assert may_go_on.wait(WAIT_SECONDS)
            return super().write(text)

    stream = Stalled()
    log = AccessLog(stream)
    log.write({"n": 0})
    assert has_begun.wait(WAIT_SECONDS)
    for number in range(1, 6):
        log.write({"n": number})
    may_go_on.set()
    log.close(WAIT_SECONDS)
    lines = stream.getvalue().splitlines()
    assert lines == ['{"n":0}', '{"n":1}', '{"n":2}', '{"dropped_lines":3}']


def test_lines_that_a_full_disk_has_refused_are_told_when_it_has_room() -> None:
    class Full(io.StringIO):
        """Takes nothing at first."""

        num_refused = 0

        def flush(self) -> None:
            if self.num_refused < 2:
                self.num_refused += 1
                self.truncate(self.seek(0))
                refused.release()
                raise OSError(errno.ENOSPC, "No space left on device")

    refused = threading.Semaphore(0)
    stream = Full()
    log = AccessLog(stream)
    for number in range(2):
        log.write({"n": number})
        assert refused.acquire(timeout=WAIT_SECONDS)
    log.write({"n": 2})
    log.close(WAIT_SECONDS)
    assert stream.getvalue().splitlines() == ['{"n":2}', '{"dropped_lines":2}']


@pytest.mark.parametrize("step", ["wait", "clear"])
def test_the_end_of_a_log_is_seen_at_whatever_moment_it_comes(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Here right behind the time in which lines are gathered, or a step later."""
    stream = io.StringIO()
    log = AccessLog(stream)
    event = log._closed if step == "wait" else log._has_lines
    take_step = getattr(event, step)

    def close_first(*seconds: float) -> bool:
        log._closed.set()
        log._has_lines.set()
        return step == "clear" and take_step()

    turns = Mock(side_effect=[True])  # a second one would wait for ever
    monkeypatch.setattr(event, step, close_first)
    monkeypatch.setattr(log._has_lines, "wait", turns)
    log.write({"n": 0})
    assert log._thread is not None
    log._thread.join(WAIT_SECONDS)
    assert stream.getvalue() == '{"n":0}\n'
    assert turns.call_count == 1


def test_a_line_whose_thread_cannot_be_started_is_written_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stream = io.StringIO()
    log = AccessLog(stream)
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", refuse)
        with pytest.raises(EngineBuildError, match="no more threads can be started"):
            log.write({"n": 0})
    log.write({"n": 1})
    log.close(WAIT_SECONDS)
    assert stream.getvalue().splitlines() == ['{"n":0}', '{"n":1}']


def test_the_access_log_of_a_process_without_a_standard_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    log = AccessLog()
    log.write({"n": 0})
    log.close(WAIT_SECONDS)


def test_faults_are_written_with_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with fault_log():
        logging.getLogger("embedlib").info("a step")
        try:
            raise KeyError("a bug")
        except KeyError:
            logging.getLogger("embedlib").exception("request %s", "r7")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "request r7"
    assert lines[-1] == "KeyError: 'a bug'"
    assert logging.getLogger().handlers == []


def test_a_fault_that_cannot_be_written_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, limit_threads: Callable[[int], list[str]]
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    limit_threads(0)
    with fault_log():
        logging.getLogger("embedlib").warning("%d", "no number")
        logging.getLogger("embedlib").warning("no thread can be started for this")
