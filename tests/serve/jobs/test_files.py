"""Uploads: written while they arrive, refused with one line, listed, read in parts, deleted."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.files import FileStore
from embedlib.serve.jobs.own_jobs import READ_BYTES
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.requests.asgi import DIRECT
from embedlib.serve.requests.multipart import MultipartReader, Part
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import input_of
from tests.serve.jobs.test_batches import wait

Upload = Callable[[bytes], str]
TYPE = "multipart/form-data; boundary=XX"


def form(*parts: tuple[str, str | None, bytes], end: bytes = b"--XX--\r\n") -> bytes:
    written = b"preamble\r\n"
    for name, filename, content in parts:
        more = "" if filename is None else f'; filename="{filename}"'
        head = f'--XX\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        written += head.encode() + content + b"\r\n"
    return written + end


def read_all(pieces: list[bytes]) -> list[tuple[Part, bytes]]:
    reader = MultipartReader(TYPE)
    found: list[tuple[Part, bytes]] = []
    for piece in pieces:
        for each in reader.feed(piece):
            if isinstance(each, Part):
                found.append((each, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + each)
    reader.check_whole()
    return found


CONTENT = st.lists(st.sampled_from([b"\r", b"\n", b"-", b"X", b"--XX", b"\r\n--X", b"ab"])).map(
    b"".join
)


@given(CONTENT.filter(lambda content: b"\r\n--XX" not in content), st.data())
def test_a_body_is_read_alike_however_it_is_divided(content: bytes, data: Any) -> None:
    if content.startswith(b"--XX"):
        content = b"x" + content  # it would be a boundary: the head ends in a line break
    body = form(("purpose", None, b"batch"), ("file", "a b.jsonl", content)) + b"epilogue"
    places = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    assert read_all(pieces) == [
        (Part("purpose", None), b"batch"),
        (Part("file", "a b.jsonl"), content),
    ]


def test_nothing_need_follow_the_last_boundary() -> None:
    body = form(("purpose", None, b"batch"), end=b"--XX--")
    assert read_all([body]) == [(Part("purpose", None), b"batch")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "before its last boundary"),
        (form(("file", "a", b"x"), end=b""), "before its last boundary"),
        (b"--XXjunk\r\n\r\n", "has no head"),
        (b"--XX\r\n" + b"a" * 20_000, "has no head"),
        (form(("a" * 20_000, None, b"x")), "has no head of at most 16,384 bytes"),
        (b"--XX\r\nContent-Disposition: form-data; filename*=idna''a\r\n\r\n", "send it in UTF-8"),
        (form(*[("", None, b"")] * 65), "more than 64 parts"),
        (form((";" * 65, "a", b"x")), "a head with more than 64 semicolons"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(HTTPError, match=words):
        read_all([body])


def test_a_part_needs_no_head_and_64_may_be_there() -> None:
    body = form(*[("", None, b"")] * 63, end=b"--XX\r\n\r\nof no head\r\n--XX--")
    assert read_all([body])[-1] == (Part("", None), b"of no head")


def test_a_content_type_of_many_parameters_is_refused() -> None:
    MultipartReader("multipart/form-data; a=b; boundary=XX")
    with pytest.raises(HTTPError, match="must be multipart/form-data with its boundary"):
        MultipartReader('multipart/form-data; boundary=XX; a="' + ";" * 65)


def test_a_file_name_can_be_stored() -> None:
    head = b"--XX\r\nContent-Disposition: form-data; name=file; filename*=utf-7''+2AA-\r\n\r\n"
    [(part, _)] = read_all([head + b"a\r\n--XX--\r\n"])
    assert part.filename == "?"


def test_a_file_is_kept_as_it_was_sent(keeper: Client, upload: Upload, tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000  # over two parts of an upload, and of an answer
    file_id = upload(content)
    row = keeper.send("GET", f"/v1/files/{file_id}").json()
    assert (row["object"], row["bytes"], row["purpose"]) == ("file", len(content), "batch")
    assert row["filename"] == "in.jsonl"
    answer = keeper.send("GET", f"/v1/files/{file_id}/content")
    assert answer.content == content
    assert int(answer.headers["content-length"]) == len(content)
    path = tmp_path / "data" / "files" / file_id
    path.rename(tmp_path / "elsewhere")
    answer = keeper.send("GET", f"/v1/files/{file_id}/content")
    assert (answer.status_code, "is gone" in answer.text) == (404, True)
    assert keeper.send("DELETE", f"/v1/files/{file_id}").json() == {
        "id": file_id,
        "object": "file",
        "deleted": True,
    }
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = keeper.send(method, f"/v1/files/{file_id}{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
    assert [*(tmp_path / "data" / "files").iterdir()] == []


def test_what_a_killed_server_left_is_no_content(
    keeper: Client, upload: Upload, tmp_path: Path
) -> None:
    file_id = upload(b"x" * 10)
    path = tmp_path / "data" / "files" / file_id
    num_open = len(os.listdir("/proc/self/fd"))
    path.write_bytes(b"x" * 20)
    assert keeper.send("GET", f"/v1/files/{file_id}/content").content == b"x" * 10
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_an_upload_that_cannot_be_kept_leaves_nothing(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    client = make_client(data_dir=str(tmp_path / "data"), max_file_bytes=10)
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"x" * 10)}}
    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "insert", fail)
        assert client.send("POST", "/v1/files", **form).status_code == 507
    assert [*(tmp_path / "data" / "files").iterdir()] == []
    kept = client.send("POST", "/v1/files", **form).json()  # as many bytes as are allowed
    assert (kept["bytes"], kept["expires_at"] - kept["created_at"]) == (10, 7 * 86_400)


def test_a_content_that_cannot_be_read_to_its_end_is_told(
    keeper: Client, upload: Upload, tmp_path: Path
) -> None:
    file_id = upload(b"x" * 10)
    (tmp_path / "data" / "files" / file_id).write_bytes(b"x")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    application = keeper.application
    lines = Mock(AccessLog)
    application._log = lines
    path = f"/v1/files/{file_id}/content"
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": None}
    keeper.run(application(scope, AsyncMock(), send))
    assert [message.get("body") for message in sent] == [None, b"x"]
    [line] = lines.write.call_args.args
    assert (line.status, line.error) == (500, f"the content of {file_id} was cut in --data-dir")
    assert application.metrics.failures["failed"] == 1
    assert application.metrics.statuses["5xx"] == 1


def test_no_more_is_read_for_a_client_that_has_left(keeper: Client, upload: Upload) -> None:
    path = f"/v1/files/{upload(bytes(3 * READ_BYTES))}/content"
    sent: list[int] = []

    async def work() -> None:
        gone = asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            sent.append(len(message.get("body", b"")))
            if sent[-1]:
                gone.set_result(None)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": None}
        scope["extensions"] = {DIRECT: {"connection": Mock(gone=gone)}}
        await keeper.application(scope, AsyncMock(), send)

    keeper.run(work())
    assert sent == [0, READ_BYTES]


def test_files_are_listed(keeper: Client, upload: Upload, tmp_path: Path) -> None:
    ids = [upload(b"x") for _ in range(4)]
    keeper.send("DELETE", f"/v1/files/{ids.pop()}")
    assert {path.name for path in (tmp_path / "data" / "files").iterdir()} == set(ids)
    assert [row["id"] for row in keeper.send("GET", "/v1/files").json()["data"]] == ids[::-1]
    page = keeper.send("GET", f"/v1/files?order=asc&after={ids[0]}&limit=1").json()
    assert ([row["id"] for row in page["data"]], page["has_more"]) == ([ids[1]], True)
    assert keeper.send("GET", "/v1/files?purpose=batch_output").json()["data"] == []
    assert len(keeper.send("GET", "/v1/files?purpose=").json()["data"]) == 3  # any
    assert keeper.send("GET", "/v1/files?order=up").status_code == 400


def test_a_file_stays_while_a_batch_reads_it(keeper: Client, upload: Upload, engine: Any) -> None:
    engine.hold()
    file_id = upload(input_of(1))
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = keeper.post("/v1/batches", body)
    answer = keeper.send("DELETE", f"/v1/files/{file_id}")
    assert answer.status_code == 400
    assert batch["id"] in answer.json()["error"]["message"]
    engine.release()
    wait(keeper, batch["id"])
    assert keeper.send("DELETE", f"/v1/files/{file_id}").status_code == 200


FILE = ("file", "in.jsonl", b"{}")


WRONG_UPLOADS: list[tuple[str, bytes, int, str]] = [
    ("application/json", b"{}", 400, "it must be multipart/form-data"),
    ("multipart/form-data", b"", 400, "with its boundary"),
    ("multipart/mixed; boundary=XX", form(FILE), 400, "it must be multipart/form-data"),
    (TYPE, form(FILE), 400, "purpose is missing; send purpose=batch"),
    (TYPE, form(FILE, ("purpose", None, b"fine-tune")), 400, "purpose = 'fine-tune'"),
    (TYPE, form(("purpose", None, b"\xff"), FILE), 400, "purpose = "),
    (TYPE, form(("purpose", None, b"batch")), 400, "file is missing"),
    (TYPE, form(("purpose", None, b"batch"), FILE, FILE), 400, "file is there twice"),
    (TYPE, form(("purpose", None, b"b" * 5000)), 400, "purpose is too long"),
    (TYPE, form(("file", "a", b"x" * 2000)), 413, "--max-file-mb"),
    (TYPE, form(("purpose", None, b"fine-tune"), ("file", "a", b"x" * 2000)), 400, "purpose = "),
    (
        TYPE,
        form(("purpose", None, b"batch"), ("expires_after[seconds]", None, b"9"), FILE),
        400,
        "expires_after = 9; it must be 3600 to",
    ),
    (
        TYPE,
        form(
            ("purpose", None, b"batch"),
            ("expires_after[anchor]", None, b"last_active_at"),
            ("expires_after[seconds]", None, b"7200"),
            FILE,
        ),
        400,
        "expires_after: send the anchor created_at and whole seconds",
    ),
    (
        TYPE,
        form(("purpose", None, b"batch"), ("expires_after[seconds]", None, b"soon"), FILE),
        400,
        "expires_after: send the anchor created_at and whole seconds",
    ),
    (
        TYPE,
        form(("purpose", None, b"batch"), ("expires_after[seconds]", None, b"9" * 4096), FILE),
        400,
        "expires_after = 999",
    ),
]


def test_a_wrong_upload_leaves_nothing(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(data_dir=str(tmp_path / "data"), max_file_bytes=1000)
    for content_type, body, status, words in WRONG_UPLOADS:
        answer = client.send("POST", "/v1/files", body, headers={"content-type": content_type})
        error = answer.json()["error"]
        assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
        assert words in error["message"]
        assert "\n" not in error["message"]
        assert [*(tmp_path / "data" / "files").iterdir()] == []


@pytest.mark.parametrize(
    ("sent", "kept"), [(None, "input.jsonl"), ("a" * 300, "a" * 255), ("b.jsonl", "b.jsonl")]
)
def test_a_file_has_a_name_and_a_time(keeper: Client, sent: str | None, kept: str) -> None:
    body = form(
        ("purpose", None, b"batch"),
        ("expires_after[seconds]", None, b"7200"),
        ("file", sent, b"{}"),
    )
    found = keeper.post("/v1/files", body, headers={"content-type": TYPE})
    assert (found["filename"], found["expires_at"] - found["created_at"]) == (kept, 7200)


def test_an_upload_that_stops_half_way_leaves_nothing(keeper: Client, tmp_path: Path) -> None:
    body = form(("purpose", None, b"batch"), ("file", "a", b"x" * 3_000_000), end=b"")
    messages = [
        {"type": "http.request", "body": body, "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "headers": [(b"content-type", TYPE.encode())],
        "client": None,
    }
    keeper.run(keeper.application(scope, receive, send))
    assert sent == []
    assert [*(tmp_path / "data" / "files").iterdir()] == []
    assert keeper.send("GET", "/v1/files").json()["data"] == []


def test_uploads_are_not_held_in_memory(keeper: Client, tmp_path: Path) -> None:
    """What has arrived is on disk before the rest has: no upload is limited by memory."""
    head = form(("purpose", None, b"batch"), end=b"")
    head += b'--XX\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    parts = [head, *[b"x" * 1_000_000] * 5, b"\r\n--XX--\r\n"]
    on_disk: list[int] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        files = [*(tmp_path / "data" / "files").iterdir()]
        on_disk.append(sum(file.stat().st_size for file in files))
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "headers": [(b"content-type", TYPE.encode())],
        "client": None,
    }
    keeper.run(keeper.application(scope, receive, send))
    assert on_disk[-1] > 2_900_000
    [row] = keeper.send("GET", "/v1/files").json()["data"]
    assert row["bytes"] == 5_000_000
