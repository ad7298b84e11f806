"""A change of model on a server: against the stub, and against a real server where there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from embedlib import Search, drop_old, index
from embedlib.errors import SinkError
from embedlib.indexing import ReplacedError, open_sink
from embedlib.testing import check_replaceable
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from tests.indexing.two_models import Model, documents, is_of

Open = Callable[..., Any]

NUM = 8


@pytest.fixture(
    params=["stub", pytest.param("server", marks=pytest.mark.qdrant_server)],
)
def open_alias(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Return a function that opens a name which stands for nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    is_stub = request.param == "stub"
    if is_stub:
        url = f"qdrant://127.0.0.1:{request.getfixturevalue('stub').port}"
    else:
        url = request.getfixturevalue("qdrant_url")
    base = f"docs-{uuid4()}"

    def open_name(options: str = "", name: str = "") -> Any:
        sink: Any = open_sink(f"{url}/{name or base}{options}")
        sink.sleep = lambda seconds: time.sleep(0 if is_stub else min(seconds, 0.1))
        return sink

    yield open_name
    with closing(open_name()) as sink:
        client = sink.connect()
        for found in client.get_collections().collections if not is_stub else ():
            if found.name.startswith(base):
                client.delete_collection(found.name)


def load(sink: Any, model: str, **options: Any) -> list[str]:
    told: list[str] = []
    given = {"chunk": False, "tell": told.append, **options}
    index(documents(NUM), sink, embedder=Model(model), **given)
    return told


@pytest.mark.parametrize("open_alias", ["server"], indirect=True)
@pytest.mark.qdrant_server
def test_it_keeps_what_a_replaceable_sink_promises(open_alias: Open) -> None:
    check_replaceable(open_alias)


def test_collections_are_numbered_and_the_alias_moves(open_alias: Open) -> None:
    load(open_alias("?m=8"), "old", replace=True)
    with closing(open_alias()) as sink:
        name, client = sink.collection, sink.connect()
        stands_for = {
            each.alias_name: each.collection_name for each in client.get_aliases().aliases
        }
        assert stands_for == {name: f"{name}__embedlib_1"}
        with Search(open_alias(), Model("old")) as search:
            load(open_alias(), "new", replace=True)
            assert is_of("old", "text 3", search.search("text 3"))
        stands_for = {
            each.alias_name: each.collection_name for each in client.get_aliases().aliases
        }
        assert stands_for == {
            name: f"{name}__embedlib_2",
            f"{name}__embedlib_old": f"{name}__embedlib_1",
        }
        mark = sink.read_mark()
        assert (mark.model, mark.options.m) == ("new", 8)  # as it was, without the option
    load(open_alias(), "new")  # an ordinary load follows the alias
    with closing(open_alias().beside()) as third:
        third.begin(TARGET, print)
        with pytest.raises(SinkError, match="keeps old rows already; remove them: embedlib drop-o"):
            third.switch()
    assert drop_old(open_alias()) == NUM
    with Search(open_alias(), Model("new")) as search:
        load(open_alias(), "third", replace=True)
        assert drop_old(open_alias()) == NUM
        with pytest.raises(ReplacedError, match="holds rows of 'third' now, and those of 'new' th"):
            search.search("text 3")
    with Search(open_alias(), Model("third")) as search:
        assert is_of("third", "text 3", search.search("text 3"))


@pytest.mark.parametrize("open_alias", ["server"], indirect=True)
@pytest.mark.qdrant_server
def test_a_collection_of_that_name_needs_an_alias(open_alias: Open) -> None:
    load(open_alias(), "old")
    with pytest.raises(SinkError, match="is a collection, and its name cannot be moved"):
        load(open_alias(), "new", replace=True)
    with closing(open_alias()) as sink:
        models, name = sink.models, sink.collection
        alias = models.CreateAlias(collection_name=name, alias_name=f"{name}-live")
        action = models.CreateAliasOperation(create_alias=alias)
        sink.connect().update_collection_aliases([action])
    load(open_alias(name=f"{name}-live"), "new", replace=True)
    with Search(open_alias(name=f"{name}-live"), Model("new")) as search:
        assert is_of("new", "text 3", search.search("text 3"))
    with closing(open_alias()) as sink:
        assert sink.inspect().model == "old"
        other = models.CreateAlias(collection_name=name, alias_name=f"{name}-other")
        action = models.CreateAliasOperation(create_alias=other)
        sink.connect().update_collection_aliases([action])
    with pytest.raises(SinkError, match="other aliases stand as well"):
        drop_old(open_alias(name=f"{name}-live"))


def test_a_name_without_room_for_a_number_is_refused(stub: Any) -> None:
    sink: Any = open_sink(f"qdrant://127.0.0.1:{stub.port}/{'d' * 244}")
    with closing(sink), pytest.raises(SinkError, match="has 256 bytes; a name"):
        sink.beside()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("docs__embedlib_7", 7),
        ("docs__embedlib_x", 0),
        ("b__embedlib_7", 0),
        ("docs", 0),
        (None, 0),
    ],
)
def test_only_a_collection_of_the_alias_has_a_number(name: str | None, number: int) -> None:
    sink: Any = open_sink("qdrant://localhost/docs")
    assert sink._number(name) == number


def test_while_rows_are_replaced_nobody_else_writes_them(
    open_alias: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(open_alias(), "old", replace=True)
    rows = make_rows(2)
    with closing(open_alias()) as second, closing(open_alias().beside()) as new:
        new.begin(TARGET, print)
        with pytest.raises(SinkError, match="is being written by process"):
            second.begin(TARGET, print)
        new.write(rows, make_vectors(rows))
        lost = Mock(side_effect=SinkError("another load has taken over"))
        monkeypatch.setattr(new._replaces, "check_lease", lost)
        for change in (lambda: new.write(rows, make_vectors(rows)), new.switch):
            with pytest.raises(SinkError, match="another load has taken over"):
                change()


def test_a_switch_that_was_killed_between_its_two_requests(
    open_alias: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What searches find has the name of what is kept already; the next run goes on."""
    load(open_alias(), "old", replace=True)
    from embedlib_qdrant.generations import GenerationSink

    name_it = GenerationSink._name
    named: list[str] = []

    def die(self: Any, collection: str, alias: str) -> None:
        if named:
            raise KeyboardInterrupt
        named.append(alias)
        name_it(self, collection, alias)

    with monkeypatch.context() as broken:
        broken.setattr(GenerationSink, "_name", die)
        with pytest.raises(KeyboardInterrupt):
            load(open_alias(), "new", replace=True)
    assert named[0].endswith("__embedlib_old")
    with closing(open_alias()) as sink:
        assert (sink.inspect().model, sink.old()) == ("old", None)
    load(open_alias(), "new", replace=True)
    with closing(open_alias()) as sink:
        assert (sink.inspect().model, sink.old().model) == ("new", "old")
