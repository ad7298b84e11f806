"""Loads of a destination that is only memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from embedlib.embedder import Embedder
from embedlib.indexing.pipeline import index
from embedlib.indexing.report import IndexReport
from embedlib.indexing.rows import BadRow, Document
from embedlib.testing import FakeSink, FakeStore


def documents(texts: dict[str, str], **metadata: Any) -> list[Document]:
    return [Document(id=id_, text=text, metadata=metadata) for id_, text in texts.items()]


def numbered(num_documents: int, first: int = 0) -> dict[str, str]:
    return {f"d{n}": f"text {n}" for n in range(first, first + num_documents)}


def run(
    texts: dict[str, str] | Iterable[Document | BadRow],
    store: FakeStore,
    embedder: Embedder,
    **options: Any,
) -> IndexReport:
    source = documents(texts) if isinstance(texts, dict) else texts
    return index(source, FakeSink(store), embedder=embedder, **{"chunk": False, **options})


def contents(store: FakeStore) -> dict[tuple[str, int], str]:
    return {(row.source_id, row.chunk): row.text for row in store.rows.values()}


def expect(store: FakeStore, texts: dict[str, str], embedder: Embedder) -> None:
    """The destination has exactly these documents, each with its own text's vector."""
    assert contents(store) == {(id_, 0): text for id_, text in texts.items()}
    expected = embedder.encode_document([row.text for row in store.rows.values()])
    assert (np.stack([store.vectors[id_] for id_ in store.rows]) == expected).all()


def num_calls(store: FakeStore, name: str) -> int:
    return sum(call == name for call, _ in store.calls)


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it to clean up what is stored."""
