from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from embedlib import fidelity
from embedlib.bench.contestants import own as own_contestants
from embedlib.bench.contestants.own import INT8_RERANKER, RERANKER, EmbedlibContestant
from embedlib.bench.peers import EMBEDLIB, FLOAT32, INT8, ST
from embedlib.bench.worker import ContestantCalls, make_contestant
from embedlib.config import Config
from embedlib.measuring.child import memory_of
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import model_fingerprint
from embedlib.models.compiled.fidelity_report import write_report
from embedlib.models.reading.files import read_model_files
from embedlib.session.preparing import Task
from embedlib.testing.models.write import write_tiny_model
from tests.fidelity_reports import make_report
from tests.tiny_models.static import write_static_model
from tests.waiting import WAIT_SECONDS

Ask = Callable[..., list[dict[str, Any]]]


def request(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return name, arguments


def test_ours_takes_the_cpu_as_its_peers_do_and_nothing_of_the_environment(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLIB_DEVICE", "cuda")
    monkeypatch.setenv("EMBEDLIB_PRECISION", "fp8")
    monkeypatch.setenv("EMBEDLIB_MAX_BATCH_TOKENS", "33")
    (tmp_path / "filled").touch()  # a second start
    contestant = EmbedlibContestant()
    contestant.load(tiny_folder("bert"), tmp_path, 1, {"max_batch_tokens": None})
    config = contestant._model.config
    assert (config.device, config.precision, config.threads) == ("cpu", "auto", 1)
    assert config.max_batch_tokens is None
    assert contestant.precision() == "float32"


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        (EMBEDLIB, "auto"),
        (FLOAT32, "float32"),
        (INT8, "int8"),
        (RERANKER, "auto"),
        (INT8_RERANKER, "int8"),
    ],
)
def test_ours_computes_in_what_its_name_says(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, make = Mock(), Mock()
    monkeypatch.setattr(own_contestants, "compile_int8", search)
    contestant = make_contestant(name)
    monkeypatch.setattr(contestant, "_make", make)
    contestant.load(tmp_path / "model", tmp_path, 1, {"max_batch_tokens": None})
    [(folder, config)] = [call.args for call in make.call_args_list]
    assert (folder, config.precision) == (tmp_path / "model", precision)
    assert search.called == (precision == "int8")


@pytest.mark.parametrize("name", [EMBEDLIB, RERANKER])
def test_ours_measures_nothing_beside_the_turns_of_its_peers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, finish = Mock(), Mock()
    monkeypatch.setattr(own_contestants, "finish_preparing", finish)
    contestant = make_contestant(name)
    configs: list[Config] = []
    monkeypatch.setattr(contestant, "_make", lambda _, config: configs.append(config) or model)
    cache = tmp_path / "cache"
    cache.mkdir()
    contestant.load(tmp_path / "model", cache, 1, {})
    contestant.fill_cache(cache)
    assert [call[0] for call in model.mock_calls] == ["close", "close"]
    finish.assert_called_once_with(model, cache)
    # The second start keeps what is compiled in a precision that the user's cache knew.
    assert [config.prepare for config in configs] == [True, False]


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("", {"torch_dtype": "float32"}),
        ("-bf16", {"torch_dtype": "bfloat16"}),
        ("-openvino", {"export": True, "ov_config": {"INFERENCE_NUM_THREADS": "3"}}),
        (
            "-openvino-float32",
            {
                "export": True,
                "ov_config": {"INFERENCE_NUM_THREADS": "3", "INFERENCE_PRECISION_HINT": "f32"},
            },
        ),
    ],
)
def test_sentence_transformers_is_asked_for_what_the_name_says(
    kind: str, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Mock()
    contestant: Any = make_contestant(f"{ST}{kind}")
    monkeypatch.setattr(contestant, "_make", make)
    contestant._construct(tmp_path, tmp_path / "cache", 3)
    assert make.call_args.kwargs["model_kwargs"] == asked


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        (ST, "float32"),
        (f"{ST}-bf16", "bf16"),
        ("llama.cpp-float32", "float32"),
        ("llama.cpp-bf16", "bf16"),
        ("llama.cpp-q8_0", "int8"),
    ],
)
def test_what_a_peer_multiplies_in(name: str, precision: str) -> None:
    assert make_contestant(name).precision() == precision


def test_a_static_model_has_nothing_to_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worthwhile = import_module("embedlib.engines.worthwhile")
    monkeypatch.setattr(worthwhile, "worthwhile", lambda *_: ("int8", "float32"))
    cache = tmp_path / "cache"
    cache.mkdir()
    contestant = EmbedlibContestant()
    contestant.load(write_static_model(tmp_path / "static"), cache, 1, {})
    contestant.fill_cache(cache)
    assert contestant.precision() == "float32"


@pytest.mark.parametrize("is_own", [True, False])
def test_what_is_measured_of_a_users_model_is_kept_in_the_users_cache(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    monkeypatch.setenv("EMBEDLIB_ENGINE_CACHE_DIR", str(home))
    monkeypatch.setattr(
        import_module("embedlib.engines.worthwhile"), "worthwhile", lambda *_: ("int8", "float32")
    )

    def prepare(task: Task) -> None:
        cache = Path(task.options["engine_cache_dir"])
        (cache / "fidelity").mkdir(exist_ok=True)
        (cache / "fidelity" / "report").write_text(",".join(task.precisions))

    monkeypatch.setattr(import_module("embedlib.fidelity.preparing"), "prepare", prepare)
    folder = write_tiny_model((tmp_path if is_own else scratch) / "shape", "bert")
    cache = scratch / "embedlib"
    (cache / "fidelity" / "of-the-first-start").mkdir(parents=True)  # so this is the second one
    (cache / "openvino").mkdir()
    contestant = EmbedlibContestant()
    contestant.load(folder, cache, 1, {})
    contestant.fill_cache(cache)
    assert (cache / "fidelity" / "report").read_text() == "int8"
    assert (home / "fidelity" / "report").exists() is is_own
    assert (cache / "fidelity" / "of-the-first-start").exists() is not is_own
    assert (cache / "openvino").is_dir()


def test_load_times_the_constructor_without_the_imports(
    make_fake: Callable[..., Any],
    calls: Callable[[Any], ContestantCalls],
    tmp_path: Path,
    serve_lines: Ask,
) -> None:
    fake = make_fake()
    arguments = {"folder": "a/model", "cache_dir": str(tmp_path), "threads": 3, "query": "q"}
    [reply] = serve_lines(calls(fake), request("load", options={"x": 1}, **arguments))
    assert reply["result"]["constructor_s"] == 8
    assert reply["result"]["memory_mib"] == {"peak": 3.0, "anonymous": 1.0}
    assert reply["result"]["precision"] == "float32"
    assert reply["result"]["versions"] == {"pytest": pytest.__version__}
    assert fake.events == [("load", "model", True, 3, {"x": 1}), ("query", "q")]


def test_bulk_embeds_every_nth_text_and_keeps_the_vectors(
    make_fake: Callable[..., Any],
    calls: Callable[[Any], ContestantCalls],
    tmp_path: Path,
    serve_lines: Ask,
) -> None:
    fake = make_fake(best_batch_size=8)
    path = tmp_path / "vectors.npy"
    replies = serve_lines(
        calls(fake),
        request("set_texts", texts=["a", "bb", "ccc", "dddd", "eeeee"], queries=["q"]),
        request("bulk", batch_size=8, stride=2),
        request("bulk", batch_size=4),
        request("save_vectors", path=str(path)),
    )
    assert [reply["result"] for reply in replies] == [
        *(None, pytest.approx(0.003), pytest.approx(0.010), None)
    ]
    assert np.load(path)[:, 0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("seconds", "num_queries"), [(0.0, 3), (0.0075, 8)])
def test_queries_take_turns_until_the_time_is_over(
    seconds: float,
    num_queries: int,
    make_fake: Callable[..., Any],
    calls: Callable[[Any], ContestantCalls],
    serve_lines: Ask,
) -> None:
    fake = make_fake()
    _, reply = serve_lines(
        calls(fake),
        request("set_texts", texts=[], queries=["a", "b", "c"]),
        request("query", seconds=seconds),
    )
    assert reply["result"] == pytest.approx([1.0] * num_queries)
    assert [text for _, text in fake.events] == [*"abcabcabc"][:num_queries]


class Meeting:
    """A contestant whose second bulk pass ends only when a query was answered meanwhile."""

    packages: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.num_passes = 0
        self.error: Exception | None = None

    def encode(self, texts: list[str], batch_size: int | None) -> Any:
        self.num_passes += 1
        if self.num_passes == 2:
            assert self.answered.wait(timeout=WAIT_SECONDS)
        return np.zeros((len(texts), 2), np.float32)

    def query(self, text: str) -> None:
        self.answered.set()
        if self.error is not None:
            raise self.error


def test_queries_beside_a_bulk_pass() -> None:
    fake = Meeting()
    calls = ContestantCalls(fake)  # type: ignore[arg-type] # only what is called
    calls.set_texts(["t"], ["q"])
    mixed = calls.mixed(seconds=1e-9, interval_s=0, batch_size=None)
    assert (len(mixed["without_s"]), len(mixed["with_s"])) == (2, 1)
    assert len(mixed["latencies_ms"]) >= 1
    assert fake.num_passes == 3


def test_a_query_that_fails_beside_a_bulk_pass_is_told(serve_lines: Ask) -> None:
    fake = Meeting()
    fake.error = ValueError("no answer\nof this")
    calls = ContestantCalls(fake)  # type: ignore[arg-type] # only what is called
    calls.set_texts(["t"], ["q"])
    [reply] = serve_lines(calls, request("mixed", seconds=1e-9, interval_s=0, batch_size=None))
    assert reply == {"error": "ValueError: no answer"}


def test_after_an_error_the_next_request_is_answered(
    make_fake: Callable[..., Any], calls: Callable[[Any], ContestantCalls], serve_lines: Ask
) -> None:
    replies = serve_lines(calls(make_fake()), request("no_such_call"), request("stats"))
    assert "no_such_call" in replies[0]["error"]
    assert replies[1]["result"]["padding_share"] == 0.25


def test_peak_memory_never_falls() -> None:
    before = memory_of("self")
    block = np.ones(8 << 20, np.uint8)
    after = memory_of("self")
    assert after["peak"] >= before["peak"] > block.nbytes / (1 << 20)
    assert after["peak"] >= after["anonymous"] > 8


def test_embedlib_in_int8_searches_its_layers_once(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []

    def search(model: Path, precision: str, *, config: Config) -> None:
        searched.append(config.engine_cache_dir)
        files = read_model_files(model)
        folder = compile_model(files, precision, ("layers.0.v",), config)
        report = make_report(fingerprint=model_fingerprint(files), excluded=("layers.0.v",))
        write_report(folder, report)

    monkeypatch.setattr(fidelity, "compile_to_gate", search)
    for _ in range(2):
        contestant = EmbedlibContestant("int8")
        contestant.load(tiny_folder("bert"), tmp_path, 1, {"max_batch_tokens": 99})
        assert contestant._model.precision == "int8 without layers.0.v"
        assert contestant.query("a cat").shape == (32,)
        contestant._model.close()
    assert searched == [tmp_path]
