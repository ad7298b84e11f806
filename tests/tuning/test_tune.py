"""`embedlib tune` from the command line to the next load."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from embedlib import Embedder
from embedlib.cli import main
from embedlib.config import Config
from embedlib.engines.kind import EnginePlan
from embedlib.engines.profile import Profile
from embedlib.errors import ConfigError, EngineBuildError, EngineRunError
from embedlib.measuring.spread import Spread
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import model_fingerprint
from embedlib.models.compiled.fidelity_report import write_report
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import ModelFiles
from embedlib.tuning import Tuned, TuneOptions, tune
from embedlib.tuning.runners import EmbeddingRunner
from embedlib.tuning.search import Row
from tests.fidelity_reports import make_report
from tests.waiting import WAIT_SECONDS


def many(number: int) -> str:
    """Lines that all differ."""
    return "".join(f"a text {'x' * place}\n" for place in range(number))


def test_a_profile_is_written_and_used(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder, texts = tiny_folder("bert"), tmp_path / "texts.txt"
    texts.write_text(many(40), encoding="utf-8")
    options = ["--minutes", "0.001", "--texts", str(texts), "--threads", "2"]
    options += ["--engine-cache-dir", str(tmp_path), "--precision", "float32"]
    result = CliRunner().invoke(main, ["tune", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert "From now on: tuned: 512 tokens" in result.output
    (path,) = (tmp_path / "profiles").iterdir()
    assert str(path) in result.output
    assert json.loads(path.read_text(encoding="utf-8"))["measured"]["num_texts"] == 32
    assert {entry.name for entry in tmp_path.iterdir()} == {"profiles", "texts.txt"}
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with Embedder(folder, config=config) as embedder:
        assert embedder.stats().profile.startswith("tuned: ")


def test_what_was_tried_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(max_batch_tokens=1024, num_streams=2, shares_lanes=True, library="auto")
    rows = (
        Row(profile=profile, verdict="better", bulk=Spread.of([1.1, 1.2, 1.3]), query=0.5),
        Row(profile=profile, verdict="not tried: no memory"),
    )
    found = Tuned(
        default=profile,
        profile=profile,
        rows=rows,
        num_texts=32,
        num_tokens=900,
        tokens_per_s=12345.6,
        precision="float32",
        path=Path("p.json"),
    )
    monkeypatch.setattr(import_module("embedlib.tuning"), "tune", lambda *_, **__: found)
    result = CliRunner().invoke(main, ["tune", "m"])
    cells = [
        [cell.strip() for cell in line.split("|")[6:-1]] for line in result.output.splitlines()
    ]
    assert cells[2:4] == [
        ["1.20x (1.10 to 1.30)", "0.50x", "", "better"],
        ["", "", "", "not tried: no memory"],
    ]


def test_what_is_compiled_only_now_has_its_profile_at_the_next_load(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # Its matrices are stored in 16 bits, those of its engine directory are not.
    folder = tiny_folder("mistral")
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="int8", engine="openvino")
    tune(folder, TuneOptions(minutes=0.001, config=config))
    with Embedder(folder, config=config) as embedder:
        assert embedder.stats().profile.startswith("tuned: ")


def test_auto_is_tuned_in_the_precision_that_loads_take(
    takes_int8: None,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(threads=2, engine_cache_dir=tmp_path, engine="openvino")

    def prepare(opened: OpenedModel, files: ModelFiles, plan: EnginePlan) -> bool:
        assert plan.precision.name == "float32"
        made = compile_model(files, "int8", (), opened.config)
        write_report(made, make_report(fingerprint=model_fingerprint(files)))
        return True

    with monkeypatch.context() as patched:
        patched.setattr(import_module("embedlib.session.loading"), "prepare_now", prepare)
        tuned = tune(tiny_folder("bert"), TuneOptions(minutes=0.001, config=config))
    assert tuned.precision == "int8"
    with Embedder(tiny_folder("bert"), config=config) as embedder:
        assert embedder.stats().profile.startswith("tuned: ")


def test_a_file_with_too_few_texts_is_refused(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(many(31) + "a text x\n" * 9)
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with pytest.raises(ConfigError, match=r"has 31 different texts, and a pass has at least 32;"):
        tune(tiny_folder("bert"), TuneOptions(texts_path=texts, config=config))
    assert not list((tmp_path / "profiles").iterdir())


def test_a_text_that_is_there_twice_counts_once(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n" * 40 + many(40))
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    tuned = tune(tiny_folder("bert"), TuneOptions(minutes=0.001, texts_path=texts, config=config))
    assert tuned.num_texts == 32


def test_a_query_that_fails_beside_bulk_is_not_taken_for_a_quick_one() -> None:
    class Failing:
        """Answers the first query, and no other; a bulk pass ends when the second was asked."""

        def __init__(self) -> None:
            self.num_asked = 0
            self.is_asked = threading.Event()

        def encode(self, texts: object, **_: object) -> None:
            if isinstance(texts, list):
                assert self.is_asked.wait(WAIT_SECONDS)
                return
            self.num_asked += 1
            if self.num_asked == 2:
                self.is_asked.set()
                raise EngineRunError("no answer")

    runner = EmbeddingRunner(Failing(), ["a text"])  # type: ignore[arg-type] # what is called
    with pytest.raises(EngineRunError, match="no answer"):
        runner.beside()


def test_a_cache_that_cannot_be_written_is_told_before_measuring(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "profiles").touch()
    said: list[str] = []
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with pytest.raises(EngineBuildError, match=f"^cannot write {tmp_path}/profiles/"):
        tune(tiny_folder("bert"), TuneOptions(config=config), report=said.append)
    assert not said


def test_a_model_of_scores_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="computes scores; give an embedding model"):
        tune(tiny_folder("bert-reranker"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0}, "minutes = 0"),
        ({"minutes": float("nan")}, "minutes = nan"),
        ({"text_tokens": 0}, "text_tokens = 0"),
        ({"text_tokens": 5, "texts_path": Path("x")}, "leave out texts_path"),
        ({"config": Config(max_batch_tokens=5)}, "max_batch_tokens is what tune looks for"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TuneOptions(**options)  # type: ignore[arg-type]


def test_texts_too_long_for_a_pass_are_refused(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.measuring.texts._blocks", lambda: iter(["a b c d"] * 9))
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with pytest.raises(ConfigError, match=r"^text_tokens = 900: embedlib's texts make 0 of"):
        tune(tiny_folder("bert"), TuneOptions(text_tokens=900, config=config))
    assert not list((tmp_path / "profiles").iterdir())
