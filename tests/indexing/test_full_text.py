"""Hybrid search with the words of the rows, from `index` to the commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedlib import Embedder, Search, index
from embedlib.cli import main
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing import open_sink, parse_filter
from embedlib.indexing.sparse_rows import ARM_ROWS
from embedlib.testing.models.write import write_tiny_model
from tests.indexing.sparse_checks import fused
from tests.indexing.text_checks import WORDS, draw_rows

pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")

TEXTS = [row.text for row in draw_rows()][:40]
SOURCE = [{"id": str(i), "text": text, "page": i} for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "dense", "bert")
    with Embedder(folder, threads=1, on_truncate="ignore") as opened:
        yield opened


class Shortest:
    """A reranker that likes short texts."""

    def rank(self, query: str, documents: Sequence[str], /) -> Iterator[dict[str, Any]]:
        for number, text in enumerate(documents):
            yield {"corpus_id": number, "score": -len(text)}


def _load(embedder: Embedder, url: str, source: Any = SOURCE, **options: Any) -> Any:
    return index(source, url, embedder=embedder, chunk=False, **options)


def test_vectors_and_words_are_fused(embedder: Embedder, tmp_path: Path) -> None:
    url = f"edge:{tmp_path / 'db'}"
    assert _load(embedder, url).num_embedded == len(TEXTS)
    added = _load(embedder, url, full_text="simple")
    assert (added.num_embedded, added.num_unchanged) == (0, len(TEXTS))
    question = f"{WORDS[9]} or {WORDS[5]}?"
    vector = embedder.encode_query(question)
    with closing(open_sink(url)) as sink, Search(sink, embedder, hybrid=True) as search:
        assert len(search.search(question, top_k=10**20)) == len(TEXTS)
        for where in (None, "page < 20"):
            passes = parse_filter(where or "page >= 0")
            by_vector = sink.search_where(vector, ARM_ROWS, passes)
            by_words = sink.search_text(question, ARM_ROWS, passes)
            assert 0 < len(by_words) < len(by_vector)
            expected = fused([[hit.id for hit in arm] for arm in (by_vector, by_words)], 10)
            found = search.search(question, 10, where=where)
            assert [(hit.id, hit.score) for hit in found] == expected
            above = search.search(question, 10, where=where, min_score=found[3].score)
            assert [hit.score for hit in above] == [
                hit.score for hit in found if hit.score >= found[3].score
            ]
        assert asyncio.run(search.asearch(question, 10, where=where)).hits == found.hits
        plain = search.search("!!! the &", 5)  # none of its words is in a row
        assert [hit.score for hit in plain] == [1 / (60 + rank) for rank in range(1, 6)]
    with Search(url, embedder, Shortest(), hybrid="text") as search:
        assert search.state.full_text == "simple"
        ranked = search.search(question, 5, num_candidates=20, where="page >= 5")
        fused_rows = search.search(question, 20, rerank=False, where="page >= 5")
        shortest = sorted(fused_rows, key=lambda hit: len(hit.text))[:5]
        assert [len(hit.text) for hit in ranked] == [len(hit.text) for hit in shortest]
        known = {hit.id: hit.score for hit in fused_rows}
        assert [hit.vector_score for hit in ranked] == [known[hit.id] for hit in ranked]


def test_a_destination_without_words_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    url, files = f"edge:{tmp_path / 'db'}", f"jsonl:{tmp_path / 'out.jsonl'}"
    with pytest.raises(SinkError, match=r"out.jsonl cannot index words; leave full_text"):
        _load(embedder, files, full_text="english")
    _load(embedder, url, SOURCE[:3])
    _load(embedder, files, SOURCE[:3])
    with pytest.raises(SinkError, match="holds no sparse vectors and no full-text index, which hy"):
        Search(url, embedder, hybrid=True)
    with pytest.raises(SinkError, match=r"no full-text index, .*--full-text LANGUAGE\), which emb"):
        Search(url, embedder, hybrid="text")
    with pytest.raises(SinkError, match="holds no sparse vectors, which hybrid search needs"):
        Search(url, embedder, hybrid="sparse")
    with pytest.raises(SinkError, match=r"out\.jsonl cannot index words, .* leave hybrid \("):
        Search(files, embedder, hybrid=True)
    for odd in ("words", 1, None, ["text"]):
        with pytest.raises(ConfigError, match="it must be True, False, 'sparse' or 'text'"):
            Search(url, embedder, hybrid=odd)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sparse is for hybrid search; pass hybrid=True"):
        Search(url, embedder, hybrid="text", sparse="model")
    for odd in ("", 5, True):
        with pytest.raises(ConfigError, match=r"full_text = .*it must be a language"):
            _load(embedder, url, full_text=odd)


def test_commands(embedder: Embedder, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    (tmp_path / "a.txt").write_text("error 0x80070057: the parameter is incorrect")
    (tmp_path / "b.txt").write_text("copies of folders")
    url = f"edge:{tmp_path / 'db'}"
    model = ("-m", embedder.model_name, "--to", url)
    run("index", str(tmp_path), "--glob", "*.txt", *model, "--full-text", "english")
    assert "full-text index english" in run("status", url)
    where = ("--where", "source is not null")
    for question, file in (("0x80070057", "a.txt"), ("a folder to copy", "b.txt")):
        hit = json.loads(
            run("search", question, "--to", url, "--hybrid", "--json", "-k", "1", *where)
        )
        assert hit["source_id"].endswith(file)
        assert hit["score"] > 1 / 61  # found by its words, too
