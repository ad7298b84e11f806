"""A destination that was loaded in another precision, or with another option, than is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from embedlib import Embedder
from embedlib.cli import main
from embedlib.config import Config
from embedlib.engines.precision import ChosenPrecision
from embedlib.errors import SinkError
from embedlib.indexing.pipeline import index
from embedlib.indexing.rows import Document
from embedlib.indexing.searches.searching import search
from embedlib.indexing.sinks.checks import WAYS
from embedlib.indexing.stored_model import open_embedder
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.models.compiled.fidelity_report import write_report
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.session.loading import model_and_settings_fingerprint
from embedlib.testing import FakeSink, FakeStore
from tests.fidelity_reports import make_report

DOCUMENTS = [Document(id="a", text="copy a folder"), Document(id="b", text="measure time")]
Open = Callable[..., Embedder]


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("bert")


@pytest.fixture
def caches(new_cache: Path) -> Path:
    return new_cache


@pytest.fixture
def open_model(folder: Path, caches: Path) -> Open:
    def make(**options: Any) -> Embedder:
        return Embedder(
            folder,
            engine="openvino",
            threads=1,
            engine_cache_dir=caches,
            local_files_only=True,
            **options,
        )

    return make


def compile_int8(folder: Path, caches: Path, cosine: float = 1.0) -> None:
    """Do what `embedlib compile --precision int8 --fidelity` does; the report has this cosine."""
    config = Config(engine_cache_dir=caches)
    files = read_model_files(folder)
    compiled = compile_model(files, "int8", (), config)
    fingerprint = model_fingerprint(files, file_hashes(config))
    report = make_report(fingerprint=fingerprint, mean=cosine, p1=cosine, min=cosine)
    write_report(compiled, report)


def load(store: FakeStore, embedder: Embedder, **options: Any) -> int:
    return index(DOCUMENTS, FakeSink(store), embedder=embedder, **options).num_embedded


def refusals(store: FakeStore, embedder: Embedder) -> list[str]:
    """What a search, a load and a dry run say."""
    with pytest.raises(SinkError) as searched:
        search("x", FakeSink(store), embedder=embedder)
    with pytest.raises(SinkError) as loaded:
        load(store, embedder)
    with pytest.raises(SinkError) as tried:
        load(store, embedder, dry_run=True)
    return [str(error.value) for error in (searched, loaded, tried)]


@pytest.mark.usefixtures("takes_int8")
def test_a_destination_takes_what_passed_the_gate(
    folder: Path, caches: Path, open_model: Open
) -> None:
    store = FakeStore()
    with open_model() as embedder:
        assert load(store, embedder) == 2
        made_in = embedder.fingerprint
    compile_int8(folder, caches)
    with open_model() as embedder:
        assert (embedder.precision, embedder.fingerprint) == ("int8", made_in)
        assert load(store, embedder) == 0
        assert load(store, embedder, dry_run=True) == 0
        assert len(search("measure time", FakeSink(store), embedder=embedder)) == 2
    with open_model(precision="int8") as embedder:  # by its name it is the same int8
        assert load(store, embedder) == 0
    with open_model(precision="float32") as embedder:  # a CPU on which int8 is not faster
        assert load(store, embedder) == 0


def test_below_the_gate_a_precision_is_alone(folder: Path, caches: Path, open_model: Open) -> None:
    store = FakeStore()
    with open_model() as embedder:
        assert load(store, embedder) == 2
    compile_int8(folder, caches, cosine=0.99)
    told = "fake: was made in float32, this is int8; pass precision='float32' (--precision float32)"
    with open_model(precision="int8") as embedder:
        assert refusals(store, embedder) == [told, f"{told}, {WAYS}", f"{told}, {WAYS}"]
        assert load(store, embedder, recreate=True) == 2
    with open_model(precision="float32") as embedder:
        searched, *_ = refusals(store, embedder)
        assert searched == (
            "fake: was made in int8, this is float32; pass precision='int8' (--precision int8)"
        )


def test_rows_stored_under_the_own_name_of_a_precision(
    folder: Path, caches: Path, open_model: Open
) -> None:
    """Until precisions shared a fingerprint, int8 had one of its own whatever its report said."""
    store = FakeStore()
    compile_int8(folder, caches, cosine=0.99)
    with open_model(precision="int8") as embedder:
        assert load(store, embedder) == 2
        own = embedder.fingerprint
    compile_int8(folder, caches)
    for precision in ("int8", "float32"):
        with open_model(precision=precision) as embedder:
            assert embedder.fingerprint != own
            assert own in embedder.fingerprints
            assert load(store, embedder) == 0, "rows that did not change are not embedded again"
            assert len(search("measure time", FakeSink(store), embedder=embedder)) == 2
            assert store.target is not None
            assert store.target.fingerprint == own
    with open_model(precision="float32", max_seq_tokens=16) as embedder:  # another option too
        assert "with other files or another option" in refusals(store, embedder)[0]
    with open_model(precision="float32") as embedder:
        assert load(store, embedder, recreate=True) == 2
        assert store.target.fingerprint == embedder.fingerprint


@pytest.mark.usefixtures("takes_int8")
def test_the_commands_take_the_precision_of_the_destination(
    folder: Path, caches: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("copy a folder")
    to, source = f"jsonl:{tmp_path / 'out.jsonl'}", str(tmp_path / "a.txt")
    options = ("--engine", "openvino", "--threads", "1", "--engine-cache-dir", str(caches))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--to", to, *options])

    assert run("index", source, "-m", str(folder), "--precision", "int8").exit_code == 0
    told = f"{to} was made in int8, which is used instead of float32"
    for arguments in (
        *(("search", "copy"), ("index", source), ("index", source, "--dry-run")),
        ("index", source, "-m", str(folder)),
    ):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        assert done.stderr.splitlines() == [told]
        assert "unchanged            1" in done.stdout or arguments[0] == "search"
    compile_int8(folder, caches)  # now it is known to be faithful
    for precision in ("auto", "float32"):
        done = run("index", source, "--precision", precision)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        assert "unchanged            1" in done.stdout
    assert run("search", "copy").stderr == ""


def test_a_precision_that_this_engine_lacks(folder: Path, caches: Path, open_model: Open) -> None:
    store = FakeStore()
    with open_model() as embedder:
        load(store, embedder)
        fp8 = ChosenPrecision(name="fp8")
        settings = {"precision": "fp8", **embedder._calls.settings(), "max_seq_length": 24}
        opened = OpenedModel.find(folder, embedder.config)
        files = read_model_files(folder)
        made = model_and_settings_fingerprint(opened, files, fp8, settings, FileHashes())
        assert store.target is not None
        store.target = replace(store.target, fingerprint=made)
        assert refusals(store, embedder)[0].startswith("fake: was made in fp8, this is float32, ")
        with pytest.raises(SinkError, match=r"was made in fp8, which is not available here: .*fp8"):
            open_embedder(
                str(folder), embedder.config, FakeSink(store).inspect(), "fake:", lambda _: None
            )


def test_another_number_of_dimensions_is_told_first(folder: Path, open_model: Open) -> None:
    store = FakeStore()
    with open_model() as embedder:
        load(store, embedder)
        dim = embedder.get_embedding_dimension()
    with (
        open_model(truncate_dim=8) as embedder,
        pytest.raises(SinkError) as searched,
    ):
        search("x", FakeSink(store), embedder=embedder)
    assert str(searched.value) == (
        f"fake: was made by {str(folder)!r} with {dim} dimensions, this is {str(folder)!r} with 8; "
        "search with the same model and truncate_dim (--truncate-dim)"
    )


def test_another_option_is_to_be_found_among_those_listed(folder: Path, open_model: Open) -> None:
    store = FakeStore()
    with open_model() as embedder:
        load(store, embedder)
    with open_model(max_seq_tokens=16, prompts={"query": "one\ntwo"}) as embedder:
        searched, loaded, tried = refusals(store, embedder)
    assert searched == (
        f"fake: was made by {str(folder)!r} too, but with other files or another option than here: "
        "max_seq_tokens=16, truncate_dim=None, max_active_dims=None, on_truncate='warn', "
        "precision='float32', revision=None, default_prompt_name=None, examples=None, "
        "prompts={'query': 'one\\ntwo'}; search with the same model and options"
    )
    assert loaded == tried
    assert f"; load with the same model and options, {WAYS}" in loaded
    with open_model(precision="float32") as embedder:
        assert load(store, embedder) == 0
