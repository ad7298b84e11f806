"""Peers of `embedlib bench-write` that fail, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from embedlib.bench import write
from embedlib.bench.options import WriteOptions
from embedlib.bench.write import render, run_write_bench
from embedlib.errors import ConfigError
from embedlib.indexing.rows import Row
from embedlib.testing import FakeSink, FakeStore
from embedlib.vectors.arrays import Vectors


class FakePeer:
    """Writes 100 rows a second, until it fails."""

    max_rows = None

    def __init__(self, name: str, log: list[str], fails_at: int = 0, cannot_end: str = "") -> None:
        self.name = name
        self.log = log
        self.fails_at = fails_at
        self.cannot_end = cannot_end

    def prepare(self) -> None:
        self.log.append(f"{self.name} writes")

    def write(self, rows: Sequence[Any], vectors: Any) -> float:
        if self.log.count(f"{self.name} writes") == self.fails_at:
            raise RuntimeError("the pool is empty")
        assert len(rows) == len(vectors)
        return 100.0

    def close(self) -> None:
        self.log.append(f"{self.name} ends")
        if self.cannot_end:
            raise RuntimeError(self.cannot_end)


def run(options: WriteOptions, *peers: FakePeer) -> tuple[write.WriteResult, list[str]]:
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(write, "_make_peers", lambda _: list(peers))
        return run_write_bench(options, said.append), said


@pytest.fixture
def options(tmp_path: Path) -> WriteOptions:
    return WriteOptions(url=f"jsonl:{tmp_path / 'rows.jsonl'}", num_rows=20, dim=4, rounds=3)


def test_a_peer_that_fails_costs_no_other_figures(options: WriteOptions) -> None:
    log: list[str] = []
    result, said = run(options, FakePeer("one", log, fails_at=2), FakePeer("other", log))
    reason = "RuntimeError: the pool is empty"
    assert result.peer_rows_per_s == {"other": [100.0, 100.0, 100.0]}
    assert result.peer_ratio.keys() == {"other"}
    assert result.as_json()["skipped"] == {"one": reason}
    assert f"one: not measured: {reason}" in said
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in render(result).splitlines()
    ]
    assert cells[0] == [result.destination, ""]
    assert ["one", f"not measured: {reason}"] in cells
    both = ["one writes", "other writes"]
    assert log == [*both, *both, "other writes", "one ends", "other ends"]


def test_every_row_is_written_once_in_batches(options: WriteOptions) -> None:
    sizes: list[int] = []
    ids: set[UUID] = set()

    class Watched(FakeSink):
        def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
            sizes.append(len(rows))
            ids.update(row.id for row in rows)
            super().write(rows, vectors)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(write, "open_sink", lambda _: Watched(FakeStore()))
        run_write_bench(replace(options, rounds=1, batch_rows=8), lambda _: None)
    assert (sizes, len(ids)) == ([8, 8, 4], 20)


def test_what_a_peer_has_written_is_removed_and_else_told(
    options: WriteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    _, said = run(options, FakePeer("one", log, cannot_end="no server"), FakePeer("other", log))
    assert said[-1] == "one: what it wrote may be left: RuntimeError: no server"
    assert log[-2:] == ["one ends", "other ends"]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "_take_turns", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(options, FakePeer("late", log))
    assert log[-1] == "late ends"


def test_a_peer_that_refuses_the_destination_leaves_nothing_of_the_one_before(
    options: WriteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(write, "LangChainPeer", lambda *_: FakePeer("one", log))
    both = replace(options, vs_langchain=True, vs_qdrant_client=True)
    with pytest.raises(ConfigError, match="needs a qdrant:// destination, not jsonl:"):
        run_write_bench(both, lambda _: None)
    assert log == ["one ends"]
