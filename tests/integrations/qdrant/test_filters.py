"""Drawn filters over drawn rows: Qdrant finds what the reference finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from embedlib.errors import SinkError
from embedlib.indexing import open_sink, parse_filter
from tests.indexing.filters.drawn import check_filters, drawn_rows, load, vectors_of

pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")


@pytest.mark.parametrize("url", ["edge:{}", "qdrant+local:{}"])
def test_drawn_filters_in_this_process(url: str, tmp_path: Path) -> None:
    rows = drawn_rows()
    sink = load(open_sink(url.format(tmp_path / "db")), rows)
    check_filters(sink, rows, 60 if url.startswith("edge") else 10)
    sink.close()


@pytest.mark.qdrant_server
def test_drawn_filters_of_a_server(qdrant_url: str) -> None:
    rows = drawn_rows()
    indexes = "payload_index=x:float,y:keyword"
    sink = load(open_sink(f"{qdrant_url}/filters-{uuid4().hex}?{indexes}"), rows)
    check_filters(sink, rows, 60)
    sink.close()


def test_strings_by_order_in_qdrant_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_qdrant.filters.MAX_CANDIDATES", 70)
    rows = drawn_rows()
    sink: Any = load(open_sink(f"edge:{tmp_path / 'db'}"), rows)
    vector = vectors_of(rows)[0]
    assert sink.search_where(vector, 3, parse_filter('y < "zzz"'))
    with pytest.raises(SinkError, match=r"only 0 of the 70 nearest rows pass the filter"):
        sink.search_where(vector, 3, parse_filter('y < "" or text > "zz" or x is null and y < ""'))
    sink.close()
