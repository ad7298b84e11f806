"""Fixtures for every test: tiny model folders, and stored outputs of sentence-transformers."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.session import preparing
from embedlib.testing.models.write import write_tiny_model

GOLDENS = Path(__file__).parent / "goldens"
LEFT = preparing._left
PROPERTY = "FULL_DEVICE_NAME"
LONGEST = frozenset(
    {
        *("test_killed_at_any_instant", "test_nothing_written_is_lost_when_the_process_is_killed"),
        *("test_files_survive_kills", "test_both_vectors_of_a_row_survive_kills"),
        "test_both_vectors_in_postgres_survive_kills",
        "test_a_client_searches_while_changes_of_model_are_killed",
        "test_minilm_passes_with_some_layers_kept_and_not_without",
        "test_a_search_computes_nothing_again",
    }
)
"""Tests of several seconds each, which use no fixture of their module."""

with suppress(ImportError):  # environments without tests that draw
    from hypothesis import HealthCheck, settings

    # A busy machine is slow; what is drawn is no worse for it.
    slow = [HealthCheck.too_slow]
    settings.register_profile("busy", suppress_health_check=slow, deadline=None)
    settings.load_profile("busy")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, or the other workers wait for the one that comes last."""
    items.sort(key=lambda item: getattr(item, "originalname", None) not in LONGEST)


def pytest_collection_finish() -> None:
    """Exclude all objects that exist before the first test from garbage collection.

    These are torch, thousands of tests and a million other objects; one collection took 0.2 s.
    """
    gc.freeze()


@dataclass(frozen=True)
class GoldenCase:
    """The outputs of sentence-transformers for the texts, with one prompt or none."""

    prompt_name: str | None
    """None: as `encode(texts)`, which applies the default prompt if the model has one."""
    ids: list[list[int]]
    num_prompt_tokens: int
    """Leading tokens of the prompt that pooling excludes."""
    vectors: NDArray[np.float32]
    """float32[N, D]."""


@dataclass(frozen=True)
class Golden:
    """The stored outputs of one tiny model; see goldens/make.py and goldens/provenance.json."""

    texts: list[str]
    cases: list[GoldenCase]


def _read_golden(variant: str) -> Golden:
    texts = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))
    cases = []
    with np.load(GOLDENS / f"{variant}.npz") as stored:
        for key in stored.files:
            if key.partition(".")[0] != "vectors":
                continue
            suffix = key[len("vectors") :]
            ends = np.cumsum(stored[f"lengths{suffix}"])
            rows = np.split(stored[f"ids{suffix}"], ends[:-1])
            cases.append(
                GoldenCase(
                    prompt_name=suffix[1:] or None,
                    ids=[row.tolist() for row in rows],
                    num_prompt_tokens=int(stored[f"num_prompt_tokens{suffix}"]),
                    vectors=stored[key],
                )
            )
    return Golden(texts, cases)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """Return a function that returns the stored outputs of a tiny variant."""
    return _read_golden


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns a tiny variant's folder, written once; do not modify it."""
    folders: dict[str, Path] = {}

    def folder(variant: str) -> Path:
        if variant not in folders:
            folders[variant] = write_tiny_model(tmp_path_factory.mktemp(variant), variant)
        return folders[variant]

    return folder


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder for compiled engines: each tiny model is compiled once per run.

    What OpenVINO compiles is shared by the workers of pytest-xdist, each of which has a session.
    """
    folder = tmp_path_factory.mktemp("engines")
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = tmp_path_factory.getbasetemp().parent / "openvino"
        shared.mkdir(exist_ok=True)
        (folder / "openvino").symlink_to(shared)
    return folder


@pytest.fixture
def new_cache(tmp_path: Path, engine_cache: Path) -> Path:
    """Return a cache folder without engine directories, reports or profiles.

    Only what OpenVINO compiles is shared, with every test that has such a folder or `engine_cache`.
    """
    folder = tmp_path / "cache"
    folder.mkdir()
    (engine_cache / "openvino").mkdir(exist_ok=True)
    (folder / "openvino").symlink_to(engine_cache / "openvino")
    return folder


HUB_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def limit_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Return a function that lets only so many threads be started; it returns their names."""
    start = threading.Thread.start

    def limit(num_threads: int) -> list[str]:
        started: list[str] = []

        def limited(thread: threading.Thread) -> None:
            if len(started) == num_threads:
                raise RuntimeError("can't start new thread")
            started.append(thread.name)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)
        return started

    return limit


@pytest.fixture
def put_on_hub(tmp_path: Path) -> Callable[[str, Path], dict[str, Any]]:
    """Return a function that puts a model into a hub cache, and returns the options to find it."""
    cache = tmp_path / "hub"

    def put(name: str, folder: Path) -> dict[str, Any]:
        root = cache / f"models--{name.replace('/', '--')}"
        shutil.copytree(folder, root / "snapshots" / HUB_COMMIT)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(HUB_COMMIT)
        return {"cache_folder": cache, "local_files_only": True}

    return put


@pytest.fixture(scope="session", autouse=True)
def _prepares_nothing() -> Iterator[None]:
    """Let no load measure faster precisions, whatever CPU the tests run on; `prepares` lets it."""
    with pytest.MonkeyPatch.context() as patched:  # for fixtures of modules, too
        patched.setattr(preparing, "_left", lambda *_, **__: ())
        # For programs that tests start: what they measured in the cache of the run would decide
        # what `auto` takes in the tests after them.
        patched.setenv("EMBEDLIB_PREPARE", "false")
        yield


@pytest.fixture(scope="session", autouse=True)
def _loads_the_plugin_alone() -> Iterator[None]:
    """Let OpenVINO compile nothing while its plugin is loaded, which took 20 ms of every load.

    The thread that loads it ends all the same, so that its signal stack is nobody's.
    """
    with pytest.MonkeyPatch.context() as patched:
        with suppress(ImportError):  # a machine with a GPU and no OpenVINO
            from embedlib.engines.openvino import core

            core.loaded_core()
            patched.setattr(core, "_load_plugin", lambda core: core.get_property("CPU", PROPERTY))
        yield


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment set no option, as in a shell where nobody exported one."""
    monkeypatch.delenv("EMBEDLIB_PREPARE")


@pytest.fixture
def takes_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` take int8 if it passes the gate, as on a CPU where it is faster than float32."""
    monkeypatch.setattr("embedlib.engines.select.worthwhile", lambda *_: ("int8", "float32"))


@pytest.fixture
def prepares(takes_int8: None, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loads measure faster precisions."""
    monkeypatch.setattr(preparing, "_left", LEFT)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread of the library behind."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("embedlib-")] == []


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every stream pass for a terminal, as far as progress goes."""
    for module in ("progress.screens", "progress.phases", "session.running"):
        monkeypatch.setattr(f"embedlib.{module}.terminal_columns", lambda _: 80)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Path], None]:
    """Pretends that a path is below a folder that may not be searched; root may search all."""

    def forbid(forbidden: str | Path) -> None:
        def refuse(path: Any, **options: Any) -> os.stat_result:
            if not isinstance(path, int) and os.fspath(path) == os.fspath(forbidden):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return look(path, **options)

        look = os.stat
        monkeypatch.setattr(os, "stat", refuse)

    return forbid
