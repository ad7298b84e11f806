from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.config import Config
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.select import available_engines, choose_engine, make_engine
from embedlib.errors import EngineUnavailableError
from embedlib.models.files import read_model_files


def test_every_engine_has_a_reason_in_one_line() -> None:
    engines = available_engines()
    assert [choice.name for choice in engines] == ["tensorrt_llm", "cuda", "openvino"]
    for choice in engines:
        assert choice.reason
        assert "\n" not in choice.reason


@pytest.mark.parametrize("engine", ["auto", "openvino"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_what_runs_on_a_cpu(engine: str, device: str | None) -> None:
    choice = choose_engine(Config(engine=engine, device=device))  # type: ignore[arg-type]
    assert choice.name == "openvino"
    assert choice.is_available
    assert choice.version is not None


@pytest.mark.parametrize("engine", ["cuda", "tensorrt_llm"])
def test_an_engine_that_is_not_there_says_why(engine: str) -> None:
    with pytest.raises(EngineUnavailableError, match=f"^engine = '{engine}' cannot be used here: "):
        choose_engine(Config(engine=engine))  # type: ignore[arg-type]


def test_another_device_is_refused_by_its_name() -> None:
    with pytest.raises(EngineUnavailableError, match=r"^device = 'cuda:1': "):
        choose_engine(Config(device="cuda:1"))


def test_without_openvino_auto_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EngineUnavailableError, match="pip install openvino"):
        choose_engine(Config())


def test_options_reach_the_engine(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    files = read_model_files(tiny_folder("bert"))
    config = Config(
        threads=1, max_batch_tokens=99, max_inflight_batches=3, engine_cache_dir=tmp_path
    )
    engine = make_engine(choose_engine(config), files, config)
    assert isinstance(engine, OpenVINOEngine)
    assert engine.limits.max_batch_tokens == 99
    assert engine.limits.max_inflight_bulk == 3
    assert engine.limits.num_parallel_batches == 1
    engine.close()
    assert list((tmp_path / "openvino").iterdir())


def test_choosing_imports_no_engine() -> None:
    program = (
        "import sys; from embedlib.config import Config; "
        "from embedlib.engines.select import choose_engine; choose_engine(Config()); "
        "sys.exit('openvino' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, timeout=60).returncode == 0
