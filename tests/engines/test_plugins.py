"""Engines of other packages, written into a folder as pip would install them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from typing import NoReturn

import pytest

import embedlib.engines
from embedlib.config import Config
from embedlib.engines.machine import ENTRY_POINT_GROUP as GROUP
from embedlib.engines.machine import Machine
from embedlib.engines.registry import available_engines, engine_names
from embedlib.engines.select import choose_engine
from embedlib.errors import ConfigError, EngineUnavailableError
from tests.machines import fake_machine
from tests.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
(ABACUS,) = re.findall(r"```python\n(\"\"\"abacus_engine.*?)```", RECIPE, re.S)


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., None]:
    """Return a function that installs a package with one engine."""

    def write(package: str, engine: str, value: str = "abacus_engine:KIND", code: str = "") -> None:
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{engine} = {value}\n")
        (tmp_path / f"{value.partition(':')[0]}.py").write_text(code or ABACUS)

    return write


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose packages with engines are those of `install`."""
    monkeypatch.syspath_prepend(tmp_path)
    found = distributions(path=[str(tmp_path)])
    return replace(
        fake_machine(),
        probe_plugins=lambda: [
            point for package in found for point in package.entry_points.select(group=GROUP)
        ],
    )


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from embedlib import Embedder
from embedlib.engines import load_weights
from embedlib.models.reading.files import read_model_files
from embedlib.testing import check_engine

assert "abacus_engine" not in sys.modules
with Embedder(sys.argv[1], engine="abacus") as embedder:
    assert "abacus_engine" in sys.modules
    one, two, both = embedder.encode(["a cat", "who ran", "a cat who ran"])
    assert np.abs(one - two).max() > 1e-3
    spec = embedder.spec
from abacus_engine import AbacusEngine
files = read_model_files(Path(sys.argv[1]))
check_engine(AbacusEngine(load_weights(files)["tokens"], None), spec)
print("done", "openvino" in sys.modules)
"""


def test_the_engine_of_the_recipe(
    install: Callable[..., None], tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    install("abacus-engine", "abacus")
    done = run_python(tmp_path, "-c", PROGRAM, str(tiny_folder("bert")))
    assert done.stdout.splitlines() == ["done False"], done.stderr
    doctor = run_python(tmp_path, "-m", "embedlib", "doctor").stdout
    assert "abacus         yes: runs on any CPU, in float32" in doctor
    assert "auto picks     abacus" not in doctor
    shown = run_python(tmp_path, "-m", "embedlib", "encode", "--help").stdout
    assert "openvino|abacus]" in shown.replace("\n", "").replace(" ", "")


def test_auto_takes_no_engine_of_another_package(
    install: Callable[..., None], machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    install("a-package", "broken", "a_module:KIND", "raise RuntimeError('imported')")
    with caplog.at_level(logging.INFO):
        assert choose_engine(Config(), machine).name == "openvino"
    assert "engine broken of the package a-package is used only where it is named" in caplog.text
    assert engine_names(machine) == ("auto", "tensorrt_llm", "cuda", "openvino", "broken")


def test_without_that_line_in_the_log_auto_does_not_look_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look() -> NoReturn:
        raise AssertionError("the metadata of every installed package is read")

    with caplog.at_level(logging.WARNING):
        chosen = choose_engine(Config(), replace(fake_machine(), probe_plugins=look))
    assert chosen.name == "openvino"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise RuntimeError('two\\nlines')",
            "the package a-package cannot be imported: RuntimeError: two lines; upgrade or "
            "uninstall it",
        ),
        (
            "import no_such_library",
            "the package a-package cannot be imported: ModuleNotFoundError: No module named "
            "'no_such_library'; upgrade or uninstall it",
        ),
        (
            "KIND = 'abacus'",
            "the package a-package is broken: {module}:KIND is a str and must be an EngineKind; "
            "upgrade or uninstall it",
        ),
        (
            ABACUS.replace('name="abacus"', 'name="other"'),
            "the package a-package is broken: {module}:KIND has the name 'other', and its entry "
            "point 'abacus'; upgrade or uninstall it",
        ),
        (
            ABACUS.replace("if config.devices", "if no_such_name"),
            "its find() failed: NameError: name 'no_such_name' is not defined; report it to the "
            "authors of the engine",
        ),
    ],
)
def test_a_broken_package(
    code: str,
    reason: str,
    install: Callable[..., None],
    machine: Machine,
    request: pytest.FixtureRequest,
) -> None:
    module = f"broken_{abs(hash(request.node.name))}"  # imported anew in each test
    install("a-package", "abacus", f"{module}:KIND", code)
    reason = reason.format(module=module)
    choices = {choice.name: choice for choice in available_engines(machine=machine)}
    assert (choices["abacus"].is_available, choices["abacus"].reason) == (False, reason)
    assert choices["openvino"].is_available
    with pytest.raises(EngineUnavailableError) as caught:
        choose_engine(Config(engine="abacus"), machine)
    assert str(caught.value).startswith("engine = 'abacus' cannot be used here: ")
    assert str(caught.value).endswith(reason)
    assert choose_engine(Config(), machine).name == "openvino"


def test_two_packages_with_one_name(install: Callable[..., None], machine: Machine) -> None:
    install("b-package", "abacus")
    install("a-package", "abacus")
    told = (
        "the packages a-package and b-package each bring an engine of this name; uninstall all but "
        "one"
    )
    assert [c.reason for c in available_engines(machine=machine) if c.name == "abacus"] == [told]
    with pytest.raises(EngineUnavailableError, match=f"^engine = 'abacus' cannot be .*: {told}$"):
        choose_engine(Config(engine="abacus"), machine)
    assert choose_engine(Config(engine="openvino"), machine).name == "openvino"


def test_a_name_that_embedlib_has(install: Callable[..., None], machine: Machine) -> None:
    install("a-package", "openvino")
    told = (
        "the package a-package brings an engine of the name 'openvino' too, which is embedlib's "
        "own; pip uninstall a-package"
    )
    choices = [c for c in available_engines(machine=machine) if c.name == "openvino"]
    assert [(c.is_available, c.reason == told) for c in choices] == [(True, False), (False, True)]
    with pytest.raises(EngineUnavailableError, match=told):
        choose_engine(Config(engine="openvino"), machine)
    assert choose_engine(Config(), machine).name == "openvino"


def test_an_unknown_name_lists_those_of_packages(
    install: Callable[..., None], machine: Machine
) -> None:
    install("a-package", "abacus")
    told = r"^engine = 'abakus'; it must be one of auto, tensorrt_llm, cuda, openvino, abacus$"
    with pytest.raises(ConfigError, match=told):
        choose_engine(Config(engine="abakus"), machine)


@pytest.mark.parametrize("name", embedlib.engines.__all__)
def test_the_names_for_authors_of_engines(name: str) -> None:
    assert getattr(embedlib.engines, name).__name__ == name


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"^module 'embedlib\.engines' has no attribute 'X'$"):
        embedlib.engines.X  # noqa: B018
