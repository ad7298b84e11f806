"""Full-text search in Qdrant: its own ranking, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from packaging.version import Version

from embedlib.errors import SinkError
from embedlib.indexing import open_sink
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from embedlib_qdrant.full_text import LANGUAGES, client_text_index, edge_text_index
from tests.indexing.text_checks import SIMPLE, bm25, check_text_sink

qdrant_edge = pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")


@pytest.mark.parametrize("url", ["edge:{}", "qdrant+local:{}"])
def test_words(url: str, tmp_path: Path) -> None:
    check_text_sink(lambda: open_sink(url.format(tmp_path / "db")), bm25)


def load(url: str, target: Any, rows: list[Any]) -> Any:
    sink = open_sink(url)
    sink.begin(target, lambda line: None)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    return sink


def find(sink: Any, question: str) -> set[int]:
    return {hit.metadata["page"] for hit in sink.search_text(question, 50, None)}


def test_words_are_added_to_rows_that_are_stored(tmp_path: Path) -> None:
    url, rows = f"edge:{tmp_path / 'db'}", make_rows(9, text="the copied folders")
    sink = load(url, TARGET, rows)
    with pytest.raises(SinkError, match=r"holds no full-text index; load it with --full-text"):
        sink.search_text("folder", 3, None)
    sink.close()
    sink = load(url, replace(TARGET, full_text="english"), [])
    assert sink.inspect().full_text == "english"
    assert find(sink, "copies of a folder") == set(range(9))
    assert find(sink, "the a of") == set()
    sink.close()
    sink = load(url, SIMPLE, [])
    assert find(sink, "copy folder") == set()
    assert find(sink, "the") == set(range(9))
    sink.close()
    sink = load(url, replace(TARGET, recreate=True), rows)
    assert sink.inspect().full_text is None
    sink.close()


def test_a_load_that_ended_before_its_index_was_built(tmp_path: Path) -> None:
    url, rows = f"edge:{tmp_path / 'db'}", make_rows(3)
    load(url, TARGET, rows).close()
    sink = open_sink(url)
    sink.begin(SIMPLE, lambda line: None)
    with pytest.raises(SinkError, match="cannot be searched"):
        sink.search_text("text", 3, None)
    sink.close()
    sink = load(url, TARGET, [])
    assert find(sink, "text") == {0, 1, 2}
    sink.close()


def test_every_language_has_an_index() -> None:
    models = import_module("qdrant_client.models")
    for language in LANGUAGES:
        ours, theirs = edge_text_index(qdrant_edge, language), client_text_index(models, language)
        assert str(ours.stemmer.language).endswith(language.title())
        assert theirs.stemmer.language.value == language
        assert (ours.stopwords is None) == (theirs.stopwords is None)
        assert ours.scoring is not None
        assert theirs.scoring


def test_what_cannot_be_had(make_sink: Callable[..., Any], stub: Any, tmp_path: Path) -> None:
    for url in (f"edge:{tmp_path / 'db'}", f"qdrant+local:{tmp_path / 'local'}"):
        sink = open_sink(url)
        with pytest.raises(SinkError, match="full_text = 'klingon'"):
            sink.begin(replace(TARGET, full_text="klingon"), lambda line: None)
        sink.close()
    stub.version = "1.19.3"
    with pytest.raises(SinkError, match=r"Qdrant 1.19.3; its text indexes do not rank"):
        make_sink().begin(SIMPLE, lambda line: None)
    assert stub.count("Create") == 0


def test_what_a_server_is_asked(make_sink: Callable[..., Any]) -> None:
    """Answered by the client's local mode; no server of 1.20 was at hand."""
    check_text_sink(make_sink, bm25)


@pytest.mark.qdrant_server
def test_a_real_server(qdrant_url: str) -> None:
    sink = open_sink(f"{qdrant_url}/text-{uuid4().hex}")
    if Version(sink.connect().info().version) < Version("1.20"):
        with pytest.raises(SinkError, match="its text indexes do not rank"):
            sink.begin(SIMPLE, lambda line: None)
        assert sink.inspect() is None
        sink.close()
    else:
        sink.close()
        check_text_sink(lambda: open_sink(sink.name), bm25)
