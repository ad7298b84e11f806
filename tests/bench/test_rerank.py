from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from embedlib.bench import rerank as rerank_module
from embedlib.bench import shape_tokenizer
from embedlib.bench.contestants.own import (
    BATCH_SIZES,
    CROSS_ENCODER,
    INT8_RERANKER,
    RERANKER,
)
from embedlib.bench.options import RerankOptions
from embedlib.bench.peers import INT8, ST
from embedlib.bench.rerank import SEEDED_MODEL, run_rerank
from embedlib.bench.result import RerankResult
from embedlib.bench.table import render_rerank, spread_text
from embedlib.bench.worker import make_contestant
from embedlib.cli import main
from embedlib.config import Config
from embedlib.errors import ConfigError, EmbedlibError
from embedlib.measuring.spread import Spread
from embedlib.measuring.texts import RERANK_QUERY, docstring_pieces, docstrings
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.packages.installing import install_line

NUM_TEXTS = 40


@pytest.fixture
def rerank_course(
    course: Any, make_fake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return a course with embedlib and a peer of half its speed."""
    monkeypatch.setattr(rerank_module, "missing_modules", lambda name: [])
    course.fakes = {
        RERANKER: make_fake(seconds_per_text=1e-3),
        INT8_RERANKER: make_fake(seconds_per_text=5e-4, offset=0.25),
        CROSS_ENCODER: make_fake(seconds_per_text=2e-3, best_batch_size=16, offset=0.5),
    }
    for fake in course.fakes.values():
        monkeypatch.setattr(fake, "encode", scores_of(fake.encode))
    return course


def scores_of(encode: Callable[..., Any]) -> Callable[..., Any]:
    """One number per text instead of a vector."""
    return lambda texts, batch_size: encode(texts, batch_size).sum(axis=1)


@pytest.fixture
def options(tiny_folder: Callable[[str], Path], tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "candidates.txt"
    path.write_text("".join("x" * length + "\n" for length in range(1, NUM_TEXTS + 1)))
    return {
        "model": str(tiny_folder("bert-cross-encoder")),
        "vs": (ST,),
        "texts_path": path,
        "rounds": 3,
        "config": Config(threads=2, max_batch_tokens=99),
    }


def run(course: Any, options: dict[str, Any], **more: Any) -> RerankResult:
    return run_rerank(
        RerankOptions(**options),
        machine={"cpu": "a | b"},
        start=course.start,
        **more,
    )


def test_the_figures(options: dict[str, Any], rerank_course: Any) -> None:
    result = run(rerank_course, options)
    assert (result.num_documents, result.num_tokens, result.threads) == (NUM_TEXTS, 820, 2)
    assert result.peer_batch_size == 16
    assert result.peer_documents_per_s is not None
    assert result.peer_documents_per_s.median == pytest.approx(500)
    assert list(result.ours) == ["embedlib"]
    ours = result.ours["embedlib"]
    assert ours.documents_per_s.median == pytest.approx(1000)
    assert ours.ratio is not None
    assert ours.ratio.values == pytest.approx((2, 2, 2))
    assert (ours.max_difference, ours.top_overlap) == (0.5, 1)


def test_int8_beside_float32(options: dict[str, Any], rerank_course: Any) -> None:
    result = run(rerank_course, options | {"vs": (ST, INT8)})
    assert list(result.ours) == ["embedlib", INT8]
    assert result.num_tokens == 820
    int8 = result.ours[INT8]
    assert int8.ratio is not None
    assert int8.ratio.values == pytest.approx((4, 4, 4))
    assert int8.max_difference == 0.25
    assert "| embedlib-int8, times as fast | 4.00x (4.00 to 4.00) |" in " ".join(
        render_rerank(result).split()
    )
    bulk = [line.split()[0] for line in rerank_course.log if line.endswith(" bulk")]
    assert bulk[-9:] == [CROSS_ENCODER, RERANKER, INT8_RERANKER] * 3
    alone = run(rerank_course, options | {"vs": (INT8,)})
    assert [each.ratio for each in alone.ours.values()] == [None, None]


def test_a_turn_of_ours_stands_between_any_two_of_the_peers(
    options: dict[str, Any], rerank_course: Any
) -> None:
    run(rerank_course, options)
    bulk = [line.split()[0] for line in rerank_course.log if line.endswith(" bulk")]
    warm_up = [RERANKER, *[CROSS_ENCODER] * (2 * len(BATCH_SIZES) + 2)]
    assert bulk == [*warm_up, RERANKER, *[CROSS_ENCODER, RERANKER] * 3]
    assert [name for name, threads, _ in rerank_course.threads if threads == 2] == [
        *(RERANKER, RERANKER, CROSS_ENCODER)
    ]
    loads = [rerank_course.fakes[name].events[0] for name in (RERANKER, CROSS_ENCODER)]
    assert [load[4] for load in loads] == [{"max_batch_tokens": 99}, {}]
    assert {load[1] for load in loads} == {Path(options["model"]).name}
    ends = [line for line in rerank_course.log if line.endswith(" ends")]
    assert ends == [f"{RERANKER} ends", f"{CROSS_ENCODER} ends", f"{RERANKER} ends"]


def test_what_a_first_start_measures_does_not_go_on_beside_the_peer(
    options: dict[str, Any], rerank_course: Any
) -> None:
    run(rerank_course, options | {"vs": (ST, INT8)})
    for name in (RERANKER, INT8_RERANKER):
        loads = [event for event in rerank_course.fakes[name].events if event[0] == "load"]
        assert [is_cold for _, _, is_cold, *_ in loads] == [True, False]


def test_of_documents_with_equal_scores_the_same_are_among_the_best() -> None:
    assert rerank_module._best(np.tile(np.float32([0, 1]), 2500)) == list(range(1, 21, 2))


def test_equal_documents_are_told(options: dict[str, Any], rerank_course: Any) -> None:
    options["texts_path"].write_text("a text\nanother\n" + "a text\n" * 3)
    text = " ".join(render_rerank(run(rerank_course, options)).split())
    told = "documents of one query (2 different; embedlib computes equal ones of a batch once)"
    assert f"5 {told}" in text


def test_alone(options: dict[str, Any], rerank_course: Any) -> None:
    result = run(rerank_course, options | {"vs": ()})
    ours = result.ours["embedlib"]
    assert (ours.ratio, result.peer_documents_per_s, ours.max_difference) == (None,) * 3
    assert len(ours.documents_per_s.values) == 4
    assert "times as fast" not in render_rerank(result)


def test_the_table(options: dict[str, Any], rerank_course: Any) -> None:
    result = run(rerank_course, options, command="embedlib bench --task rerank")
    text = " ".join(render_rerank(result).split())
    assert "| embedlib, times as fast | 2.00x (2.00 to 2.00) |" in text
    assert "| embedlib, documents/s in float32 | 1,000 (1,000 to 1,000) |" in text
    assert "| cpu | a \\| b |" in text
    assert "40 documents of one query" in text
    stored = json.loads(json.dumps(result.as_json()))
    assert stored["ours"]["embedlib"]["ratio"]["median"] == pytest.approx(2)


def test_a_slow_rate_is_told_with_its_fraction() -> None:
    assert spread_text(Spread.of([1.15, 1.188, 1.26]), "") == "1.19 (1.15 to 1.26)"


def test_without_a_model_one_is_written(
    rerank_course: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_tokenizer, "TRAINING_TEXTS", 50)
    monkeypatch.setattr(rerank_module, "SEEDED_MODEL", f"{SEEDED_MODEL}/1")
    monkeypatch.setattr(rerank_module, "DOCUMENT_TOKENS", 20)
    given = {"vs": (), "num_texts": 5, "rounds": 1}
    result = run(rerank_course, given)
    assert (result.model, result.num_documents) == (f"{SEEDED_MODEL}/1", 5)
    assert rerank_course.fakes[RERANKER].events[0][1] == "shape"


def test_what_goes_wrong(
    options: dict[str, Any], rerank_course: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rerank_course.broken[CROSS_ENCODER] = {"load"}
    with pytest.raises(EmbedlibError, match=f"{CROSS_ENCODER} failed: TypeError"):
        run(rerank_course, options)
    rerank_course.broken = {CROSS_ENCODER: {"save_vectors"}}
    with pytest.raises(EmbedlibError, match=f"{CROSS_ENCODER} failed: TypeError"):
        run(rerank_course, options)
    monkeypatch.setattr(rerank_module, "missing_modules", lambda name: ["torch"])
    with pytest.raises(EmbedlibError, match=re.escape(f"torch missing; {install_line('bench')}")):
        run(rerank_course, options)


def test_a_peer_that_breaks_in_the_race_ends_the_run(
    options: dict[str, Any], rerank_course: Any
) -> None:
    fake = rerank_course.fakes[CROSS_ENCODER]
    encode = fake.encode

    def break_late(texts: list[str], batch_size: int | None) -> Any:
        # Once in the warm-up, and then in the race.
        if len(texts) == NUM_TEXTS and len(fake.events) > 2 * len(BATCH_SIZES) + 4:
            raise RuntimeError("boom")
        return encode(texts, batch_size)

    fake.encode = break_late
    with pytest.raises(EmbedlibError, match=f"{CROSS_ENCODER} failed: RuntimeError: boom"):
        run(rerank_course, options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"vs": ("sentence-transformers-openvino",)},
            "one of sentence-transformers, embedlib-int8$",
        ),
        ({"vs": (ST, ST)}, "once"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_options_out_of_range(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RerankOptions(**wrong)


def test_pieces_have_the_length_asked_for(tiny_folder: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(read_model_files(tiny_folder("bert-cross-encoder"), with_head=True))
    pieces = docstring_pieces(20, 50, tokenizer)
    assert len(set(pieces)) == 20
    assert pieces[0][:40] == docstrings(1)[0][:40].strip()
    lengths = [len(tokenizer.encode(piece, add_special_tokens=False).ids) for piece in pieces]
    assert all(48 <= length <= 52 for length in lengths)


def test_our_contestant_gives_the_scores_in_the_order_of_the_texts(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    texts = ["a river", "the large city is quick", "hello", "over the lazy dog"]
    contestant = make_contestant(RERANKER)
    contestant.import_library()
    contestant.load(tiny_folder("bert-cross-encoder"), tmp_path, 1, {})
    scores = contestant.encode(texts, None)
    alone = np.concatenate([contestant.query(text) for text in texts])
    np.testing.assert_allclose(scores, alone, atol=1e-6)
    assert contestant.stats()["num_tokens"] > len(texts) * len(RERANK_QUERY.split())


def test_wrong_arguments_of_the_command() -> None:
    done = CliRunner().invoke(main, ["bench"])
    assert done.exit_code != 0
    assert "Missing argument 'MODEL'" in done.stderr
    done = CliRunner().invoke(main, ["bench", "--task", "rerank", "--vs", "fastembed"])
    assert "Error: vs = 'fastembed'; it must be one of sentence-transformers" in done.stderr
