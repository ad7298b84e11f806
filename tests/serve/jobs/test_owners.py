"""Jobs belong to the API key that made them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from embedlib.serve.jobs import database
from embedlib.serve.jobs.database import insert
from embedlib.serve.keys import owner_of
from embedlib.serve.requests.asgi import Request
from embedlib.testing import fake_embedder
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import batch_row, input_of, request_row

KEYS = ("key-of-ann", "key-of-bob")
ANN, BOB = ({"authorization": f"Bearer {key}"} for key in KEYS)
Start = Callable[..., Client]


@pytest.fixture
def start(make_client: MakeClient, tmp_path: Path) -> Start:
    """Return a function that starts a server on one folder; it is closed before the next one."""
    return lambda *keys: make_client(
        {"embed": fake_embedder()}, data_dir=str(tmp_path / "data"), api_keys=keys
    )


def make_jobs(client: Client, headers: dict[str, str]) -> tuple[str, str, str, str]:
    """Return the ids of a file, of a batch that has ended, of its output, and of a request."""
    sent = client.send(
        "POST",
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("in.jsonl", input_of(2))},
        headers=headers,
    )
    file_id = sent.json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = client.post("/v1/batches", body, headers=headers)
    asked = client.send(
        "POST", "/async_predict", {"model_input": {"input": "a"}}, headers=headers
    ).json()

    async def wait() -> tuple[str, str]:
        async with client.http(**headers) as http:
            while True:
                found = (await http.get(f"/v1/batches/{batch['id']}")).json()
                state = (await http.get(f"/async_request/{asked['request_id']}")).json()
                if found["status"] == "completed" and state["status"] == "SUCCEEDED":
                    return found["output_file_id"], asked["request_id"]

    output_id, request_id = client.run(wait())
    return file_id, batch["id"], output_id, request_id


def paths_of(file_id: str, batch_id: str, output_id: str, request_id: str) -> list[tuple[str, str]]:
    return [
        ("GET", f"/v1/files/{file_id}"),
        ("GET", f"/v1/files/{file_id}/content"),
        ("GET", f"/v1/files/{output_id}"),
        ("GET", f"/v1/files/{output_id}/content"),
        ("GET", f"/v1/batches/{batch_id}"),
        ("POST", f"/v1/batches/{batch_id}/cancel"),
        ("GET", f"/async_request/{request_id}"),
        ("GET", f"/async_request/{request_id}/result"),
        ("DELETE", f"/async_request/{request_id}"),
        ("DELETE", f"/v1/files/{output_id}"),
        ("DELETE", f"/v1/files/{file_id}"),
    ]


LISTS = ("/v1/files", "/v1/batches", "/async_requests", "/async_requests?status=SUCCEEDED")


def listed(client: Client, headers: dict[str, str]) -> list[int]:
    """The lengths of all lists."""
    return [len(client.send("GET", path, headers=headers).json()["data"]) for path in LISTS]


def test_others_do_not_see_them(start: Start) -> None:
    client = start(*KEYS)
    ids = make_jobs(client, ANN)
    for method, path in paths_of(*ids):
        answer = client.send(method, path, headers=BOB)
        error = answer.json()["error"]
        assert answer.status_code == 404, (method, path)
        if path.startswith("/v1"):
            assert error["code"] == "not_found"  # OpenAI's form; the other is Baseten's
        else:
            assert error.startswith("no request ")
    body = {"input_file_id": ids[0], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    assert client.send("POST", "/v1/batches", body, headers=BOB).status_code == 404
    assert listed(client, BOB) == [0, 0, 0, 0]
    for path, after in zip(LISTS, (ids[0], ids[1], ids[3]), strict=False):
        assert client.send("GET", f"{path}?after={after}", headers=BOB).status_code == 400
    make_jobs(client, BOB)
    assert listed(client, BOB) == listed(client, ANN) == [2, 1, 1, 1]
    for method, path in paths_of(*ids):
        answer = client.send(method, path, headers=ANN)
        has_ended = path.endswith("/cancel")
        assert answer.status_code == (400 if has_ended else 200), (method, path, answer.text)
    assert listed(client, ANN) == [0, 1, 1, 1]


def test_the_key_is_not_on_disk_and_its_owner_is_the_same_at_each_start(
    start: Start, tmp_path: Path
) -> None:
    client = start(*KEYS)
    _, batch_id, *_ = make_jobs(client, ANN)
    client.run(client.application.close())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert owner_of(KEYS[0]).encode() in kept
    assert KEYS[0].encode() not in kept
    again = start("key-of-carl", KEYS[0])  # rotated: in another place, beside another key
    assert again.send("GET", f"/v1/batches/{batch_id}", headers=ANN).status_code == 200
    carl = {"x-api-key": "key-of-carl"}
    assert again.send("GET", f"/v1/batches/{batch_id}", headers=carl).status_code == 404
    again.run(again.application.close())
    everybody = start()
    assert listed(everybody, {}) == [2, 1, 1, 1]


def test_the_owner_of_a_key_never_changes() -> None:
    """It stands in folders of jobs: another one would hide them from their key."""
    assert owner_of("a key") == "44079fb29bf7a09e3166bd1de3db477b"


def test_a_head_that_comes_again_has_the_owner_and_the_path_of_the_first(start: Start) -> None:
    """A connection gives the request of a head that it has understood once more than once."""
    client = start(*KEYS)
    _, batch_id, _, _ = make_jobs(client, ANN)

    async def ask_twice(path: str, body: Any) -> list[Any]:
        request = Request(method="POST", path=path, query="", headers=dict(ANN), client="")
        found = []

        async def send(message: Any) -> None:
            if "body" in message:
                found.append(json.loads(message["body"]))

        for _ in range(2):
            messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

            async def receive(messages: Any = messages) -> Any:
                return messages.pop() if messages else await asyncio.Future()

            await client.application.answer(request, receive, send)
        return found

    for asked in client.run(ask_twice("/async_predict", {"model_input": {"input": "a"}})):
        path = f"/async_request/{asked['request_id']}"
        assert client.send("GET", path, headers=ANN).status_code == 200
        assert client.send("GET", path, headers=BOB).status_code == 404
    for refused in client.run(ask_twice(f"/v1/batches/{batch_id}/cancel", {})):
        assert f"the batch {batch_id} is completed" in refused["error"]["message"]


def test_jobs_without_an_owner_are_for_every_key(start: Start) -> None:
    client = start()
    make_jobs(client, {})
    client.run(client.application.close())
    assert listed(start(*KEYS), BOB) == [2, 1, 1, 1]


def test_a_folder_of_the_first_format_goes_on(start: Start, tmp_path: Path) -> None:
    # The tables are on disks: add a step to _STEPS, and leave the first one as it is.
    digest = sha256(database._TABLES.encode()).hexdigest()
    assert digest.startswith("c538effc9ea55ebc")
    folder = tmp_path / "data"
    (folder / "files").mkdir(parents=True)
    content = input_of(1)
    (folder / "files" / "file-in").write_bytes(content)
    facts = {"num_bytes": len(content), "created_at": 1, "expires_at": 1 << 40}
    with closing(sqlite3.connect(folder / "jobs.sqlite3")) as connection:
        connection.executescript(f"{database._TABLES}PRAGMA user_version=1;")
        for table, values in (
            ("files", {"id": "file-in", "purpose": "batch", "filename": "in.jsonl", **facts}),
            ("batches", first_columns(batch_row("file-in", expires_at=1 << 40))),
            ("requests", {**first_columns(request_row("r", queue_until=2e12)), "body": b"{}"}),
        ):
            insert(connection, table, values)
        connection.commit()
    client = start(*KEYS)

    async def ended() -> None:
        async with client.http(**ANN) as http:
            while (await http.get("/v1/batches/batch_1")).json()["status"] != "completed":
                pass

    client.run(ended())
    assert listed(client, BOB)[:2] == [2, 1]
    assert client.send("GET", "/async_request/r", headers=BOB).status_code == 200


def first_columns(row: Any) -> dict[str, Any]:
    later = ("owner", "traceparent")
    return {name: value for name, value in asdict(row).items() if name not in later}
