from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from embedlib import Reranker
from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.engines.openvino import engine
from embedlib.engines.openvino.core import loaded_core
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.kept import model_cache, weightless
from embedlib.engines.openvino.kept.model_cache import (
    MAX_DEATHS,
    UNUSED_SECONDS,
    CacheEntry,
    ModelCache,
    forget_trials,
)
from embedlib.engines.openvino.plans import memory
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running import compiling
from embedlib.engines.openvino.running.compiling import trial_batch
from embedlib.errors import EngineBuildError, PassingBuildError
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.load import load_weights
from embedlib.testing import fake_spec, make_batch
from embedlib.testing.models.write import write_tiny_model
from tests.waiting import WAIT_SECONDS


@pytest.fixture(scope="module")
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


def vectors(
    files: ModelFiles, folder: Path, weights: Any = None, key: str = "these weights"
) -> NDArray[np.float32]:
    """Return the vectors that an engine with a cache gives, on both lanes."""
    weights = load_weights(files) if weights is None else weights
    made = OpenVINOEngine(files.spec, weights, Layout(threads=2), cache=ModelCache(folder, key))
    rows = []
    for lane in Lane:
        done = threading.Event()
        pending = made.submit(make_batch([[5, 7, 6], [8]], lane), done.set)
        assert done.wait(WAIT_SECONDS)
        rows.append(pending.result())
    made.close()
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    return rows[0]


def entry_of(folder: Path) -> Path:
    [entry] = [path for path in folder.iterdir() if path.is_dir()]
    return entry


COLD = ["compile", "import", "import"]
WARM = ["import", "import"]


class NotRead(Mapping[str, Any]):
    """Weights that nobody may read."""

    def __getitem__(self, role: str) -> Any:
        raise AssertionError(f"{role} was read")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the roles were read")

    def __len__(self) -> int:
        raise AssertionError("the roles were read")


def test_the_second_start_reads_no_weights_and_adds_nothing(
    files: ModelFiles, tmp_path: Path, calls: list[str]
) -> None:
    first = vectors(files, tmp_path)
    assert calls == COLD
    names = sorted(path.name for path in tmp_path.rglob("*"))
    calls.clear()
    assert (vectors(files, tmp_path, NotRead()) == first).all()
    assert calls == WARM
    assert sorted(path.name for path in tmp_path.rglob("*")) == names


def change_one_number(files: ModelFiles) -> dict[str, NDArray[np.float32]]:
    """Return the weights with one number of token 7's embedding changed."""
    weights = {role: np.array(values) for role, values in load_weights(files).items()}
    weights["tokens"][7, 3] += 3
    return weights


def test_other_weights_tell_a_compiled_model_apart(
    files: ModelFiles, tmp_path: Path, calls: list[str]
) -> None:
    first = vectors(files, tmp_path)
    changed = vectors(files, tmp_path, change_one_number(files), "other weights")
    assert np.abs(changed - first).max() > 1e-3
    assert calls == COLD * 2
    assert len(list(tmp_path.iterdir())) == 2


def test_what_else_a_compiled_model_depends_on_tells_it_apart(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kept = tmp_path / "source", tmp_path / "kept"
    graph = source / "graphs" / "graph.py"
    graph.parent.mkdir(parents=True)
    graph.write_text("# as it was")
    monkeypatch.setattr(compiling, "_ENGINE", source)
    core, cache = loaded_core(), ModelCache(kept, "these weights")

    def enter(spec: ModelSpec) -> None:
        settings = Layout(threads=2).settings(spec)
        with cache.entry(compiling._facts(core, spec, settings)) as entry:
            assert entry is not None

    enter(files.spec)
    enter(files.spec)
    assert len(list(kept.iterdir())) == 1
    graph.write_text("# under development")
    enter(files.spec)
    monkeypatch.setattr(compiling.Machine, "cpu_identity", lambda machine: ("another CPU",))
    enter(files.spec)
    monkeypatch.setattr(ov, "get_version", lambda: "2027.1")
    enter(files.spec)
    monkeypatch.setattr(compiling, "__version__", "9.9")
    enter(files.spec)
    enter(replace(files.spec, max_seq_tokens=9))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    enter(files.spec)
    monkeypatch.setattr(model_cache, "FORMAT", model_cache.FORMAT + 1)
    enter(files.spec)
    assert len(list(kept.iterdir())) == 8


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_other_answers_of_a_reranker_are_other_weights(
    is_large: bool, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:  # its graph is kept without the weights
        monkeypatch.setattr(memory, "SMALL_BYTES", 0)
        monkeypatch.setattr(weightless, "SMALLEST_BYTES", 1)
    folder = write_tiny_model(tmp_path / "model", "qwen3-logit-score")
    # Without a copy in float32, of which no graph is kept.
    config = Config(
        precision=precision, threads=1, prepare=False, engine_cache_dir=tmp_path / "cache"
    )

    def score() -> Any:
        with Reranker(folder, config=config) as reranker:
            return reranker.predict([("a city", "the city runs")], raw_scores=True)

    first = score()
    place = folder / "1_LogitScore" / "config.json"
    known = json.loads(place.read_text())
    yes, no = known["true_token_id"], known["false_token_id"]
    place.write_text(json.dumps(known | {"true_token_id": no, "false_token_id": yes}))
    np.testing.assert_allclose(score(), -first, rtol=1e-4)


def test_a_prompt_is_no_reason_to_compile_again(
    files: ModelFiles, tmp_path: Path, calls: list[str]
) -> None:
    vectors(files, tmp_path)
    spec = replace(files.spec, prompts={"query": "Find: "}, default_prompt_name="query")
    vectors(replace(files, spec=spec), tmp_path)
    assert calls == COLD + WARM


def test_how_many_operators_are_kept_is_no_reason_to_compile_again(
    files: ModelFiles, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors(files, tmp_path)
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    vectors(files, tmp_path)
    assert calls == COLD + WARM


def test_each_precision_is_compiled_for_itself(
    files: ModelFiles, tmp_path: Path, calls: list[str]
) -> None:
    for precision in ("float32", "bf16") * 2:
        OpenVINOEngine(
            files.spec,
            load_weights(files),
            Layout(threads=1, precision=precision),  # type: ignore[arg-type]
            cache=ModelCache(tmp_path, "these weights"),
        ).close()
    assert calls == COLD * 2 + WARM * 2
    stored = [json.loads(path.read_bytes()) for path in tmp_path.glob("*/entry.json")]
    hints = {entry["settings"][0]["INFERENCE_PRECISION_HINT"] for entry in stored}
    assert hints == {"f32", "bf16"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes((b"garbage" * 99_999)[: path.stat().st_size])


def first_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


@pytest.fixture(scope="module")
def cached(
    files: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, NDArray[np.float32]]:
    """A cache with the model in it, to be copied, and the model's vectors."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, vectors(files, folder)


@pytest.fixture
def first(cached: tuple[Path, NDArray[np.float32]], tmp_path: Path) -> NDArray[np.float32]:
    """Put the compiled model into `tmp_path`, as a first start does, and return its vectors."""
    folder, vectors = cached
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return vectors


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("model.blob", damage) for damage in (cut, first_bit, Path.unlink)),
        *(("tried", garbage), ("entry.json", cut)),
    ],
)
def test_a_damaged_entry_is_compiled_again(
    name: str,
    damage: Callable[[Path], None],
    files: ModelFiles,
    first: NDArray[np.float32],
    tmp_path: Path,
    calls: list[str],
) -> None:
    damage(entry_of(tmp_path) / name)
    assert (vectors(files, tmp_path) == first).all()
    assert "compile" in calls
    calls.clear()
    vectors(files, tmp_path)
    assert calls == WARM


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("model.blob", damage) for damage in (empty, lengthen)),
        *(("tried", damage) for damage in (empty, cut, lengthen, Path.unlink)),
        *(("entry.json", damage) for damage in (empty, garbage, Path.unlink)),
    ],
)
def test_a_damaged_entry_has_no_compiled_model(
    name: str,
    damage: Callable[[Path], None],
    first: NDArray[np.float32],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = CacheEntry(entry_of(tmp_path), {})
    assert entry.kept() is not None
    damage(entry.path / name)
    assert entry.kept() is None
    if damage is Path.unlink:
        assert not caplog.records, "it was never whole"
    else:
        assert "it is damaged" in caplog.text
        assert list(entry.path.iterdir()) == [], "it takes no room"


def test_a_trial_is_marked_with_its_process_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, mark = CacheEntry(tmp_path, {}), tmp_path / "trying"
    with suppress(KeyError), entry.trying():
        assert mark.read_text() == str(os.getpid())
        raise KeyError
    assert not mark.exists()
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError(28, "the disk is full")))
    with entry.trying():
        assert mark.exists()
    assert not mark.exists()


def test_what_somebody_removes_meanwhile_is_not_missed(tmp_path: Path) -> None:
    entry = CacheEntry(tmp_path, {})
    with entry.trying():
        (tmp_path / "trying").unlink()
    entry.use()
    entry.forget_deaths()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_thread_that_cannot_be_started_is_no_fault_of_the_entry(
    num_threads: int,
    files: ModelFiles,
    cached: tuple[Path, NDArray[np.float32]],
    calls: list[str],
    limit_threads: Callable[[int], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, _ = cached
    limit_threads(num_threads)
    monkeypatch.setattr(engine, "check_threads", lambda _: None)
    with pytest.raises(EngineBuildError, match="no more threads can be started"):
        vectors(files, folder)
    limit_threads(1000)
    calls.clear()
    vectors(files, folder)
    assert calls == WARM


def test_a_thread_that_the_library_cannot_start_is_no_fault_of_the_entry(
    files: ModelFiles, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = Mock(side_effect=RuntimeError("core.cpp:1:\nResource temporarily unavailable\n\n"))
    with monkeypatch.context() as patch:
        patch.setattr(ov.Core, "compile_model", lacking)
        with pytest.raises(PassingBuildError, match="no more threads can be started"):
            vectors(files, tmp_path)
    vectors(files, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ov.Core, "import_model", lacking)
        with pytest.raises(PassingBuildError, match="no more threads can be started"):
            vectors(files, tmp_path)
    calls.clear()
    vectors(files, tmp_path)
    assert calls == WARM


def test_the_library_is_not_called_where_it_could_start_no_threads(
    files: ModelFiles,
    cached: tuple[Path, NDArray[np.float32]],
    calls: list[str],
    limit_threads: Callable[[int], list[str]],
) -> None:
    """It would end the process."""
    started = limit_threads(engine.LOADING_THREADS + 1)
    with pytest.raises(PassingBuildError, match="no more threads can be started"):
        vectors(files, cached[0])
    assert set(started) == {"embedlib-check"}
    assert calls == []
    assert "embedlib-check" not in [thread.name for thread in threading.enumerate()]


def test_a_compiled_model_with_other_vectors_is_dropped(
    files: ModelFiles,
    first: NDArray[np.float32],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other_folder = tmp_path_factory.mktemp("other")
    weights = change_one_number(files)
    weights["tokens"] *= 2
    vectors(files, other_folder, weights)
    other = (entry_of(other_folder) / "model.blob").read_bytes()
    blob = entry_of(tmp_path) / "model.blob"
    padding = blob.stat().st_size - len(other)
    assert padding >= 0 or abs(padding) < 4096
    blob.write_bytes(other)
    entry = blob.with_name("entry.json")
    content = json.loads(entry.read_bytes()) | {"parts": [[0, len(other)]]}
    entry.write_text(json.dumps(content))
    assert (vectors(files, tmp_path) == first).all()
    assert "its vectors are not those" in caplog.text


def test_vectors_that_are_not_finite_do_not_agree() -> None:
    right = np.array([[1, -4]], np.float32)
    assert compiling._agree(right + np.float32(1e-4), right)
    assert not compiling._agree(right + np.float32(1e-2), right)
    assert not compiling._agree(right[:, :1], right)
    assert not compiling._agree(np.array([[1, np.nan]], np.float32), right)


def test_what_ended_two_processes_is_not_kept_a_third_time(
    files: ModelFiles,
    first: NDArray[np.float32],
    tmp_path: Path,
    calls: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(1, MAX_DEATHS + 1):
        (entry_of(tmp_path) / "trying").touch()
        calls.clear()
        assert (vectors(files, tmp_path) == first).all()
        assert calls == (COLD if number < MAX_DEATHS else ["compile", "compile"])
    calls.clear()
    vectors(files, tmp_path)
    assert calls == ["compile", "compile"]
    assert "2 processes died" in caplog.text
    assert not (entry_of(tmp_path) / "model.blob").exists()


def test_what_a_dead_process_has_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "model.blob.part").write_bytes(b"half")
    (tmp_path / "trying").touch()
    for _ in range(2):
        assert CacheEntry(tmp_path, {}).recover()
        assert [path.name for path in tmp_path.iterdir()] == ["deaths"]
        assert (tmp_path / "deaths").read_bytes() == b"x", "it died once"


def test_stages_lie_one_behind_the_other_each_at_a_page(tmp_path: Path) -> None:
    entry = CacheEntry(tmp_path, {})

    def export(stream: io.BytesIO) -> None:
        stream.write(b"abc")
        assert stream.tell() == 3
        assert stream.seek(1) == 1
        stream.write(b"x")
        assert stream.seek(0, io.SEEK_END) == 3

    assert entry.write([export, export], np.zeros((1, 2), np.float32))
    kept = entry.kept()
    assert kept is not None
    assert kept.parts == [(0, 3), (4096, 4099)]
    content = entry.blob.read_bytes()
    assert content[:3] == content[4096:] == b"axc"


def test_deaths_between_which_it_was_used_do_not_count(
    files: ModelFiles, first: NDArray[np.float32], tmp_path: Path, calls: list[str]
) -> None:
    for _ in range(MAX_DEATHS):
        vectors(files, tmp_path)
        (entry_of(tmp_path) / "trying").touch()
        vectors(files, tmp_path)
    calls.clear()
    vectors(files, tmp_path)
    assert "compile" not in calls


def test_a_process_that_was_killed_died_of_nothing(
    files: ModelFiles, first: NDArray[np.float32], tmp_path: Path, calls: list[str]
) -> None:
    mark = entry_of(tmp_path) / "trying"
    for content in ("124", "", "?", "123"):
        mark.write_text(content)
        forget_trials(tmp_path, 123)
        assert mark.exists() == (content != "123")
    calls.clear()
    vectors(files, tmp_path)
    assert "compile" not in calls


def test_one_process_at_a_time_uses_an_entry(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = compiling._try

    def try_lock(*args: Any) -> Any:
        others = os.open(entry_of(tmp_path), os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(others)
        return tried(*args)

    monkeypatch.setattr(compiling, "_try", try_lock)
    vectors(files, tmp_path)
    others = os.open(entry_of(tmp_path), os.O_RDONLY)
    fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(others)


def test_a_fork_does_not_keep_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every later load of the model would wait for the end of that process."""
    copies: list[int] = []
    open_file = os.open

    def open_twice(*arguments: Any) -> int:
        file = open_file(*arguments)
        copies.append(os.dup(file))  # like the handle of a child process
        return file

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_twice)
        with ModelCache(tmp_path, "these weights").entry({}) as entry:
            assert entry is not None
    assert copies
    others = os.open(entry_of(tmp_path), os.O_RDONLY)
    fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for file in (others, *copies):
        os.close(file)


def test_what_a_process_left_is_put_right_by_who_holds_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the mark of a process that is trying the model would be taken for a dead one's."""
    recovered: list[Path] = []

    def recover(entry: CacheEntry) -> bool:
        others = os.open(entry.path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(others)
        recovered.append(entry.path)
        return True

    monkeypatch.setattr(CacheEntry, "recover", recover)
    with ModelCache(tmp_path, "these weights").entry({}) as entry:
        assert entry is not None
        assert recovered == [entry.path]


def test_a_folder_that_is_there_and_cannot_be_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Mock(side_effect=OSError(30, "read-only"))
    monkeypatch.setattr(model_cache, "TemporaryFile", tried)
    with ModelCache(tmp_path, "these weights").entry({}) as entry:
        assert entry is None
    tried.assert_called_once_with(dir=entry_of(tmp_path))


@pytest.mark.parametrize("where", ["a file", "below a file", "read-only"])
def test_a_cache_that_cannot_be_written_is_done_without(
    files: ModelFiles, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file"
    if where == "below a file":
        folder /= "cache"
    if where == "read-only":
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        folder = tmp_path / "cache"
        folder.mkdir(mode=0o555)
    assert vectors(files, folder).shape == (2, 32)
    assert "compiled models are not cached" in caplog.text


class EndingFile:
    """A file that takes some bytes and no more."""

    def __init__(self, file: Any, why: BaseException) -> None:
        self._file, self._why = file, why

    def write(self, content: Any) -> int:
        if self._file.tell() > 1000:
            raise self._why
        return int(self._file.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def end_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Return a function that sets what ends the writing of a compiled model."""
    sink = model_cache._Sink

    def end(why: BaseException) -> None:
        monkeypatch.setattr(
            model_cache,
            "_Sink",
            lambda file, at: sink(EndingFile(file, why), at),  # type: ignore
        )

    return end


def test_a_full_disk_costs_the_cache_and_nothing_else(
    files: ModelFiles,
    cached: tuple[Path, NDArray[np.float32]],
    tmp_path: Path,
    end_files: Callable[[BaseException], None],
    calls: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, first = cached
    end_files(OSError(28, "No space left on device"))
    calls.clear()
    assert (vectors(files, tmp_path / "full") == first).all()
    assert calls == ["compile", "compile"], "what was compiled is used"
    assert "No space left on device; name another folder with engine_cache_dir" in caplog.text
    assert list(entry_of(tmp_path / "full").iterdir()) == []


def test_ctrl_c_while_a_compiled_model_is_written_ends_the_load(
    files: ModelFiles, tmp_path: Path, end_files: Callable[[BaseException], None]
) -> None:
    end_files(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        vectors(files, tmp_path)
    assert [path.name for path in entry_of(tmp_path).iterdir()] == ["model.blob.part"]


def test_a_disk_that_takes_no_change_any_more_costs_the_cache_and_nothing_else(
    first: NDArray[np.float32],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As one does that has shown errors."""
    entry = CacheEntry(entry_of(tmp_path), {})
    cut(entry.path / "entry.json")
    refuse = Mock(side_effect=OSError(30, "Read-only file system"))
    for name in ("unlink", "replace"):
        monkeypatch.setattr(Path, name, refuse)
    assert entry.kept() is None
    assert "it is damaged" in caplog.text
    assert not entry.write([], first)
    assert "it cannot be written: [Errno 30] Read-only file system" in caplog.text


def test_what_nobody_uses_is_removed(
    files: ModelFiles, first: NDArray[np.float32], tmp_path: Path
) -> None:
    used = entry_of(tmp_path)
    before = (used / "entry.json").stat().st_mtime
    for name in ("unused", "held"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry.json").write_text("{}")
        long_ago = before - UNUSED_SECONDS - 9
        os.utime(tmp_path / name / "entry.json", (long_ago, long_ago))
    (tmp_path / "never written").mkdir()
    os.utime(tmp_path / "never written", (long_ago, long_ago))
    holder = os.open(tmp_path / "held", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    os.utime(used / "entry.json", (before - UNUSED_SECONDS + 99,) * 2)
    vectors(files, tmp_path)
    assert (used / "entry.json").stat().st_mtime >= before, "a use renews it"
    vectors(files, tmp_path, key="new")
    os.close(holder)
    left = {path.name for path in tmp_path.iterdir()}
    assert used.name in left
    assert {"unused", "held", "never written"} & left == {"held"}


@pytest.mark.parametrize(
    ("size", "limit", "expected"), [(8, 512, [32, 8]), (8, 9, [9, 2]), (1 << 15, 512, [8, 2])]
)
def test_a_trial_is_short_for_a_large_model(size: int, limit: int, expected: list[int]) -> None:
    spec = fake_spec(limit)
    encoder = replace(spec.encoder, hidden_size=size, head_dim=size, num_layers=2)
    spec = replace(spec, encoder=replace(encoder, windows=(None, None)))
    batch = trial_batch(spec)
    assert batch.seq_lens.tolist() == expected
    assert batch.token_ids.max() < spec.encoder.vocab_size
