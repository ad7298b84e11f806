"""Sparse vectors beside the others in Qdrant, and the two searches as one."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from embedlib.indexing import open_sink
from tests.indexing.sparse_checks import check_sparse_sink

pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")


@pytest.mark.parametrize("url", ["edge:{}", "qdrant+local:{}"])
def test_qdrant_in_this_process(url: str, tmp_path: Path) -> None:
    check_sparse_sink(lambda: open_sink(url.format(tmp_path / "db")))


@pytest.mark.qdrant_server
@pytest.mark.parametrize("options", ["", "?vector=text&on_disk=true"])
def test_a_qdrant_server(options: str, qdrant_url: str) -> None:
    name = f"sparse-{uuid4().hex}"
    check_sparse_sink(lambda: open_sink(f"{qdrant_url}/{name}{options}"))
