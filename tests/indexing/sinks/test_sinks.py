from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import SinkError
from embedlib.indexing.rows import has_same_content, row_digest
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.urls import is_true, parse_url, without_password
from embedlib.testing import FakeSink, FakeStore, check_sink


def test_the_fake_keeps_what_every_sink_promises() -> None:
    store, made = FakeStore(), list[Closable]()
    check_sink(lambda: Closable(store, made))
    assert all(sink.is_closed for sink in made)


class Closable(FakeSink):
    """A sink that tells whether it was closed."""

    is_closed = False

    def __init__(self, store: FakeStore, made: list[Closable]) -> None:
        super().__init__(store)
        made.append(self)

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Broken(Closable):
    """A sink with one fault, named by `fault`."""

    fault = ""

    def write(self, rows: Any, vectors: Any) -> None:
        if self.fault == "loses a row":
            rows, vectors = rows[:-1] or rows, vectors[:-1] if len(rows) > 1 else vectors
        super().write(rows, vectors[::-1] if self.fault == "swaps vectors" else vectors)

    def write_metadata(self, rows: Any) -> None:
        if self.fault != "forgets metadata":
            super().write_metadata(rows)

    def delete(self, ids: Any) -> None:
        if self.fault != "does not delete":
            super().delete(ids)

    def begin(self, target: Any, tell: Any) -> None:
        if self.fault == "takes no lock":
            self.store.is_locked = False
        if self.fault == "takes any model" and self.store.target is not None:
            self.store.target = target
        super().begin(target, tell)

    def search(self, vector: Any, k: int) -> Any:
        hits = super().search(vector, k)
        return hits[::-1] if self.fault == "worst first" else hits

    def search_where(self, vector: Any, k: int, where: Any) -> Any:
        if self.fault == "filters nothing":
            return super().search(vector, k)
        hits = super().search_where(vector, k, where)
        return hits[::-1] if self.fault == "filters worst first" else hits


@pytest.mark.parametrize(
    "fault",
    [
        "loses a row",
        "swaps vectors",
        "forgets metadata",
        "does not delete",
        "takes no lock",
        "takes any model",
        "worst first",
        "filters nothing",
        "filters worst first",
    ],
)
def test_check_sink_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "fault", fault)
    store, made = FakeStore(), list[Closable]()
    with pytest.raises(AssertionError):
        check_sink(lambda: Broken(store, made))
    assert all(sink.is_closed for sink in made)


@pytest.mark.parametrize(
    ("url", "scheme", "location", "options"),
    [
        ("edge:my docs", "edge", "my docs", {}),
        ("POSTGRESQL://u:p@h:1/db?table=a.b", "postgresql", "//u:p@h:1/db", {"table": "a.b"}),
        ("qdrant+https://h/c?m=0&x=", "qdrant+https", "//h/c", {"m": "0", "x": ""}),
        ("jsonl:a:b.jsonl", "jsonl", "a:b.jsonl", {}),
        ("qdrant://[::1]:6334/c?m=a@b", "qdrant", "//[::1]:6334/c", {"m": "a@b"}),
        ("postgresql://h:1,i:2/db?user=a@b", "postgresql", "//h:1,i:2/db", {"user": "a@b"}),
    ],
)
def test_a_url_is_split(url: str, scheme: str, location: str, options: dict[str, str]) -> None:
    parsed = parse_url(url)
    assert (parsed.scheme, parsed.location, parsed.options) == (scheme, location, options)
    assert "p@h" not in repr(parsed)


def test_the_home_folder_is_where_a_shell_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert parse_url("jsonl:~/a.jsonl").path == Path("/home/ann/a.jsonl")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("docs", "'docs' has no scheme"),
        (":x", "has no scheme"),
        ("//u:secret@h/db", r"u:\*\*\*@h/db' has no scheme"),
        ("//u:sec/secret@h/db", r"u:\*\*\*@h/db' has no scheme"),
        ("edge:a?x=1&x=2", "edge: the URL has the option 'x' twice"),
        ("postgresql://u:sec/secret@h/db?m=1&m=2", "has the option 'm' twice"),
        ("postgresql://u:sec?secret@h/db?table=t", r"an @ behind its .* as %3F and %40"),
        ("postgresql://u:sec?secret&x@h/db?table=t", r"an @ behind its .* as %3F and %40"),
        ("postgresql://u:sec?secret=x@h/db", r"an @ behind its .* as %3F and %40"),
        ("host=h password=secret", r"'host=h password=\*\*\*' has no scheme"),
        ("jsonl:a\udcff", r"must be UTF-8, and 'jsonl:a\\udcff' is not; rename the file or folder"),
        ("jsonl:~no-such-user/a", "no such home folder"),
        ("jsonl:.", "needs a file"),
        ("jsonl:/", "needs a file"),
        ("qdrant://[x/c", "such as qdrant://localhost"),
        (
            "postgressql://h/db",
            "no destination begins with 'postgressql:'; did you mean 'postgresql:'",
        ),
        ("mongodb://h/db", "no destination begins with 'mongodb:'; known: .*jsonl:"),
        ("jsonl:a?flag", "has no option 'flag'"),
        (
            "qdrant://h/c?api_key=secret",
            r"no option 'api_key'; a key comes from the environment \(QDRANT_API_KEY\)",
        ),
    ],
)
def test_a_wrong_destination_is_refused(url: str, message: str) -> None:
    with pytest.raises(SinkError, match=message) as caught:
        open_sink(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p@x@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p/x?y@h/db?table=t", "postgresql://u:***@h/db?table=t"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://h:5432/db?table=a@b", "postgresql://h:5432/db?table=a@b"),
        ("postgresql://h:1,i:2/db?user=a@b", "postgresql://h:1,i:2/db?user=a@b"),
        ("postgresql://h/db?password=p&table=t", "postgresql://h/db?password=***&table=t"),
        ("qdrant://h/c?API_KEY=k", "qdrant://h/c?API_KEY=***"),
        ("postgresql://h/db?sslpassword=p&table=t", "postgresql://h/db?sslpassword=***&table=t"),
        ("postgresql://h?oauth_client_secret=s", "postgresql://h?oauth_client_secret=***"),
        ("edge:a@b:c@d", "edge:a@b:c@d"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_sink_that_cannot_be_imported_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("other", "no_such_module:make", "embedlib.sinks")
    monkeypatch.setattr("embedlib.indexing.sinks.opening.entry_points", lambda group: [point])
    with pytest.raises(
        SinkError, match=r"destinations of other: cannot be opened: No module named"
    ):
        open_sink("other:x")


def test_yes_and_no() -> None:
    assert is_true("True", "x")
    assert not is_true("0", "x")
    with pytest.raises(SinkError, match="halfvec=maybe"):
        is_true("maybe", "halfvec")


def test_a_digest_tells_text_and_model_from_metadata() -> None:
    digest = row_digest("text", {"a": 1}, "main:0123")
    assert row_digest("text", {"a": 1}, "other-commit:0123") == digest
    assert not has_same_content(row_digest("text!", {"a": 1}, "main:0123"), digest)
    assert not has_same_content(row_digest("text", {"a": 1}, "main:4567"), digest)
    changed = row_digest("text", {"a": 2}, "main:0123")
    assert has_same_content(changed, digest)
    assert changed != digest
    assert row_digest("t", {"a": 1, "b": 2}, "f") == row_digest("t", {"b": 2, "a": 1}, "f")
