from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from embedlib.bench.options import BenchOptions
from embedlib.bench.peers import FLOAT32, INT8, ST
from embedlib.bench.result import BenchResult
from embedlib.bench.run import run_bench
from embedlib.bench.table import render
from embedlib.config import Config
from embedlib.errors import ConfigError, EmbedlibError
from embedlib.packages.installing import install_line
from embedlib.testing.models.write import write_tiny_model
from embedlib.version import __version__
from tests.tiny_models.static import write_static_model

TORCH, OPENVINO = ST, f"{ST}-openvino"
OURS = ["embedlib", FLOAT32]
NUM_TEXTS = 40


@pytest.fixture
def options(tiny_folder: Callable[[str], Path], tmp_path: Path) -> BenchOptions:
    """Both peers on a file of texts of 1 to 40 characters."""
    path = tmp_path / "texts.txt"
    path.write_text("".join("x" * length + "\n" for length in range(1, NUM_TEXTS + 1)))
    return BenchOptions(
        model=str(tiny_folder("bert")),
        vs=(TORCH, OPENVINO),
        texts_path=path,
        rounds=3,
        query_seconds=0.3,
        config=Config(threads=2, max_batch_tokens=99),
    )


def run(options: BenchOptions, course: Any, **more: Any) -> BenchResult:
    return run_bench(options, machine={"cpu": "a | b"}, start=course.start, **more)


def test_the_figures(options: BenchOptions, course: Any) -> None:
    result = run(options, course)
    ours, float32, torch, openvino = result.contestants
    assert [one.name for one in result.contestants] == [*OURS, TORCH, OPENVINO]
    assert (result.num_texts, result.num_tokens) == (NUM_TEXTS, 820)
    assert ours.texts_per_s.median == pytest.approx(1000)
    assert ours.tokens_per_s.median == pytest.approx(820 / NUM_TEXTS * 1000)
    assert (ours.batches, torch.batches, openvino.batches) == ("by tokens", "16 texts", "64 texts")
    assert (ours.embedlib_ratio, ours.float32_ratio, ours.query_ratio) == (None, None, None)
    assert torch.embedlib_ratio is not None
    assert torch.embedlib_ratio.values == pytest.approx((2, 2, 2))
    assert openvino.embedlib_ratio is not None
    assert openvino.embedlib_ratio.values == pytest.approx((4, 4, 4))
    assert torch.float32_ratio is not None
    assert torch.float32_ratio.values == pytest.approx((4 / 3,) * 3)
    assert (torch.query_ratio, openvino.query_ratio) == (pytest.approx(2), pytest.approx(4))
    # The fakes' vectors are [length, offset]: the shortest text has the largest angle.
    assert (float32.closeness.mean, float32.closeness.min) == pytest.approx((1, 1))
    assert torch.closeness.min == pytest.approx(1 / math.hypot(1, 0.5))
    assert torch.closeness.min < torch.closeness.p1 < torch.closeness.mean < 1
    assert (ours.cold_start.constructor_s, ours.warm_start.constructor_s) == (8, 2)
    assert (ours.cold_start.first_vector_s, ours.warm_start.first_vector_s) == (1, 2)
    assert (result.padding_share, result.engine_idle_share) == (0.25, 0.125)
    for one in result.contestants:
        assert one.during_bulk is not None
        assert one.during_bulk.bulk_loss.median == pytest.approx(0.25)
        assert one.during_bulk.query.p50_ms == 20
    [told] = [line for line in render(result).splitlines() if "query during bulk" in line]
    assert told.count(" 20.0 / ") == len(result.contestants)


def test_a_static_model_has_no_engine_that_could_be_idle(
    options: BenchOptions, course: Any, tmp_path: Path
) -> None:
    folder = write_static_model(tmp_path / "static")
    result = run(replace(options, model=str(folder), vs=()), course)
    assert result.engine_idle_share is None
    assert "idle share" not in render(result)
    assert "padding share" in render(result)


def test_the_machines_limits(options: BenchOptions, course: Any) -> None:
    result = run(options, course)
    limits, ours = result.limits, result.contestants[0]
    # Of three rounds' 1, 2, 3 (numpy) and 2, 4, 6 GFLOP/s (torch) the better median counts.
    assert limits.gflop_per_s["float32"]["numpy"].values == (1, 2, 3)
    assert limits.num_weights * 2 == limits.flop_per_token
    assert ours.of_the_limit is not None
    assert ours.of_the_limit.bulk_share == pytest.approx(
        ours.tokens_per_s.median / (4e9 / limits.flop_per_token)
    )
    # Reading the weights at 1 GB/s, or multiplying each query's tokens at 4 GFLOP/s.
    reading_ms = limits.num_weights * 4 / 1e9 * 1e3
    products_ms = result.mean_query_tokens * limits.flop_per_token / 4e9 * 1e3
    assert products_ms > reading_ms
    assert ours.of_the_limit.query_floor_ms == pytest.approx(products_ms)
    assert ours.of_the_limit.query_ratio == pytest.approx(1 / products_ms)


def test_a_pass_of_ours_stands_between_any_two_of_the_peers(
    options: BenchOptions, course: Any
) -> None:
    run(options, course)
    begin, end = course.log.index("sgemm starts"), course.log.index("sgemm ends")
    passes = [line.split()[0] for line in course.log[begin:end] if line.endswith(" bulk")]
    assert passes == [*OURS, *[TORCH, *OURS, OPENVINO, *OURS] * 3]


def test_a_drift_of_the_machine_is_not_taken_for_speed(options: BenchOptions, course: Any) -> None:
    def slower(*args: Any) -> Any:  # with each of our turns the whole machine gets slower
        for fake in course.fakes.values():
            fake.seconds_per_text *= 1.02
        return encode(*args)

    encode = course.fakes["embedlib"].encode
    course.fakes["embedlib"].encode = slower
    torch = run(options, course).contestants[2]
    assert torch.embedlib_ratio is not None
    assert torch.embedlib_ratio.values == pytest.approx((2, 2, 2), rel=0.03)


def test_all_get_the_same_threads_and_the_products_bring_their_own(
    options: BenchOptions, course: Any
) -> None:
    run(options, course)
    assert set(course.threads) == {
        *(
            ("embedlib", 2, None),
            (FLOAT32, 2, None),
            (TORCH, 2, None),
            (OPENVINO, 2, None),
            ("sgemm", 2, 1),
        )
    }
    loads = [fake.events[0] for fake in course.fakes.values()]
    assert [(load[0], load[3]) for load in loads] == [("load", 2)] * 4
    assert [load[4] for load in loads] == [{"max_batch_tokens": 99}] * 2 + [{}, {}]


def test_embedlib_in_int8_makes_its_own_batches_and_takes_turns_like_a_peer(
    options: BenchOptions, course: Any, make_fake: Callable[..., Any]
) -> None:
    course.fakes[INT8] = make_fake(seconds_per_text=0.5e-3)
    ours, _, faster, torch = run(replace(options, vs=(INT8, TORCH)), course).contestants
    assert (ours.name, faster.name, torch.name) == ("embedlib", INT8, TORCH)
    assert (faster.batches, torch.batches) == ("by tokens", "16 texts")
    assert faster.embedlib_ratio is not None
    assert faster.embedlib_ratio.values == pytest.approx((0.5,) * 3)
    assert course.fakes[INT8].events[0][4] == {"max_batch_tokens": 99}
    begin, end = course.log.index("sgemm starts"), course.log.index("sgemm ends")
    passes = [line.split()[0] for line in course.log[begin:end] if line.endswith(" bulk")]
    assert passes == [*OURS, *[INT8, *OURS, TORCH, *OURS] * 3]


def test_everybody_starts_twice_and_ends(options: BenchOptions, course: Any) -> None:
    run(options, course)
    for name, fake in course.fakes.items():
        assert [event[2] for event in fake.events if event[0] == "load"] == [True, False]
        assert course.log.count(f"{name} starts") == course.log.count(f"{name} ends") == 2


def test_a_peer_that_is_not_installed_is_told_and_the_others_go_on(
    options: BenchOptions, course: Any
) -> None:
    course.lacking[OPENVINO] = ("optimum.intel",)
    told: list[str] = []
    result = run(options, course, report=told.append)
    [line] = [line for line in told if line.startswith(f"{OPENVINO}: not")]
    assert "optimum.intel missing" in line
    assert install_line("bench") in line
    assert [one.name for one in result.contestants] == [*OURS, TORCH]
    assert [one.name for one in result.skipped] == [OPENVINO]
    assert line in render(result)


def test_a_peer_that_cannot_load_is_left_out(options: BenchOptions, course: Any) -> None:
    course.broken[TORCH] = {"load"}
    result = run(options, course)
    assert [one.name for one in result.contestants] == [*OURS, OPENVINO]
    assert result.skipped[0].reason.startswith("TypeError")


def test_a_peer_that_fails_beside_queries_keeps_its_other_figures(
    options: BenchOptions, course: Any
) -> None:
    course.broken[TORCH] = {"mixed"}
    result = run(options, course)
    torch = result.contestants[2]
    assert torch.during_bulk is None
    assert torch.during_bulk_failure is not None
    assert "| failed: TypeError" in render(result)


def in_the_race(fake: Any, course: Any, change: Callable[[Any], Any]) -> None:
    """Let a fake return something else from its second turn in the race on."""
    encode, turns = fake.encode, []

    def encode_and_change(*args: Any) -> Any:
        vectors = encode(*args)
        turns.extend(["turn"] * ("sgemm starts" in course.log))
        return change(vectors) if len(turns) > 1 else vectors

    fake.encode = encode_and_change


def fail(_: Any) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (fail, "RuntimeError: boom"),
        (lambda vectors: vectors[:, :1], "its vectors are 40 x 1 numbers, and embedlib's 40 x 2"),
        (lambda vectors: vectors[:-1], "its vectors are 39 x 2 numbers, and embedlib's 40 x 2"),
        (lambda vectors: vectors * math.nan, "its vectors have NaN or infinite numbers"),
    ],
)
def test_a_peer_that_breaks_in_the_race_costs_no_other_figures(
    change: Callable[[Any], Any], reason: str, options: BenchOptions, course: Any
) -> None:
    in_the_race(course.fakes[TORCH], course, change)
    result = run(options, course)
    assert [one.name for one in result.contestants] == [*OURS, OPENVINO]
    openvino = result.contestants[2].embedlib_ratio
    assert openvino is not None
    assert openvino.values == pytest.approx((4, 4, 4)), "its turns are between ours as before"
    assert [(one.name, one.reason) for one in result.skipped] == [(TORCH, reason)]
    assert f"- {TORCH}: not measured: {reason}" in render(result)


def test_a_peer_that_breaks_at_a_query_costs_no_other_figures(
    options: BenchOptions, course: Any
) -> None:
    course.broken[TORCH] = {"query"}
    result = run(options, course)
    assert [one.name for one in result.contestants] == [*OURS, OPENVINO]
    assert [one.name for one in result.skipped] == [TORCH], "told once, though rounds are three"
    course.broken = {FLOAT32: {"query"}}
    with pytest.raises(EmbedlibError, match="embedlib-float32 failed: TypeError"):
        run(options, course)


def test_equal_texts_are_told(options: BenchOptions, course: Any) -> None:
    assert "different" not in render(run(options, course))
    assert options.texts_path is not None
    options.texts_path.write_text("a text\nanother\n" + "a text\n" * 3)
    told = "5 texts (2 different; embedlib computes equal ones of a batch once), 31 tokens"
    assert told in render(run(options, course))


def test_a_peer_that_would_take_all_day_is_left_out(options: BenchOptions, course: Any) -> None:
    course.fakes[TORCH].seconds_per_text = 10
    result = run(options, course)
    assert [one.name for one in result.contestants] == [*OURS, OPENVINO]
    assert "a bulk pass takes 800 s of 300; give fewer texts" in result.skipped[0].reason
    before_the_next = course.log[: course.log.index(f"{OPENVINO} starts")]
    assert before_the_next.count(f"{TORCH} ends") == 2, "its process kept its memory"
    sizes = {event[2] for event in course.fakes[TORCH].events if event[0] == "encode"}
    assert len(sizes) == 1, "it went on looking for a batch size"


@pytest.mark.parametrize("call", ["load", "mixed"])
def test_embedlib_itself_must_not_fail(call: str, options: BenchOptions, course: Any) -> None:
    course.broken["embedlib"] = {call}
    with pytest.raises(EmbedlibError, match="embedlib failed: TypeError"):
        run(options, course)
    starts = [line for line in course.log if line.endswith("starts")]
    assert len([line for line in course.log if line.endswith("ends")]) == len(starts)


def test_alone(options: BenchOptions, course: Any) -> None:
    result = run(replace(options, vs=()), course)
    ours, _ = result.contestants
    assert len(ours.tokens_per_s.values) == 4
    assert "embedlib, times as fast" not in render(result)


def test_the_result_as_json(options: BenchOptions, course: Any) -> None:
    result = run(options, course, command="embedlib bench x")
    content = json.loads(json.dumps(result.as_json()))
    assert content["command"] == "embedlib bench x"
    assert [each["name"] for each in content["contestants"]] == [*OURS, TORCH, OPENVINO]
    assert content["contestants"][2]["query"] == asdict(result.contestants[2].query)


def test_the_table(options: BenchOptions, course: Any) -> None:
    result = run(options, course, command="embedlib bench x")
    text = render(result)
    num_queries = result.contestants[1].query.num_queries
    first_table = text.split("\n\n")[1].splitlines()
    assert len({len(line) for line in first_table}) == 1, "columns do not line up"
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for cells in (line.replace("\\|", "/").split("|") for line in text.splitlines())
        if len(cells) > 2
    }
    assert rows[""] == [*OURS, TORCH, OPENVINO]
    assert rows["bulk, texts/s"] == ["1,000.0", "666.7", "500.0", "250.0"]
    assert rows["batches"] == ["by tokens", "by tokens", "16 texts", "64 texts"]
    assert rows["embedlib, times as fast in bulk"][2] == "2.00x (2.00 to 2.00)"
    assert rows["cosine to embedlib-float32, mean / lowest"][1] == "1.00000 / 1.00000"
    assert rows["bulk rate lost to those queries"] == ["25.0%"] * 4
    assert rows["number of queries, alone / during bulk"][1] == f"{num_queries} / 3"
    assert rows["command"] == ["`embedlib bench x`"]
    assert rows["cpu"] == ["a / b"]
    assert f"embedlib {__version__}" in rows["versions"][0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vs": ("faster",)}, "vs = 'faster'; it must be one of embedlib-int8, sentence-transf"),
        ({"vs": (TORCH, TORCH)}, "once"),
        ({"rounds": 0}, "rounds = 0; it must be at least 1"),
        ({"num_texts": -1}, "num_texts"),
        ({"query_seconds": 0.0}, "query_seconds"),
        ({"query_seconds": math.nan}, "query_seconds = nan; it must be more than 0, and finite"),
        ({"query_seconds": math.inf}, "query_seconds = inf"),
        ({"text_tokens": 0}, "text_tokens = 0; it must be at least 1"),
        ({"text_tokens": 9, "texts_path": Path("t")}, "leave out texts_path"),
        ({"pythons": {"faster": "python"}}, "pythons = 'faster'; it must be one of"),
        ({"pythons": {TORCH: sys.executable}}, f"pythons = '{TORCH}', which vs does not name"),
        ({"vs": (TORCH,), "pythons": {TORCH: "no/python"}}, "there is no such program"),
    ],
)
def test_options_out_of_range(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchOptions(model="m", **wrong)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("bert-cross-encoder", "computes scores; rerankers are measured with --task rerank"),
        ("late-bert", "makes no dense vector of a text, and only those are measured"),
    ],
)
def test_models_without_a_dense_vector_are_refused_first(
    variant: str, message: str, options: BenchOptions, course: Any, tmp_path: Path
) -> None:
    model = str(write_tiny_model(tmp_path / "model", variant))
    with pytest.raises(ConfigError, match=f"^{re.escape(model)} {message}$"):
        run(replace(options, model=model), course)
    assert course.log == []


def test_a_length_that_no_text_has(
    options: BenchOptions, course: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.measuring.texts._blocks", lambda: iter(["a b c d"] * 9))
    with pytest.raises(ConfigError, match=r"^text_tokens = 9000: embedlib has no text of this"):
        run(replace(options, texts_path=None, text_tokens=9000), course)
