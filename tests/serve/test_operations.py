"""Deadlines, loads of models, the end, health and metrics, with engines that the test holds."""

from __future__ import annotations

import asyncio
import gc
import io
import math
import re
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from click.testing import CliRunner

from embedlib import Config
from embedlib.cli import main
from embedlib.errors import (
    ClosedError,
    CloseTimeoutError,
    ConfigError,
    EngineRunError,
    QueueFullError,
)
from embedlib.serve import ServeOptions, app, create_app
from embedlib.serve.app import Application
from embedlib.serve.dialects import search
from embedlib.serve.errors import ClientGoneError, HTTPError, describe
from embedlib.serve.http.server import _own_socket
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.sessions import pipeline_of
from embedlib.serve.requests.asgi import DIRECT
from embedlib.serve.requests.deadline import seconds_left
from embedlib.serve.requests.endable import Endable
from embedlib.serve.routes import ROUTES
from embedlib.testing import FakeEngine, fake_embedder, write_tiny_model
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import until
from tests.waiting import WAIT_SECONDS


def test_a_deadline_drops_the_texts(client: Client, engine: FakeEngine) -> None:
    engine.hold()
    answer = client.send(
        "POST", "/v1/embeddings", {"input": ["a"] * 400}, headers={"request-timeout-ms": "20"}
    )
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    engine.release()
    client.post("/v1/embeddings", {"input": "b"})
    num_texts = sum(batch.num_seqs for batch in engine.batches)
    assert num_texts < 400  # those in flight were computed, the others dropped


def test_the_earliest_deadline_counts() -> None:
    assert seconds_left({}, 100.0) is None
    assert seconds_left({"request-timeout-ms": "1500"}, 100.0) == 1.5
    both = {"request-timeout-ms": "5000", "request-deadline-ms": "101000"}
    assert seconds_left(both, 100.0) == pytest.approx(1.0)
    assert seconds_left({"x-stainless-read-timeout": "2"}, 100.0) == 2
    assert seconds_left({"request-deadline-ms": "99000"}, 100.0) == 0
    assert seconds_left({"request-deadline-ms": "1"}, 1e9) is None  # the clocks differ
    for wrong in ("", "soon", "nan", "inf", "-1"):
        assert seconds_left({"request-timeout-ms": wrong}, 100.0) is None


class Connection:
    """A connection whose server offers more than messages; no body is there yet."""

    def __init__(self) -> None:
        self.gone = asyncio.get_running_loop().create_future()

    def take_body(self) -> None:
        return None

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("tells", [False, True], ids=["by receive", "by the connection"])
def test_a_client_that_leaves_costs_nothing_more(
    client: Client, engine: FakeEngine, tells: bool
) -> None:
    application = client.application
    application._log = log = Mock(AccessLog)
    body = b'{"input": [' + b",".join([b'"abc"'] * 500) + b"]}"
    messages = iter([{"type": "http.request", "body": body}])
    gone = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> Any:
        for message in messages:
            return message
        assert not tells, "a task watches a connection that tells"
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def work() -> None:
        engine.hold()
        connection = Connection()
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "headers": [],
            "client": None,
            "extensions": {DIRECT: {"connection": connection}} if tells else {},
        }
        answering = asyncio.ensure_future(application(scope, receive, send))
        await until(lambda: len(engine.batches) == 2)
        gone.set()
        connection.gone.set_result(None)
        await answering
        engine.release()

    client.run(work())
    assert sent == []
    [line] = log.write.call_args.args
    assert (line.status, line.model, line.bytes_in) == (499, "embed", len(body))
    client.post("/v1/embeddings", {"input": "b"})
    assert sum(batch.num_seqs for batch in engine.batches) < 500
    assert application.metrics.failures["gone"] == 1


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        (("--name", "a=m", "--name", "b=m"), "", "--name 'b=m': m is 'a' already"),
        (("n", "m"), "", "m is there twice; give it once"),
        ((), " , ", "EMBEDLIB_API_KEYS is set and has no API key; unset it, or write one"),
    ],
)
def test_what_would_be_dropped_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], keys: str, message: str
) -> None:
    monkeypatch.setenv("EMBEDLIB_API_KEYS", keys)
    done = CliRunner().invoke(main, ["serve", "m", *given])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_server_listens_before_its_models_are_loaded() -> None:
    application = create_app({"a": fake_embedder(), "b": "no/such-model-folder"})
    broken = application.catalog.find("b", "embed")
    client = Client(application)
    assert client.send("GET", "/health").status_code == 200
    assert client.send("GET", "/ready").status_code == 503
    status, error = client.refuse("/v1/embeddings", {"input": "a", "model": "a"})
    assert status == 503
    assert "is loading" in error["error"]["message"]

    def fail(tell: Any) -> Any:
        raise ConfigError("there is no such model")

    broken.load = fail
    client.start()
    assert client.post("/v1/embeddings", {"input": "a", "model": "a"})
    status, error = client.refuse("/v1/embeddings", {"input": "a", "model": "b"})
    assert (status, error["error"]["message"]) == (
        503,
        "b could not be loaded: there is no such model",
    )
    ready = client.send("GET", "/ready")
    assert ready.status_code == 503
    assert ready.json()["models"] == {"a": "ready", "b": "there is no such model"}
    client.close()


def test_a_model_that_cannot_be_loaded_takes_no_requests_of_other_tasks(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    folder = shutil.copytree(tiny_folder("bert-reranker"), tmp_path / "reranker")
    (folder / "model.safetensors").unlink()
    client = Client(create_app({"rank": str(folder), "embed": fake_embedder()}))
    asked: list[tuple[str, Any]] = [
        ("/embed", {"inputs": "a"}),
        ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}),
    ]
    for path, body in asked:  # before any is loaded: one of them may be meant
        answer = client.send("POST", path, body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    client.start()
    for path, body in asked:
        client.post(path, body)
    status, error = client.refuse("/rerank", {"query": "a", "documents": ["b"]})
    assert (status, error["error"]["message"].partition(":")[0]) == (
        503,
        "rank could not be loaded",
    )
    client.close()


def test_a_model_whose_files_cannot_be_read_may_be_the_one_that_is_meant(tmp_path: Path) -> None:
    client = Client(create_app({"lost": str(tmp_path / "nowhere"), "embed": fake_embedder()}))
    client.start()
    client.post("/v1/embeddings", {"input": "a", "model": "embed"})
    asked: list[tuple[str, Any]] = [
        ("/embed", {"inputs": "a"}),  # its vectors may have been those of the other
        ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
    ]
    for path, body in asked:
        status, error = client.refuse(path, body)
        assert status == 503
        assert "lost could not be loaded: no model folder" in str(error)
    client.close()


def test_a_lone_model_that_cannot_be_loaded_is_logged_where_its_server_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(create_app({"lost": str(tmp_path / "nowhere")}))
    client.start()
    client.close()
    [message] = caplog.messages
    assert message.startswith("lost: no model folder")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (MemoryError(), "broken could not be loaded: MemoryError"),
        (AssertionError(), "broken could not be loaded: AssertionError"),
        (GeneratorExit("a panic"), "RuntimeError: GeneratorExit: a panic"),
    ],
)
def test_a_model_whose_load_has_a_bug_is_told(
    error: BaseException, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def load(tell: Any) -> Any:
        raise error

    application = Application([ServedModel("broken", load, ServeOptions())], ServeOptions())
    client = Client(application)
    client.start()
    status, answer = client.refuse("/v1/embeddings", {"input": "a"})
    assert status == 503
    assert reason in answer["error"]["message"]
    told = client.send("GET", "/v1/models/broken").json()
    assert told["state"] == "failed"
    assert told["error"] in reason
    assert "task" not in told
    assert application.failure is not None
    assert ("raise error" in caplog.text) is not isinstance(error, MemoryError)  # the traceback
    client.close()


def test_a_model_that_is_loaded_after_the_end_is_closed() -> None:
    goes_on, embedder = threading.Event(), fake_embedder()
    application = create_app({"late": embedder})
    application.end_server = Mock()
    served = application.catalog.find("late", "embed")
    served.load = lambda tell: goes_on.wait() and embedder
    client = Client(application)

    async def end() -> None:
        await application.start()
        await until(lambda: application.catalog.is_loading)
        await application.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "LOAD_SECONDS", 0.0)
        client.run(end())
    assert application.catalog.is_loading
    assert served.session is None
    goes_on.set()
    client.run(application.catalog.close())  # waits for the load
    assert not application.catalog.is_loading
    client.close()
    with pytest.raises(ClosedError):
        embedder.encode("a")


def test_a_body_in_many_parts_keeps_one_timer() -> None:
    async def work() -> None:
        with Endable() as block:
            for _ in range(100):
                block.end_after(60, Mock()).cancel()
            assert len(block._timers) == 1

    asyncio.run(work())


def test_a_block_that_was_ended_does_not_wait_for_the_garbage_collector() -> None:
    async def end() -> None:
        with Endable() as block:
            block.end(ClientGoneError())
            await asyncio.Event().wait()

    async def work() -> list[Any]:
        with suppress(ClientGoneError):
            await end()
        return [each for each in gc.get_objects() if isinstance(each, ClientGoneError)]

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(work()) == []
    finally:
        gc.enable()


def test_a_model_that_cannot_be_closed_keeps_no_other_open() -> None:
    first, second = fake_embedder(), fake_embedder()
    stream = io.StringIO()
    application = create_app({"first": first, "second": second}, log=AccessLog(stream))
    client = Client(application)
    client.start()
    client.send("GET", "/health")

    def close() -> None:
        raise CloseTimeoutError("a batch has not ended")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "close", close)
        with pytest.raises(CloseTimeoutError):
            client.run(application.close())
    assert "/health" in stream.getvalue()
    with pytest.raises(ClosedError):
        second.encode("a")
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("embedlib-serve")]
    client.close()


def test_a_client_that_leaves_with_the_last_step_ends_nothing_more() -> None:
    async def work() -> str:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.set_result(None)
        with Endable() as block:
            block.end_without_client(Mock(gone=gone), Mock())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "answered"

    assert asyncio.run(work()) == "answered"


def test_a_client_that_leaves_before_its_answer_is_no_fault(client: Client) -> None:
    """Source: ASGI, "Send": OSError to a closed connection; uvicorn raises none, others do."""
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": [], "client": None}
    client.run(client.application(scope, AsyncMock(), AsyncMock(side_effect=OSError("closed"))))
    assert client.application.metrics.num_inflight == 0


def test_a_server_that_drains_is_not_ready_and_serves_on(client: Client) -> None:
    assert client.send("GET", "/ready").json()["status"] == "ready"
    client.application.drain()
    assert client.send("GET", "/ready").json()["status"] == "draining"
    assert client.send("GET", "/ready").status_code == 503
    client.post("/embed", {"inputs": "a"})


def test_what_is_cut_off_at_the_end_is_told_to_come_again(
    client: Client, engine: FakeEngine
) -> None:
    async def work() -> httpx.Response:
        async with client.http() as http:
            sent = asyncio.create_task(http.post("/embed", json={"inputs": "a"}))
            await until(lambda: engine.batches)
            client.application.drain()
            sent.cancel()  # as uvicorn does when `timeout_graceful_shutdown` is over
            return await sent

    engine.hold()
    answer = client.run(work())
    assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy")


def test_a_lost_gpu_fails_the_probe_that_restarts_the_process(
    client: Client, engine: FakeEngine
) -> None:
    assert client.send("GET", "/health").json()["status"] == "ok"
    engine.lost = "the GPU is lost (an error); restart the process"  # type: ignore[attr-defined]
    for path in ("/health", "/ping", "/"):
        answer = client.send("GET", path)
        assert answer.status_code == 503
        assert answer.json()["status"] == "lost"
        assert answer.json()["models"] == {"embed": engine.lost}  # type: ignore[attr-defined]
    answer = client.send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"]["embed"] == engine.lost  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", ["add", "next_batch"])
def test_a_model_whose_thread_has_met_a_bug_fails_the_probe_that_restarts_the_process(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise IndexError("list index out of range")

    client = make_client({"bug": fake_embedder(), "other": fake_embedder()})
    thread = pipeline_of(client.application.catalog.find("bug", "embed").open())._manager
    monkeypatch.setattr(thread._scheduler, step, fail)
    status, _ = client.refuse("/embed", {"inputs": "a", "model": "bug"})
    assert status >= 500
    assert client.send("POST", "/embed", {"inputs": "a", "model": "bug"}).status_code == 503
    assert client.send("POST", "/embed", {"inputs": "a", "model": "other"}).status_code == 200
    why = "this model has stopped: list index out of range; restart the process"
    for path, code in (("/health", 503), ("/ready", 503)):
        answer = client.send("GET", path)
        assert answer.status_code == code
        assert answer.json()["models"]["bug"] == why


def test_what_is_refused_does_not_wait_for_the_garbage_collector(client: Client) -> None:
    """A server seldom calls it, and an error leads to the frames that have the body."""
    asked: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
        ({"inputs": 1}, {}),
        ({"inputs": ["b" * 40, "a"], "truncate": False}, {}),
        ({"inputs": "a", "model": "rank"}, {}),
        ({"inputs": "a"}, {"request-timeout-ms": "0"}),
    )
    gc.collect()
    gc.disable()
    try:
        for body, headers in asked:
            client.refuse("/embed", body, headers=headers)
            left = [each for each in gc.get_objects() if isinstance(each, HTTPError)]
            assert left == [], body
    finally:
        gc.enable()


def test_failures_are_counted_by_their_reason(client: Client, engine: FakeEngine) -> None:
    client.refuse("/embed", {"inputs": "a"}, headers={"request-timeout-ms": "0"})
    engine.fail_next(EngineRunError("failed"))
    client.refuse("/embed", {"inputs": "a"})
    metrics = client.send("GET", "/metrics").text
    for reason, count in (("timeout", 1), ("failed", 1), ("unavailable", 0)):
        assert f'embedlib_failures_total{{reason="{reason}"}} {count}' in metrics


def test_a_unix_socket_is_taken_from_nobody(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with _own_socket(path) as sockets:
        assert sockets is not None
        with pytest.raises(ConfigError, match="is listened on by another"), _own_socket(path):
            pass
        sockets[0].close()  # killed, say: the next one takes its place
        with _own_socket(path):
            pass
    assert not path.exists()
    with _own_socket(path), socket.socket(socket.AF_UNIX) as other:
        path.unlink()
        other.bind(str(path))
    assert path.exists(), "it is another server's"


def test_metrics_are_there_from_the_start(client: Client) -> None:
    before = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="query"} 0' in before
    client.post("/v1/embeddings", {"input": ["a", "b" * 40]})
    client.refuse("/v1/embeddings", {})
    after = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="bulk"} 2' in after
    assert 'embedlib_truncated_total{model="embed",lane="bulk"} 1' in after
    assert 'embedlib_failures_total{reason="invalid"} 1' in after
    assert 'embedlib_duration_seconds_count{model="embed",lane="bulk"} 1' in after
    for line in ("te_request_success 1", "te_request_count 2", "te_embed_count 2"):
        assert f"\n{line}\n" in after
    [seconds] = re.findall(r"embedlib_duration_seconds_sum{model=.embed.,lane=.bulk.} (.*)", after)
    assert f"te_request_duration_sum {seconds}" in after
    names = {line.rpartition(" ")[0] for line in before.splitlines()}
    assert client.send("GET", "/ui/").status_code == 308
    later = client.send("GET", "/metrics").text
    assert 'embedlib_responses_total{status="3xx"} 1' in later
    for text in (after, later):
        assert names == {line.rpartition(" ")[0] for line in text.splitlines()}


def test_the_name_of_a_model_is_quoted_in_metrics(make_client: MakeClient) -> None:
    page = make_client({'a"\\\n': fake_embedder()}).send("GET", "/metrics").text
    assert 'embedlib_requests_total{model="a\\"\\\\\\n",lane="query"} 0\n' in page


def test_an_engine_that_fails_is_no_bug_of_the_server(client: Client, engine: FakeEngine) -> None:
    engine.fail_next(EngineRunError("the engine has failed"))
    status, error = client.refuse("/v1/embeddings", {"input": "a"})
    assert status == 500
    assert error["error"]["message"].endswith("the engine has failed")
    engine.fail_next(EngineRunError("the engine has failed"))
    status, error = client.refuse("/embed", {"inputs": "a"})
    assert (status, error["error_type"]) == (424, "Backend")


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_texts = 0; it must be 1 or more"):
        ServeOptions(max_texts=0)
    with pytest.raises(ConfigError, match="body_seconds = 'soon'"):
        ServeOptions(body_seconds="soon")  # type: ignore[arg-type]
    for seconds in (-1.0, math.inf, math.nan, 1e300):  # no timer and no database has these
        with pytest.raises(ConfigError, match=r"keep_jobs_seconds = .*; it must be 0 to \d"):
            ServeOptions(keep_jobs_seconds=seconds)
    with pytest.raises(ConfigError, match="api_keys: it must be a tuple"):
        ServeOptions(api_keys=("",))
    with pytest.raises(ConfigError, match="there is no model to serve"):
        create_app([])
    with pytest.raises(ConfigError, match=r"a model is called './\\udcff'; give it a name: {\"NA"):
        create_app(["./\udcff"])  # a folder whose name is not UTF-8; no answer could tell it
    [served] = create_app({"m": "./\udcff"}).catalog
    assert served.source == "./?"
    with fake_embedder() as embedder, pytest.raises(ConfigError, match=r'mapping such as {"NAME"'):
        create_app(embedder)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"^models\['m'\] = None; it must be a folder, a hub name"
    ):
        create_app({"m": None})  # type: ignore[dict-item]
    for how in ("error", "chunk"):
        with pytest.raises(ConfigError, match=rf"^on_truncate = '{how}': .* truncate: false"):
            create_app("m", config=Config(on_truncate=how))
    with pytest.raises(ConfigError, match=r"options = .*; it must be a ServeOptions"):
        create_app("m", options={"max_texts": 1})  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"search = \['jsonl:x'\]; it must be a destination's URL"
    ):
        create_app("m", search=["jsonl:x"])  # type: ignore[arg-type]


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    for models in (folder, [folder], {str(folder): folder}):
        client = Client(create_app(models))
        client.start()
        answer = client.post("/v1/embeddings", {"input": "a", "model": str(folder)})
        assert answer["model"] == str(folder)
        client.close()


def test_a_model_that_does_not_answer_is_not_ready(
    client: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.serve.operations.ANSWER_SECONDS", 0.01)
    engine.hold()
    answer = client.send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["status"] == "not ready"
    assert answer.json()["models"]["embed"] == "it has not answered within 0.01 seconds"
    monkeypatch.undo()
    engine.release()
    assert client.send("GET", "/ready").status_code == 200


def test_silent_models_are_asked_at_once(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    all_asked = asyncio.Event()

    async def why_silent(model: ServedModel) -> str:
        asked.append(model.name)
        if len(asked) == 2:
            all_asked.set()
        await asyncio.wait_for(all_asked.wait(), WAIT_SECONDS)
        return "it is silent" if model.name == "b" else ""

    monkeypatch.setattr("embedlib.serve.operations._why_silent", why_silent)
    answer = make_client({name: fake_embedder() for name in "ab"}).send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"] == {"a": "ready", "b": "it is silent"}


def test_a_model_that_answered_lately_is_asked_nothing(
    client: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.serve.operations.CANARY_SECONDS", math.inf)
    client.post("/v1/embeddings", {"input": "a"})
    for _ in range(2):
        assert client.send("GET", "/ready").status_code == 200
    assert len(engine.batches) == 1
    monkeypatch.setattr("embedlib.serve.operations.CANARY_SECONDS", 0.0)
    assert client.send("GET", "/ready").status_code == 200
    assert len(engine.batches) == 2


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (QueueFullError("4,096 queries wait"), 429, "4,096 queries wait"),
        (MemoryError(), 429, "the server is out of memory; send fewer texts"),
        (ClosedError("the model was closed"), 503, "the model was closed"),
    ],
)
def test_what_passes_says_when_to_come_again(error: Exception, status: int, words: str) -> None:
    answer = describe(error, "input")
    assert (answer.status, answer.message) == (status, words)
    assert "retry-after" in dict(answer.headers())


def test_nobody_is_told_to_come_again_at_once() -> None:
    headers = dict(HTTPError.overloaded("a moment", 0.001).headers())
    assert headers == {"retry-after": "1", "retry-after-ms": "50"}


def test_ready_tells_why_a_model_does_not_answer(client: Client, engine: FakeEngine) -> None:
    engine.fail_next(EngineRunError("out of memory"))
    answer = client.send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"]["embed"].endswith("out of memory")
    assert client.send("GET", "/ready").status_code == 200


def test_routes_of_jobs_are_described_where_there_are_jobs(client: Client) -> None:
    paths = client.send("GET", "/openapi.json").json()["paths"]
    assert "/v1/embeddings" in paths
    assert "/v1/batches" not in paths


def test_every_route_of_the_description_is_there(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(data_dir=str(tmp_path / "jobs"))
    description = client.send("GET", "/openapi.json").json()
    found = [(path, method) for path, item in description["paths"].items() for method in item]
    assert len(found) == len(ROUTES) - len(search.ROUTES)  # there is nothing to search
    for path, method in found:
        operation = description["paths"][path][method]
        asked = re.sub(r"\{(name|id)\}", "x", path)
        assert {each["name"] for each in operation["parameters"] if each["in"] == "path"} == set(
            re.findall(r"\{(\w+)\}", path)
        )
        answer = client.send(method.upper(), asked, b"{}" if method != "get" else None)
        is_openai = "/v1/" in path and path != "/v1/embed"  # which is Cohere's
        code = answer.json()["error"]["code"] if is_openai and answer.is_error else ""
        assert code != "no_route", path
        assert answer.status_code != 405, path
        statuses = set(operation["responses"])
        assert str(answer.status_code) in statuses, (path, method, answer.status_code)
