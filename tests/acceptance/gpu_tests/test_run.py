from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import ConfigError, EngineUnavailableError
from embedlib.packages.installing import install_line
from tests.acceptance.gpu import run
from tests.acceptance.gpu.models import DEFAULT, SHAPES
from tests.acceptance.gpu.options import BLOCKS, GpuOptions
from tests.acceptance.gpu.run import plan_of
from tests.acceptance.gpu.table import render
from tests.machines import H200

Line = dict[str, Any]
Find = Callable[..., list[Line]]


@pytest.fixture
def vllm_path(tmp_path: Path) -> Path:
    (tmp_path / "site" / "vllm").mkdir(parents=True)
    return tmp_path / "site"


def test_everything_that_was_asked_for_gets_a_number_and_a_verdict(
    course: Any, find: Find, vllm_path: Path
) -> None:
    course.rates |= {"fp8_per_channel 16384": 50_000.0, "fp8_per_channel 32768": 64_000.0}
    course.rates["vllm"] = 80_000.0  # its other way for FP8 is as fast as we are
    lines = course.run(models=tuple(SHAPES), vllm_path=vllm_path, minutes=60)
    assert [line for line in lines if {"failed", "skipped"} & line.keys()] == []
    verdicts = {line["what"]: (line["found"], line["met"]) for line in find(lines, block="verdict")}
    assert list(verdicts.values()) == [
        (1.0, True),  # the gate
        (80_000.0, True),
        (0.87, True),  # of the best way with the most rows
        (1.6, True),
        (1.0, False),  # vLLM at its best
        (4.0, True),
        (2.0, True),
        (2.0, False),
        (9.0, True),
        (0.02, True),
        (21.0, False),
        pytest.approx((find(lines, block="start")[1]["first_vector_s"], False)),
    ]
    assert [json.loads(line) for line in course.written] == lines
    assert not any("is killed" in event for event in course.log)
    starts = [name for name, _ in course.paths]
    assert sum(event.endswith("ends") for event in course.log) == len(starts)
    assert list(course.folder.glob("*-embedlib-bench")) == []
    assert {path for name, path in course.paths if name == "vllm"} == {vllm_path}
    assert {path for name, path in course.paths if name != "vllm"} == {None}


def test_what_must_not_be_missed_comes_first() -> None:
    plan = plan_of(GpuOptions())
    models = list(DEFAULT)
    assert plan[:6] == [(block, model) for block in ("ceilings", "gate") for model in models]
    assert plan[6:11] == [
        (block, models[0]) for block in ("bulk", "query", "mixed", "clients", "variants")
    ]
    assert plan[-4:] == [*(("peers", model) for model in models), ("start", models[0])]
    assert plan_of(GpuOptions(blocks=("ceilings",), models=("bge-large",))) == [
        ("ceilings", "bge-large")
    ]


def test_a_peer_is_measured_in_turns_and_compared(course: Any, find: Find, vllm_path: Path) -> None:
    course.rates["fp8_per_channel"] = 40_000.0
    lines = course.run(blocks=("peers",), vllm_path=vllm_path)
    [line] = find(lines, block="peers", what="bulk", peer="sentence-transformers")
    assert (line["ratio"], line["batch_tokens"], line["lengths"]) == (4.0, 7, "512")
    events = [event.split() for event in course.log]
    turns = [event[0] for event in events if event[-1] == "bulk"][:5]
    assert turns == ["embedlib", *["sentence-transformers", "embedlib"] * 2]
    found = find(lines, block="peers", what="1 - cosine to ours, largest")
    assert [line["found"] for line in found] == pytest.approx([0, *[1 - 0.995004] * 4], abs=1e-4)
    loads = [options for name, _, options in course.loads if name == "vllm"]
    assert [(load["quantization"], load["max_num_batched_tokens"]) for load in loads] == [
        ("fp8_per_channel", 16_384),
        ("fp8", 16_384),
        ("fp8_per_channel", 32_768),
        ("fp8", 32_768),
    ]


def test_every_choice_is_measured_in_turns_with_the_engine_without_it(
    course: Any, find: Find
) -> None:
    course.factors |= {
        "keeps_prefix=True": 4.0,
        "excluded=['pooled_rows']": 0.8,
        "attention=torch": 0.5,
    }
    lines = course.run(blocks=("variants",), minutes=60)
    told = find(lines, block="variants")
    races = {
        (line["variant"], line.get("lengths") or line.get("prefix_tokens", 0)): line["ratio"]
        for line in told
        if "ratio" in line
    }
    assert races == {
        ("keeps_prefix", 480): 4.0,
        ("keeps_prefix", "512"): 4.0,
        ("pooled_rows", "512"): 0.8,
        ("pooled_rows", 0): 0.8,
        **{("attention=own", length): 1.0 for length in ("512", "8192")},
        **{("attention=flash_attention_3", length): 1.0 for length in ("512", "8192")},
        **{("attention=torch", length): 0.5 for length in ("512", "8192")},
    }
    [kept] = find(told, variant="keeps_prefix", what="query")
    assert (kept["p50_ms"], kept["our_p50_ms"], kept["num_tokens"]) == (62.0, 15.5, 16)
    # A fast wrong answer would show.
    far = {line["variant"]: line["farthest"] for line in told}
    assert list(far.values()) == pytest.approx([0.005, 0.005, 0, 0, 0.005], abs=1e-4)
    turns = [event for event in course.log if event.endswith((" bulk", " query"))]
    first, second = turns[0], turns[1]
    assert turns[:5] == [first, second, first, second, first]
    plain = {"precision": "fp8"}
    loads = [options for _, _, options in course.loads if "num_layers" not in options]
    assert [load for load in loads if load == plain] == [plain]  # one process serves all races
    running = sum(event.endswith(("ends", "is killed")) for event in course.log)
    assert running == len(course.paths)


def test_a_choice_that_is_not_here_is_named_and_costs_no_other_its_time(
    course: Any, find: Find
) -> None:
    course.missing.add("attention=flash_attention_3")
    lines = course.run(blocks=("variants",), minutes=60)
    [line] = find(lines, variant="attention=flash_attention_3")
    assert "attention=flash_attention_3 is not here" in line["skipped"]
    assert find(lines, variant="attention=torch", lengths="8192")


def test_choices_that_a_model_has_not_are_not_measured(course: Any, find: Find) -> None:
    course.wrong.add("close to bf16")
    lines = course.run(models=("bge-large",), blocks=("variants",), minutes=60)
    told = find(lines, block="variants")
    assert {line["variant"].partition("=")[0] for line in told} == {"attention"}
    assert {line["lengths"] for line in told if "ratio" in line} == {"512"}
    assert {line["precision"] for line in told} == {"bf16"}


def test_no_speed_is_told_of_what_is_wrong(course: Any, find: Find) -> None:
    course.wrong.add("close to somebody")
    lines = course.run()
    assert [line["passed"] for line in find(lines, block="gate")] == [False, True]
    for block in ("bulk", "query", "mixed", "clients", "variants", "peers", "start"):
        assert [line["skipped"] for line in find(lines, block=block)] == [
            "the gate failed: no speed is measured"
        ]
    assert find(lines, what="checks of the gate that passed, share")[0]["met"] is False


def test_a_precision_that_is_wrong_is_not_measured(course: Any) -> None:
    course.wrong.add("close to bf16 with a huge channel")
    lines = course.run(blocks=("bulk", "query"))
    told = [line for line in lines if line["block"] in ("bulk", "query")]
    assert {line["precision"] for line in told} == {"bf16"}
    assert not any("ratio" in line for line in told)


@pytest.mark.parametrize("call", [("reference", "vectors"), ("embedlib", "checks")])
def test_a_check_that_cannot_be_made_is_not_passed(
    course: Any, find: Find, call: tuple[str, str]
) -> None:
    course.broken.add(call)
    lines = course.run(blocks=("bulk",))
    assert find(lines, block="gate")[-1]["failed"].endswith(f"no {call[1]} today")
    assert find(lines, block="bulk")[0]["skipped"].startswith("the gate failed")


def test_a_measurement_that_fails_is_told_and_the_next_has_a_new_process(
    course: Any, find: Find
) -> None:
    course.broken.add(("embedlib", "query"))
    lines = course.run(blocks=("query", "mixed"))
    failed = find(lines, block="query", what="ids")
    assert len(failed) == 8
    assert all("no query today" in line["failed"] for line in failed)
    assert len(find(lines, block="mixed", queries_per_s=20.0)) == 1
    assert sum("is killed" in event for event in course.log) == 8


def test_what_cannot_be_loaded_is_tried_once(course: Any, find: Find) -> None:
    course.broken.add(("sentence-transformers", "load"))
    lines = course.run(blocks=("peers",))
    [line] = find(lines, peer="sentence-transformers")
    assert "it cannot be loaded: RuntimeError: no load today" in line["failed"]
    assert [name for name, _ in course.paths].count("sentence-transformers") == 1
    assert find(lines, peer="vllm")[0]["skipped"] == "no --vllm-path was given"


def test_a_call_that_hangs_is_ended_and_the_rest_goes_on(course: Any, find: Find) -> None:
    course.hanging.add(("embedlib", "mixed"))
    lines = course.run(blocks=("mixed", "clients"))
    first, second = find(lines, block="mixed")
    assert "mixed took too long" in first["failed"]
    assert second["skipped"] == "the time of the block is over"
    assert len(find(lines, block="clients", num_clients=1400)) == 1
    assert lines[-1]["t"] < 8 * 60


def test_what_was_not_foreseen_is_told_and_the_rest_goes_on(course: Any, find: Find) -> None:
    course.rates["bf16"] = 0.0
    lines = course.run(blocks=("bulk", "query"))
    assert find(lines, block="bulk")[-1]["failed"].startswith("ZeroDivisionError: ")
    assert find(lines, block="query", what="text")


def test_what_a_block_has_no_time_for_is_left_out(course: Any, find: Find) -> None:
    course.hanging.add(("embedlib", "bulk"))
    lines = course.run(blocks=("bulk",))
    first, *rest = find(lines, block="bulk")
    assert "bulk took too long" in first["failed"]
    assert {line["skipped"] for line in rest} == {"the time of the block is over"}
    assert "fp8 over bf16" in [line.get("what") for line in rest]


def test_all_ends_in_time(course: Any) -> None:
    course.hanging |= {("embedlib", "bulk"), ("sentence-transformers", "prepare")}
    lines = course.run(models=tuple(SHAPES), minutes=1)
    assert lines[-1]["t"] < 60 + 10 * len(plan_of(GpuOptions()))
    assert any("the time of the run is over" in str(line.get("skipped")) for line in lines)
    assert all(timeout is not None for timeout in course.timeouts)


def test_the_first_process_of_a_short_run_has_time_to_start(course: Any) -> None:
    """Importing torch for the first time on a machine takes 20 s and more."""
    course.run(minutes=0.1)
    assert course.log[0] == "chip 1 versions"
    assert course.timeouts[0] >= 30


def test_without_a_gpu(course: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for _ in range(2):
        with pytest.raises(EngineUnavailableError, match="no NVIDIA GPU was found"):
            course.run()
        monkeypatch.setattr(run, "list_gpus", list)  # CUDA_VISIBLE_DEVICES leaves none
    assert course.written == []


@pytest.mark.parametrize(("device", "missing"), [("cuda", "triton"), ("cpu", "torch")])
def test_without_a_package(
    device: str, missing: str, course: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(run, "list_gpus", lambda: [H200])
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else object()
    )
    with pytest.raises(EngineUnavailableError) as caught:
        course.run(device=device)
    assert str(caught.value) == f"the package {missing} is missing; {install_line('cuda')}"
    assert (course.written, course.paths) == ([], [])


def test_an_emulation_tells_no_verdict(course: Any, find: Find) -> None:
    lines = course.run(device="cpu", blocks=("bulk",))
    assert {line["met"] for line in find(lines, block="verdict")} == {None}
    assert find(lines, block="verdict")[1]["found"] == 80_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ("gpt",)}, r"models = 'gpt'; it must be one of bge-en-icl, "),
        ({"models": ()}, "name at least one"),
        ({"blocks": ("gate",)}, "blocks = 'gate'; it must be one of ceilings, "),
        ({"blocks": ("bulk", "bulk")}, "each once"),
        ({"minutes": 0.0}, "minutes = 0.0; it must be more than 0"),
        ({"vllm_path": Path("nowhere")}, "vllm_path = 'nowhere' has no folder vllm"),
    ],
)
def test_wrong_options(options: Line, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GpuOptions(**options)


def test_the_table(course: Any) -> None:
    course.broken.add(("embedlib", "clients"))
    table = render(course.run(blocks=BLOCKS, minutes=60))
    for cells in (
        ("command", r"a \| b"),
        ("bge-en-icl", "500", "1,000", "800", "4"),
        ("bge-en-icl", "fp8", "512", "80,000", "156", "870.0", "87.0%"),
        (
            "bge-en-icl",
            "fp8",
            "keeps_prefix",
            "a query of 16 tokens behind 480 common ones",
            "62.00 ms",
        ),
        ("bge-en-icl", "fp8", "pooled_rows", "bulk of 512 tokens", "80,000 tokens/s"),
        ("bge-en-icl", "fp8", "sentence-transformers", "20,000", "80,000", "4.00x (4.00 to 4.00)"),
        ("7B, FP8, bulk of 512 tokens, tokens/s", "at least 75,000", "80,000", "met"),
        ("7B, over vLLM at its best", "at least 1.15x", "–"),  # noqa: RUF001
    ):
        rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()]
        rows = [[cell.strip("| ") for cell in row] for row in rows]
        assert any(tuple(row[: len(cells)]) == cells for row in rows), cells
    assert "- clients, bge-en-icl, fp8, 16: failed: embedlib failed: RuntimeError" in table
    assert "answers/s" not in table  # there is no result to show
    assert table.splitlines()[-1].startswith("| 7B, second start")
