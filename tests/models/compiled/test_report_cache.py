from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.precision import choose_precision
from embedlib.errors import EngineBuildError
from embedlib.models.compiled import fidelity_report, report_cache
from embedlib.models.compiled.cache import Compiled
from embedlib.models.compiled.engine_folder import model_fingerprint
from embedlib.models.compiled.fidelity_report import (
    FidelityReport,
    read_reports,
    write_report,
)
from embedlib.models.compiled.report_cache import (
    cached_report,
    give_up,
    has_given_up,
    measured_versions,
    model_place,
    remove_old_searches,
    report_place,
    search_place,
    stored_reports,
    waited_place,
)
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.pack_file import REPORTS_PLACE
from embedlib.models.spec import Head, PairTemplate
from tests.fidelity_reports import make_report

HERE = "a CPU"
COMPUTING = replace(
    KIND,
    precisions=("bf16", "float32"),
    computed_precisions=frozenset({"bf16", "float32"}),
    searched_precisions=(),
)
"""An engine that computes bf16 from the model's own files."""


@pytest.fixture
def files(tiny_folder: Callable[[str], Path], tmp_path: Path) -> ModelFiles:
    return read_model_files(shutil.copytree(tiny_folder("bert"), tmp_path / "model"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(engine_cache_dir=tmp_path / "cache")


def report_of(files: ModelFiles, cosine: float = 1.0) -> FidelityReport:
    return make_report(
        fingerprint=model_fingerprint(files),
        hardware=HERE,
        precision="bf16",
        mean=cosine,
        p1=cosine,
        min=cosine,
    )


def store(files: ModelFiles, config: Config, cosine: float = 1.0) -> None:
    report = report_of(files, cosine)
    write_report(report_place(files, report, config), report)


def found(files: ModelFiles, config: Config, hardware: str = HERE) -> list[str]:
    versions = measured_versions(files, ["bf16", "f16"], KIND.name, hardware, config)
    return [version.precision for version in versions]


def scoring(files: ModelFiles) -> ModelFiles:
    """Return the same files as those of a reranker."""
    template = PairTemplate(prefix="", body="", suffix="")
    head = Head(labels=("",), activation="sigmoid", template=template)
    return replace(files, spec=replace(files.spec, head=head))


def test_a_report_with_kept_layers_is_none_of_the_model_s_own_files(
    files: ModelFiles, config: Config
) -> None:
    """One of an engine directory in a pack may have the same place; its vectors are others."""
    report = replace(report_of(files), excluded=("layers.0.q",))
    write_report(report_place(files, report, config), report)
    assert found(files, config) == []


def test_a_report_is_found_by_model_engine_and_hardware(
    files: ModelFiles, config: Config, tmp_path: Path
) -> None:
    assert found(files, config) == []
    store(files, config)
    assert found(files, config) == ["bf16"]
    assert found(files, config, "another CPU") == []
    assert found(scoring(files), config) == []
    assert measured_versions(files, ["bf16"], "cuda", HERE, config) == []
    copy = read_model_files(shutil.copytree(files.folder, tmp_path / "copy"))
    (copy.folder / "a folder").mkdir()
    assert found(copy, config) == ["bf16"], "the content counts, not the place"
    assert len(stored_reports(copy, config)) == 1
    (weights,) = copy.folder.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert found(copy, config) == [], "other weights of the same size"
    assert stored_reports(copy, config) == {}


def test_a_model_without_reports_is_not_hashed(
    files: ModelFiles, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("reading all weights of a large model takes a minute")

    with monkeypatch.context() as patch:
        patch.setattr(report_cache, "model_fingerprint", refuse)
        assert found(files, config) == []
        assert stored_reports(files, config) == {}
        version = Compiled(folder=None, precision="int8", excluded=(), report=None)
        assert cached_report(files, version, KIND.name, HERE, config) is None
    store(files, config)
    monkeypatch.setattr(report_cache, "model_fingerprint", refuse)
    assert measured_versions(files, [], KIND.name, HERE, config) == [], "of no precision"


def test_a_report_of_an_engine_directory_in_a_pack_is_in_the_cache_or_in_the_pack(
    files: ModelFiles, config: Config, tmp_path: Path
) -> None:
    report = replace(report_of(files), precision="int8")
    write_report(report_place(files, report, config), report)
    packed = shutil.copytree(model_place(files, config), files.folder / REPORTS_PLACE)
    empty = replace(config, engine_cache_dir=tmp_path / "empty")
    version = Compiled(folder=None, precision="int8", excluded=(), report=None)
    assert cached_report(files, version, KIND.name, HERE, empty) == report
    shutil.rmtree(packed)
    assert cached_report(files, version, KIND.name, HERE, config) == report
    assert cached_report(files, version, KIND.name, HERE, empty) is None


def test_a_report_is_written_whole_or_not_at_all(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(self: Path, text: str, **_: str) -> int:
        self.write_bytes(text[: len(text) // 2].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    report = report_of(files)
    write_report(tmp_path, report)
    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(EngineBuildError, match=r"cannot write .*: No space left on device"):
        write_report(tmp_path, replace(report, mean=0.5))
    assert read_reports(tmp_path) == [report]
    assert len(list(tmp_path.glob("*fidelity*"))) == 1


def test_no_other_process_finds_a_name_for_its_report_meanwhile(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would find the same one, and the second report would take the place of the first."""

    def is_locked() -> bool:
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(folder)
        return False

    def find(*given: Any) -> str:
        found.append(is_locked())
        return new_name(*given)

    def replace_file(path: Path, other: Path) -> Path:
        found.append(is_locked())
        return rename(path, other)

    found, new_name, rename = list[bool](), fidelity_report._new_name, Path.replace
    monkeypatch.setattr(fidelity_report, "_new_name", find)
    monkeypatch.setattr(Path, "replace", replace_file)
    write_report(tmp_path, report_of(files))
    assert found == [True, True]
    assert not is_locked()


def test_auto_takes_what_is_computed_from_the_models_own_files(
    files: ModelFiles, config: Config
) -> None:
    def chosen(precision: str = "auto") -> ChosenPrecision:
        asked = replace(config, precision=precision)  # type: ignore[arg-type]
        return choose_precision(COMPUTING, HERE, files, asked)

    assert chosen() == ChosenPrecision(name="float32")
    assert chosen("bf16") == ChosenPrecision(name="bf16")
    store(files, config)
    faithful = ChosenPrecision(name="bf16", faithful_to="float32")
    assert chosen() == chosen("bf16") == faithful
    store(files, config, cosine=0.99)
    assert chosen() == ChosenPrecision(name="float32")
    assert chosen("bf16").faithful_to is None


@pytest.mark.parametrize(
    ("older", "newer", "stays"),
    [
        ({}, {"max_seq_tokens": 32}, True),
        ({}, {"max_seq_tokens": 32, "p1": 0.9}, False),
        ({"p1": 0.9}, {"max_seq_tokens": 32}, False),
        ({"num_texts": 99}, {"max_seq_tokens": 32}, False),
        ({"num_texts": 100}, {"max_seq_tokens": 32}, True),
        *(
            ({name: value}, {"max_seq_tokens": 32}, False)
            for name, value in (
                *(("reference", "bf16"), ("precision", "int8"), ("fingerprint", "another model")),
                ("excluded", ("layers.0.q",)),
            )
        ),
        ({}, {"p1": 0.9985}, False),
    ],
)
def test_a_report_of_shorter_texts_that_passes_leaves_one_that_passes(
    older: dict[str, Any], newer: dict[str, Any], stays: bool, files: ModelFiles, tmp_path: Path
) -> None:
    first, second = (replace(report_of(files), **changes) for changes in (older, newer))
    write_report(tmp_path, first)
    write_report(tmp_path, second)
    assert read_reports(tmp_path) == [first if stays else second]


def test_a_place_that_cannot_be_made(files: ModelFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = Config(engine_cache_dir=tmp_path / "file" / "cache")
    with pytest.raises(EngineBuildError, match=r"cannot make .*: Not a directory"):
        report_place(files, report_of(files), config)
    with pytest.raises(EngineBuildError, match=r"cannot write .*: Not a directory"):
        give_up(files, "int8", KIND.name, HERE, config, "out of reach")


def test_what_was_given_up(
    files: ModelFiles, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_given_up(files, "int8", KIND.name, HERE, config)
    give_up(files, "int8", KIND.name, HERE, config, "out of reach")
    assert has_given_up(files, "int8", KIND.name, HERE, config)
    assert not has_given_up(files, "int8", KIND.name, "another CPU", config)
    shorter = replace(files, spec=replace(files.spec, max_seq_tokens=7))
    assert not has_given_up(shorter, "int8", KIND.name, HERE, config)
    assert not has_given_up(scoring(files), "int8", KIND.name, HERE, config)
    for name in ("__version__", "FORMAT_VERSION"):
        with monkeypatch.context() as patch:
            patch.setattr(report_cache, name, "9.9")
            assert not has_given_up(files, "int8", KIND.name, HERE, config)


def test_who_has_waited_in_vain(
    files: ModelFiles, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = [(KIND.name, HERE), (KIND.name, "another CPU"), ("cuda", HERE)]
    places = {waited_place(files, *use, config) for use in uses}
    monkeypatch.setattr(report_cache, "__version__", "9.9")
    assert len(places | {waited_place(files, *use, config) for use in uses}) == 6


def test_old_searches_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "search-int8-1"
    old, new, other = (tmp_path / name for name in ("search-int8-2", "search-int8-3", "int8-4"))
    for folder in (place, old, new, other):
        folder.mkdir()
        (folder / "a.npz").touch()
        if folder != new:
            os.utime(folder, (0, 0))
    remove_old_searches(place)
    assert sorted(tmp_path.iterdir()) == [other, place, new]


def test_what_was_given_up_of_another_fine_tune(
    files: ModelFiles, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(files.folder, tmp_path / "other")
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0?")
    other = read_model_files(copied)
    assert model_place(other, config) == model_place(files, config)
    facts = ("int8", KIND.name, HERE, config)
    with monkeypatch.context() as patch:
        patch.setattr(report_cache, "weights_digest", None)  # no weights are hashed
        assert not has_given_up(files, *facts)
    give_up(files, *facts, "out of reach")
    assert not has_given_up(other, *facts)
    assert search_place(other, *facts) != search_place(files, *facts)
    give_up(other, *facts, "out of reach, too")
    assert has_given_up(files, *facts)
    assert has_given_up(other, *facts)


@pytest.mark.usefixtures("takes_int8")
@pytest.mark.parametrize("name", ["fidelity", "profiles"])
def test_a_folder_of_the_cache_that_another_user_alone_may_enter_costs_no_load(
    name: str, files: ModelFiles, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = config.engine_cache_path / name
    stat = Path.stat

    def refuse(self: Path, **options: Any) -> os.stat_result:
        if closed in self.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return stat(self, **options)

    closed.mkdir(parents=True)
    monkeypatch.setattr(Path, "stat", refuse)
    with Embedder(files.folder, config=replace(config, engine="openvino")) as embedder:
        assert embedder.precision == "float32"
    assert not has_given_up(files, "int8", KIND.name, HERE, config)
    assert stored_reports(files, config) == {}
