"""Checks of a sink that indexes words, against rankings written in Python."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from embedlib.indexing import Hit, Row, matcher, parse_filter, row_digest, row_id
from embedlib.testing.check_sink import TARGET, make_vectors

SIMPLE = replace(TARGET, full_text="simple")
NUM_ROWS = 60
WORDS = [*("zorp", "kwib", "mump", "trell", "quax", "0x80070057", "vlim", "öhr", "plonk"), "drax"]
WHERE = (None, "page >= 10 and page < 50", "page in (3, 4, 5)", "page = -1")
HOSTILE = (
    *("", "  \t\n ", "& | ! <-> ()", "'", "''; DROP TABLE x; --", "\\", "'\\' | 'none", '"', ":*"),
    *(
        "%s %(x)s {} {0}",
        "\0",
        "🙂",
        "!!!" * 200,
        "(" * 3000,
        "<2>",
        "-",
        "OR",
        "example.com/it's",
        "\u202e\ufeff",
    ),
)
"""None of them has a word of the rows."""

Ranking = Callable[[Sequence[str], dict[UUID, list[str]]], dict[UUID, float]]
"""Of the words of a question and those of each row: the score of each row that has one."""


def bm25(question: Sequence[str], rows: dict[UUID, list[str]]) -> dict[UUID, float]:
    """Source: Robertson, Zaragoza, The Probabilistic Relevance Framework (2009), section 3.4.5."""
    counts = {id_: Counter(words) for id_, words in rows.items()}
    mean = sum(map(len, rows.values())) / len(rows)
    scores: dict[UUID, float] = {}
    for word in set(question):
        having = sum(word in each for each in counts.values())
        idf = math.log((len(rows) - having + 0.5) / (having + 0.5) + 1)
        for id_, each in counts.items():
            if n := each[word]:
                norm = 1.2 * (0.25 + 0.75 * len(rows[id_]) / mean)
                scores[id_] = scores.get(id_, 0) + idf * n * 2.2 / (n + norm)
    return scores


def weighed_ts_rank(question: Sequence[str], rows: dict[UUID, list[str]]) -> dict[UUID, float]:
    """Source: `calc_rank_or`, RANK_NORM_LOGLENGTH in Postgres' src/backend/utils/adt/tsrank.c."""
    counts = {id_: Counter(words) for id_, words in rows.items()}
    scores: dict[UUID, float] = {}
    for word in set(question):
        weight = math.log(1 + len(rows) / max(1, sum(word in each for each in counts.values())))
        for id_, each in counts.items():
            if n := each[word]:
                rank = 0.1 * sum(1 / j**2 for j in range(1, n + 1)) / 1.64493406685
                rank /= math.log2(len(rows[id_]) + 1)
                scores[id_] = scores.get(id_, 0) + weight * rank
    return scores


def draw_rows() -> list[Row]:
    dice = random.Random(11)
    rows = []
    for number in range(NUM_ROWS):
        # Common words come often, the last ones seldom; one row has none of them.
        words = [WORDS[min(dice.randrange(10), dice.randrange(10))] for _ in range(number % 13)]
        text = f"row{number} {' '.join(words)}"
        metadata = {"page": number}
        rows.append(
            Row(
                id=row_id(f"d{number}", 0),
                source_id=f"d{number}",
                chunk=0,
                text=text,
                metadata=metadata,
                digest=row_digest(text, metadata, TARGET.fingerprint),
            )
        )
    return rows


def check_text_sink(make: Callable[[], Any], ranking: Ranking) -> None:
    """Write rows with an index of their words, and compare searches with the reference.

    Args:
        make: returns a new sink of the same destination.
        ranking: the reference.
    """
    rows = draw_rows()
    sink = make()
    sink.begin(SIMPLE, lambda line: None)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    assert sink.inspect().full_text == "simple"
    sink.close()

    sink = make()
    words = {row.id: row.text.lower().split() for row in rows}
    dice = random.Random(5)
    for number in range(8):
        asked = dice.sample(WORDS, dice.randrange(1, 5))
        signs = dice.choices(
            [" ", " & ", " | -", "! ", ' "', " OR? ", "\n", "':* \\"], k=len(asked)
        )
        question = "".join(map("".join, zip(asked, signs, strict=True)))
        where = WHERE[number % len(WHERE)]
        hits = sink.search_text(question, 15, None if where is None else parse_filter(where))
        known = re.findall(r"\w+", question.lower())
        _check_hits(hits, ranking(known, words), rows, where)
    for question in HOSTILE:
        assert sink.search_text(question, 5, None) == [], question
    many = " ".join(f"none{number}" for number in range(30)) + " 0X80070057"
    _check_hits(sink.search_text(many, 15, None), ranking(["0x80070057"], words), rows, None)
    assert sink.search_text("zorp " * 2000, 3, None)
    sink.close()
    # A load that does not ask for it keeps it, and changes of rows reach it.
    sink = make()
    sink.begin(TARGET, lambda line: None)
    sink.delete([row.id for row in rows[30:]])
    changed = [replace(rows[0], text="plonk plonk", digest=b"0" * 16)]
    sink.write(changed, make_vectors(changed))
    sink.finish()
    rest = {**{row.id: words[row.id] for row in rows[:30]}, rows[0].id: ["plonk", "plonk"]}
    hits = sink.search_text("plonk", 15, None)
    assert {hit.id for hit in hits} == set(sorted_ids(ranking(["plonk"], rest))[:15])
    assert sink.inspect().full_text == "simple"
    sink.close()


def sorted_ids(scores: dict[UUID, float]) -> list[UUID]:
    return sorted(scores, key=lambda id_: -scores[id_])


def _check_hits(
    hits: list[Hit], scores: dict[UUID, float], rows: list[Row], where: str | None
) -> None:
    by_id = {row.id: row for row in rows}
    if where is not None:
        accepts = matcher(parse_filter(where))
        scores = {id_: score for id_, score in scores.items() if accepts(by_id[id_].metadata)}
    best = sorted(scores.values(), reverse=True)[:15]
    assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-5)
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.id], rel=1e-5)
        assert (hit.text, hit.metadata) == (by_id[hit.id].text, by_id[hit.id].metadata)
