"""Whatever is wrong with a job: the dialect's own error in one line that names the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib.serve.jobs.lines import Checker, num_texts
from tests.serve.conftest import Client
from tests.serve.jobs.conftest import input_line, input_of
from tests.serve.jobs.test_batches import content, create, wait

Upload = Callable[[bytes], str]
RIGHT = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}


WRONG_BATCHES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"endpoint": "/v1/chat/completions"}, "endpoint", "it must be one of /v1/embeddings"),
    ({"endpoint": "/v1/batches"}, "endpoint", "it must be one of"),
    ({"completion_window": "soon"}, "completion_window", "it must be hours, as 24h"),
    ({"completion_window": "169h"}, "completion_window", "at most 168h"),
    ({"input_file_id": "file-1"}, None, "no file 'file-1' here"),
    ({"input_file_id": None}, "input_file_id", "expected `str`"),
    ({"metadata": {"k": "v" * 600}}, "metadata", "it may have 16 keys"),
    ({"metadata": {"k" * 65: "v"}}, "metadata", "it may have 16 keys"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "it may have 16 keys"),
    ({"metadata": {"k": 3}}, "metadata[...]", "expected `str`"),
    ({"output_expires_after": {"seconds": 1}}, "output_expires_after", "it must be 3600"),
    (
        {"output_expires_after": {"anchor": "last_active_at", "seconds": 3600}},
        "output_expires_after.anchor",
        "it must be created_at",
    ),
    ({"endpoint": 3}, "endpoint", "expected `str`"),
]


def test_a_wrong_batch_is_refused(keeper: Client) -> None:
    for fields, param, words in WRONG_BATCHES:
        status, answer = keeper.refuse("/v1/batches", {**RIGHT, **fields})
        error = answer["error"]
        assert status in (400, 404)
        assert error["param"] == param, fields
        assert words in error["message"], fields
        assert "\n" not in error["message"]


LINE = input_line("a")
WRONG_LINES: list[tuple[bytes, str, int | None, str]] = [
    (b"", "empty_file", None, "has no line"),
    (b"\n\r\n  \n", "empty_file", None, "has no line"),
    (LINE + b"{\n", "invalid_json_line", 2, "the line is not JSON"),
    (LINE + b"\n[]\n", "invalid_json_line", 3, "the line: expected `object`"),
    (b"\xff\n", "invalid_json_line", 1, "the line is not JSON"),
    (LINE + LINE, "duplicate_custom_id", 2, "custom_id = 'a' is there twice"),
    (b'{"method":"POST"}', "invalid_custom_id", 1, "custom_id is missing; the line must have it"),
    (input_line("", url="/v1/embeddings"), "invalid_custom_id", 1, "it must have 1 to 512"),
    (input_line("c" * 513), "invalid_custom_id", 1, "has 513 characters"),
    (b'{"custom_id":3,"method":"POST"}', "invalid_custom_id", 1, "expected `str`"),
    (b'{"custom_id":"\\ud800","method":"POST"}', "invalid_json_line", 1, "not JSON"),
    (input_line("a", method="GET"), "invalid_method", 1, "method = 'GET'; it must be POST"),
    (input_line("a", url="/v1/other"), "invalid_url", 1, "it must be the batch's endpoint"),
    (input_line("a", body=[]), "invalid_body", 1, "it must be an object"),
    (input_line("a", body=None), "invalid_body", 1, "it must be an object"),
    (b'{"custom_id":"a","x":NaN}', "invalid_json_line", 1, "not JSON"),
    (b'{"custom_id":"a","body":{"input":"\\ud800"}}', "invalid_json_line", 1, "not JSON"),
    (b'{"body":{"input":' + b"[" * 5000, "invalid_json_line", 1, "the line"),
    (b"[" * 100_000, "invalid_json_line", 1, "the line"),
    (b'{"x": "' + b"y" * 200_000 + b'"}\n', "line_too_long", 1, "--max-body-mb"),
    (input_of(4), "too_many_requests", 4, "--max-batch-requests"),
]


@pytest.mark.parametrize(("lines", "code", "number", "words"), WRONG_LINES)
def test_a_wrong_line_is_told(
    tmp_path: Path, lines: bytes, code: str, number: int | None, words: str
) -> None:
    path = tmp_path / "input"
    path.write_bytes(lines)
    checker = Checker(path, "/v1/embeddings", max_lines=3, max_line_bytes=150_000)
    while checker.step():
        pass
    [error] = checker.errors
    assert (error["code"], error["line"]) == (code, number)
    assert words in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'{"input": "a", "dimensions": 9}', 1),
        (b'{"input": ["a", "b"], "other": [1]}', 3),
        (b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}", 1),  # its route will refuse it
    ],
)
def test_texts_are_counted_as_far_as_one_can_tell(body: bytes, count: int) -> None:
    assert num_texts(body) == count


def test_an_input_with_wrong_lines_fails_as_a_whole(keeper: Client, upload: Upload) -> None:
    done = wait(keeper, create(keeper, upload(LINE + b"{}\n" * 1000))["id"])
    assert done["status"] == "failed"
    assert done["failed_at"] is not None
    assert done["output_file_id"] is done["error_file_id"] is None
    assert len(done["errors"]["data"]) == 100  # not all of them


WRONG_BODIES = [
    '{"input": 3}',
    '{"input": []}',
    '{"inputs": "a"}',
    '{"input": "a", "model": "rank"}',
    '{"input": [[1, 2]]}',
]


def test_a_wrong_body_fails_its_line_alone(keeper: Client, upload: Upload) -> None:
    head = '{"custom_id":"w%d","method":"POST","url":"/v1/embeddings","body":'
    wrong = [head % place + body + "}" for place, body in enumerate(WRONG_BODIES)]
    lines = "\n".join(wrong).encode()
    done = wait(keeper, create(keeper, upload(lines + b"\n" + LINE))["id"])
    assert done["status"] == "completed", done
    assert done["request_counts"]["completed"] == 1
    refused = content(keeper, done["error_file_id"])
    assert [line["custom_id"] for line in refused] == [f"w{place}" for place in range(len(wrong))]
    for line in refused:
        assert line["response"]["status_code"] in (400, 422)
        assert line["response"]["body"]["error"]["message"]


WRONG_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"model_input": None}, "model_input: expected `object`"),
    ({"model_input": [1]}, "model_input: expected `object`"),
    ({"priority": 3}, "priority = 3; it must be 0 to 2"),
    ({"priority": "high"}, "priority: expected `int`"),
    ({"max_time_in_queue_seconds": 9}, "max_time_in_queue_seconds = 9; it must be 10 to"),
    ({"max_time_in_queue_seconds": 259_201}, "max_time_in_queue_seconds = 259201"),
    ({"inference_retry_config": {"max_attempts": 11}}, "max_attempts = 11; it must be 1 to"),
    ({"inference_retry_config": {"max_attempts": 0}}, "max_attempts = 0; it must be 1 to"),
    ({"inference_retry_config": {"initial_delay_ms": -1}}, "initial_delay_ms = -1"),
    ({"inference_retry_config": {"initial_delay_ms": 10_001}}, "initial_delay_ms = 10001"),
    ({"inference_retry_config": {"max_delay_ms": 60_001}}, "max_delay_ms = 60001"),
    ({"path": "/v1/batches"}, "path = '/v1/batches'; it must be one of"),
    ({"webhook_endpoint": "https://evil.example/x"}, "--webhook-allow evil.example"),
]


def test_a_wrong_request_is_refused(keeper: Client) -> None:
    for fields, words in WRONG_REQUESTS:
        body = {"model_input": {"input": "a"}, **fields}
        answer = keeper.send("POST", "/async_predict", body)
        assert answer.status_code in (400, 422), answer.text
        assert set(answer.json()) == {"error"}
        assert words in answer.json()["error"]
    missing = keeper.send("POST", "/async_predict", b"{}")
    assert "model_input is missing" in missing.json()["error"]


def test_a_server_without_a_folder_names_the_option(client: Client) -> None:
    for method, path in (
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/file-1/content"),
        ("GET", "/v1/batches"),
        ("POST", "/v1/batches/batch_1/cancel"),
        ("GET", "/async_requests"),
    ):
        answer = client.send(method, path, b"{}")
        assert answer.status_code == 400, path
        assert "start the server with --data-dir FOLDER" in json.dumps(answer.json())
    status, error = client.refuse("/v1/batches", RIGHT)
    assert (status, "--data-dir" in error["error"]["message"]) == (400, True)
    status, answer = client.refuse("/async_predict", {"model_input": {}})
    assert (status, "--data-dir" in answer["error"]) == (400, True)


def test_unknown_ids_and_methods(keeper: Client) -> None:
    for method, path in (
        ("GET", "/v1/batches/batch_0"),
        ("POST", "/v1/batches/batch_0/cancel"),
        ("GET", "/async_request/0"),
        ("DELETE", "/async_request/0"),
        ("GET", "/async_request/0/result"),
        ("GET", "/v1/batches/a/b"),
    ):
        answer = keeper.send(method, path)
        assert answer.status_code == 404, path
    answer = keeper.send("DELETE", "/v1/batches/batch_0")
    assert answer.status_code == 405
    assert "use GET" in answer.json()["error"]["message"]
