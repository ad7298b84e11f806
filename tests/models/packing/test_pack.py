"""A model in one file: the model of its folder, mapped in place; what is damaged is refused."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedlib import Embedder, Reranker, fidelity
from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.precision import known_versions
from embedlib.engines.select import plan_engine
from embedlib.errors import (
    ConfigError,
    EmbedlibError,
    EngineBuildError,
    ModelNotFoundError,
    ModelUnsupportedError,
    ModelWeightsError,
)
from embedlib.models.compiled.cache import int8_weights
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import model_fingerprint
from embedlib.models.compiled.fidelity_report import read_reports, write_report
from embedlib.models.compiled.report_cache import measured_versions, report_place, stored_reports
from embedlib.models.opening import OpenedModel
from embedlib.models.packing import verify, write
from embedlib.models.packing.verify import verify_pack
from embedlib.models.packing.write import find_content, pack_model
from embedlib.models.reading.files import is_scoring_model, read_model_files
from embedlib.models.reading.pack_file import (
    ALIGNMENT,
    INDEX_NAME,
    LOCAL_HEADER,
    Entry,
    is_pack,
    open_pack,
)
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.token_heads import has_token_head
from embedlib.session import preparing
from embedlib.testing.models.table import LATE_VARIANTS
from embedlib.testing.models.write import write_tiny_model
from embedlib.version import __version__
from tests.fidelity_reports import make_report
from tests.tiny_models.sparse import write_router, write_sparse_model, write_token_weights
from tests.tiny_models.static import write_model2vec, write_static_model

Folder = Callable[[str], Path]
PutOnHub = Callable[[str, Path], dict[str, Any]]
MODELS: dict[str, Callable[[Path], Path]] = {
    "settings": partial(write_tiny_model, variant="bert"),
    "three files of weights": partial(write_tiny_model, variant="mistral"),
    "a head": partial(write_tiny_model, variant="llama-reward"),
    "a head of words": partial(write_tiny_model, variant="qwen3-answers"),
    "a table": write_static_model,
    "model2vec": write_model2vec,
    "SPLADE": write_sparse_model,
    "a table of weights": write_token_weights,
    "a router": write_router,
    "late interaction": partial(write_tiny_model, variant=next(iter(LATE_VARIANTS))),
}
TEXTS = ["a text", "another, longer text", "x"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(engine_cache_dir=tmp_path / "cache")


def packed(model: str | Path, out: Path, config: Config) -> Path:
    opened = OpenedModel.find(model, config)
    files = opened.read_files(with_head=opened.has_head)
    pack_model(files, find_content(files, opened.manifest, config), out)
    return out


def rewritten(pack: Path, out: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """A pack with other entries, as a stranger would write it."""
    with zipfile.ZipFile(pack) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_is_read_from_its_pack_as_from_its_folder(
    kind: str, tmp_path: Path, config: Config
) -> None:
    folder = MODELS[kind](tmp_path / "model")
    pack = packed(folder, tmp_path / "model.embedlib", config)
    with_head = is_scoring_model(folder)
    files = OpenedModel.find(folder, config).read_files(with_head=with_head)
    found = OpenedModel.find(pack, config).read_files(with_head=with_head)
    assert found.spec == files.spec
    assert fingerprint(found, None, {}) == fingerprint(files, None, {})
    weights, expected = load_weights(found), load_weights(files)
    assert list(weights) == list(expected)
    for role in expected:
        np.testing.assert_array_equal(weights[role], expected[role])
    assert load_tokenizer(found).to_str() == load_tokenizer(files).to_str()


def test_an_entry_that_ends_behind_its_file_has_no_hash(tmp_path: Path) -> None:
    content = tmp_path / "pack"
    content.write_bytes(b"abc")
    digest = hashlib.sha256(b"bc").hexdigest()
    with content.open("rb") as stream:
        assert verify._sha256(stream, Entry(1, 2, "")) == digest
        assert verify._sha256(stream, Entry(1, 3, "")) == ""


def test_an_embedder_of_a_pack_has_the_vectors_and_the_fingerprint_of_the_folder(
    tiny_folder: Folder, tmp_path: Path, engine_cache: Path
) -> None:
    config = Config(engine_cache_dir=engine_cache)
    source = tiny_folder("bert")
    pack = packed(source, tmp_path / "model.embedlib", config)
    with Embedder(pack, config=config) as embedder, Embedder(source, config=config) as folder:
        np.testing.assert_array_equal(embedder.encode(TEXTS), folder.encode(TEXTS))
        assert embedder.fingerprint == folder.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == [pack.name]  # nothing was unpacked


def test_name_and_commit_on_the_hub_stay_known(
    tiny_folder: Folder, put_on_hub: PutOnHub, tmp_path: Path
) -> None:
    name = "BAAI/bge-small-en-v1.5"  # its prompts are in no file
    config = Config(**put_on_hub(name, tiny_folder("bert")))
    pack = packed(name, tmp_path / "model.embedlib", config)
    opened, packs = OpenedModel.find(name, config), OpenedModel.find(pack, Config())
    assert (packs.hub_name, packs.revision) == (name, opened.revision)
    assert packs.known == opened.known
    assert packs.known.prompts != {}
    # The process that measures it opens the same file, and not what the hub has by this name.
    plan = plan_engine(packs.read_source(), Config(engine="openvino"))
    task = preparing._task(packs, plan, ("int8",), is_background=True)
    assert (task.model, task.options["revision"]) == (str(pack), None)


def test_a_reranker_is_packed_by_its_hub_name_with_its_template(
    tiny_folder: Folder, put_on_hub: PutOnHub, tmp_path: Path, engine_cache: Path
) -> None:
    name = "Qwen/Qwen3-Reranker-0.6B"  # its files are those of any language model
    config = Config(**put_on_hub(name, tiny_folder("qwen3-answers")))
    pack = packed(name, tmp_path / "model.embedlib", config)
    with pytest.raises(ModelUnsupportedError, match=f"{name} is a reranker; use Reranker"):
        Embedder(pack)
    with Reranker(pack, engine_cache_dir=engine_cache) as reranker:
        assert len(reranker.rank("q", ["a", "b"])) == 2


@pytest.mark.parametrize("large_bytes", [1 << 30, 100], ids=["sizes of 32 bits", "of 64 bits"])
def test_entries_are_aligned_and_any_unzip_makes_the_folder_again(
    large_bytes: int,
    tiny_folder: Folder,
    tmp_path: Path,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "LARGE_BYTES", large_bytes)
    folder = tiny_folder("qwen3")
    pack = packed(folder, tmp_path / "model.embedlib", config)
    content = pack.read_bytes()
    for entry in open_pack(pack).entries.values():
        assert entry.start % ALIGNMENT == 0
        header = content.rindex(b"PK\3\4", 0, entry.start)
        name_bytes, extra_bytes = struct.unpack_from("<HH", content, header + 26)
        extra, kinds = content[header + 30 + name_bytes :][:extra_bytes], []
        while extra:  # fields, each with a number and a size
            kind, size = struct.unpack_from("<HH", extra)
            assert len(extra) >= 4 + size
            kinds.append(kind)
            extra = extra[4 + size :]
        assert kinds == [0xD935, *([1] if entry.num_bytes > large_bytes else [])]
    with zipfile.ZipFile(pack) as archive:
        assert archive.testzip() is None
        # An unzip gives the files these rights; the date is that of no clock.
        about = {(each.date_time, each.external_attr >> 16) for each in archive.infolist()}
        assert about == {((1980, 1, 1, 0, 0, 0), 0o644)}
        assert not any(each.extra for each in archive.infolist())  # no padding at the end
        archive.extractall(tmp_path / "out")
    assert fingerprint(read_model_files(tmp_path / "out"), None, {}) == fingerprint(
        read_model_files(folder), None, {}
    )


def test_the_same_model_makes_the_same_bytes(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    first, second = (
        packed(tiny_folder("bert"), tmp_path / name, config)
        for name in ("a.embedlib", "b.embedlib")
    )
    assert first.read_bytes() == second.read_bytes()
    again = packed(first, second, config)  # over the one that is there
    assert again.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("change", ["the same size", "longer", "gone"])
def test_a_model_that_changes_while_it_is_packed_is_refused(
    change: str, tmp_path: Path, config: Config
) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    pack = packed(folder, tmp_path / "model.embedlib", config)
    before = pack.read_bytes()
    files = read_model_files(folder)
    settings = folder / "config.json"
    content = find_content(files, None, config)

    def save_anew(num_done: int, num_bytes: int) -> None:
        if num_done == num_bytes and change == "gone":
            settings.unlink()
        elif num_done == num_bytes:  # a training that writes its next checkpoint
            settings.write_bytes(settings.read_bytes() + b" " * (change == "longer"))

    told = "No such file" if change == "gone" else f"^{folder} was changed while it was packed; try"
    with pytest.raises(EngineBuildError, match=told):
        pack_model(files, content, pack, save_anew)
    assert pack.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == sorted([folder, pack])


@pytest.mark.usefixtures("takes_int8")
def test_what_was_compiled_and_passed_goes_along_and_is_taken_in_place(
    tiny_folder: Folder, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(tiny_folder("bert"))
    here = Machine().cpu_hardware()
    made = compile_model(files, "int8", (), config)
    compile_model(files, "int8", ("layers.0.q",), config)  # was not measured, and stays behind
    report = make_report(fingerprint=model_fingerprint(files))
    write_report(made, report)
    write_report(made, replace(report, hardware="a CPU"))
    bad = compile_model(files, "int8", ("layers.0.k",), config)
    write_report(bad, replace(report, excluded=("layers.0.k",), p1=0.5))
    assert [version.folder for version in find_content(files, None, config).compiled] == [made]
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    other = Config(engine_cache_dir=tmp_path / "other", engine="openvino", threads=1)
    with Embedder(pack, config=other) as embedder:
        assert embedder._model.precision == "int8"
        assert np.isfinite(embedder.encode(TEXTS)).all()
    assert not (tmp_path / "other" / "compiled").exists()
    of_pack = OpenedModel.find(pack, other).read_source()
    [version] = known_versions(KIND, here, of_pack, other)
    place = pack / "embedlib" / "compiled" / made.name
    assert version.folder == place
    stored, expected = int8_weights(place), int8_weights(made)
    assert [*stored] == [*expected]
    np.testing.assert_array_equal(stored["layers.1.up.weight"], expected["layers.1.up.weight"])
    [version] = known_versions(KIND, "a CPU", of_pack, other)
    assert (version.folder, version.report.hardware) == (place, "a CPU")
    assert known_versions(KIND, "another CPU", of_pack, other) == []  # compiled there, in its cache
    assert known_versions(replace(KIND, reads_packs=False), here, of_pack, other) == []
    again = packed(pack, tmp_path / "again.embedlib", config)
    assert again.read_bytes() == pack.read_bytes()
    # Measured again, it has its report in the cache: nothing is written into a pack.
    measuring = sys.modules["embedlib.fidelity.verify"]
    monkeypatch.setattr(measuring, "reference_vectors", lambda *_: None)
    monkeypatch.setattr(measuring, "compare_planned", lambda *_: SimpleNamespace(report=report))
    fidelity.verify(pack, config=replace(other, precision="int8"))
    assert len([*(tmp_path / "other" / "fidelity").rglob("fidelity.json")]) == 1

    def measured(hardware: str, **changes: Any) -> list[float]:
        newer = replace(report, hardware=hardware, **changes)
        write_report(report_place(of_pack, newer, other), newer)
        found = known_versions(KIND, hardware, of_pack, other)
        assert all(version.folder == place for version in found)
        return [version.report.p1 for version in found if version.report is not None]

    assert measured(here, p1=0.5) == [0.5]  # once, in the place of both reports of the pack
    assert measured("a CPU", max_seq_tokens=8)[-1] == report.p1
    assert measured("another CPU", p1=0.5) == [0.5]
    assert measured("a third CPU", p1=0.5, excluded=("layers.0.q",)) == []


def test_reports_of_precisions_without_a_directory_go_along(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    files = read_model_files(tiny_folder("bert"))
    report = make_report(fingerprint=model_fingerprint(files), precision="bf16", hardware="a CPU")
    write_report(report_place(files, report, config), report)
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    other = Config(engine_cache_dir=tmp_path / "other")
    of_pack = OpenedModel.find(pack, other).read_source()
    [version] = measured_versions(of_pack, ["bf16"], "openvino", "a CPU", other)
    assert version.report == report
    assert measured_versions(of_pack, ["bf16"], "openvino", "another", other) == []
    assert stored_reports(of_pack, other).keys() == stored_reports(files, config).keys()


def test_a_pack_is_read_once_and_a_changed_one_again(
    tiny_folder: Folder, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    reads: list[Path] = []
    read_all = verify._read_all

    def spy(pack: Any) -> str:
        reads.append(pack.path)
        return read_all(pack)

    monkeypatch.setattr(verify, "_read_all", spy)
    monkeypatch.setattr("embedlib.models.weights.file_hashes.SETTLED_NS", -(1 << 62))
    for _ in range(2):
        OpenedModel.find(pack, config)
    assert len(reads) == 1
    os.utime(pack, ns=(0, 0))
    OpenedModel.find(pack, config)
    assert len(reads) == 2


def test_every_changed_byte_of_a_file_is_found_and_named(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    content = pack.read_bytes()
    for name, entry in open_pack(pack).entries.items():
        place = entry.start + entry.num_bytes // 2
        changed = bytearray(content)
        changed[place] ^= 1
        pack.write_bytes(changed)
        with pytest.raises(ModelWeightsError, match=f"is damaged \\({name}: its bytes are not"):
            OpenedModel.find(pack, config)


def test_a_pack_that_was_cut_off_is_refused(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    content = pack.read_bytes()
    for num_bytes in (0, 20, 80, len(content) // 2, len(content) - 1):
        pack.write_bytes(content[:num_bytes])
        with pytest.raises(EmbedlibError, match=r"is damaged|is a file and no pack") as caught:
            OpenedModel.find(pack, config)
        assert "\n" not in str(caught.value)


def test_a_pack_with_drawn_damage_is_the_same_or_refused_in_one_line(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    files, content = read_model_files(tiny_folder("bert")), pack.read_bytes()
    expected, drawn = fingerprint(files, None, {}), random.Random(7)
    lines: list[str] = []
    for number in range(100):
        changed = bytearray(content)
        # Half of them in the index and the directory of the archive, at the end.
        place = drawn.randrange(len(content) - 6000 if number % 2 else 0, len(content))
        changed[place : place + drawn.randrange(1, 9)] = drawn.randbytes(drawn.randrange(9))
        pack.write_bytes(changed)
        try:
            found = OpenedModel.find(pack, config).read_files(with_head=False)
            assert (found.spec, fingerprint(found, None, {})) == (files.spec, expected)
        except EmbedlibError as error:
            lines.append(str(error))
    assert len(lines) > 30
    assert not any("\n" in line for line in lines)


def test_a_pack_that_changes_or_fails_while_it_is_opened_is_refused(
    tiny_folder: Folder, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    hashes = FileHashes()
    found = verify_pack(pack, hashes)
    # What was found of a pack is not the hash of the file.
    assert hashes.sha256(pack) == hashlib.sha256(pack.read_bytes()).hexdigest()
    before = replace(found, index_digest="0" * 64)
    monkeypatch.setattr(verify, "open_pack", lambda path: before)
    with pytest.raises(ModelWeightsError, match="has changed while it was opened"):
        verify_pack(pack, hashes)
    monkeypatch.setattr(verify, "_sha256", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(
        ModelWeightsError, match=r"model\.embedlib: cannot be read: Input/output er"
    ):
        verify_pack(pack, FileHashes())


def test_a_pack_that_is_written_anew_in_its_place_is_read_anew(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    written = packed(tiny_folder("bert"), tmp_path / "written", config)
    pack = rewritten(written, tmp_path / "model.embedlib", lambda all_: None)
    assert open_pack(pack).embedlib_version == __version__
    index = zipfile.ZipFile(pack).read(INDEX_NAME)
    told = __version__.encode()
    other = index.replace(b'"embedlib": "' + told, b'"embedlib": "' + b"9" * len(told))
    made = rewritten(written, tmp_path / "other", lambda all_: all_.update({INDEX_NAME: other}))
    assert made.stat().st_size == pack.stat().st_size
    pack.write_bytes(made.read_bytes())
    os.utime(pack, ns=(0, 0))  # the clock of the file system may stand still meanwhile
    assert open_pack(pack).embedlib_version == "9" * len(told)


@pytest.mark.parametrize("entry", ["modules.json", INDEX_NAME])
@pytest.mark.parametrize(
    ("place", "value"),
    [(8, 0x01), (8, 0x20), (8, 0x40), (10, 8), (20, 0xFFFF)],
    ids=["encrypted", "a patch", "strongly encrypted", "deflated", "of two sizes"],
)
def test_an_entry_that_is_not_stored_as_it_is(
    entry: str, place: int, value: int, tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    content = bytearray(pack.read_bytes())
    start = content.rindex(entry.encode()) - 46  # its header in the directory of the archive
    assert content[start : start + 4] == b"PK\x01\x02"
    content[start + place : start + place + 2] = value.to_bytes(2, "little")
    pack.write_bytes(content)
    with pytest.raises(ModelWeightsError, match=f"'{entry}' is compressed or encrypted"):
        open_pack(pack)


def test_an_entry_that_is_there_twice_or_has_lost_its_header(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    content = bytearray(pack.read_bytes())
    place = content.index(b"modules.json") - LOCAL_HEADER.size
    content[place] ^= 1
    pack.write_bytes(content)
    with pytest.raises(
        ModelWeightsError, match=r"'modules\.json' does not have the place and size"
    ):
        open_pack(pack)
    content[place] ^= 1
    pack.write_bytes(content)
    with zipfile.ZipFile(pack, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("modules.json", archive.read("modules.json"))
    with pytest.raises(ModelWeightsError, match="it holds a name twice, unlike its index"):
        open_pack(pack)
    place = content.rindex(b"modules.json") - 4  # in the directory: where its header is
    content[place : place + 4] = (len(content) - 5).to_bytes(4, "little")
    pack.write_bytes(content)
    with pytest.raises(ModelWeightsError, match=r"is damaged \(.*unpack requires"):
        open_pack(pack)


def test_a_pack_that_ends_too_early_or_is_gone(
    tiny_folder: Folder, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    content = bytearray(pack.read_bytes())
    place = content.rindex(b"PK\x01\x02") + 20  # of the index: its sizes
    content[place : place + 8] = (1 << 20).to_bytes(4, "little") * 2
    pack.write_bytes(content)
    with pytest.raises(ModelWeightsError, match="was cut off or changed"):
        open_pack(pack)
    monkeypatch.setattr("embedlib.models.reading.pack_file.MAX_INDEX_BYTES", 1000)
    with pytest.raises(ModelWeightsError, match=r"pack\.json is too large"):
        open_pack(pack)
    pack.unlink()
    with pytest.raises(ModelWeightsError, match="cannot be read: No such file"):
        open_pack(pack)


def test_what_cannot_be_read_is_no_pack(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    head = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config).read_bytes()[:100]
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(pipe, head)
    assert not is_pack(tmp_path / "pipe")
    assert os.read(pipe, 200) == head
    os.close(pipe)
    (tmp_path / "file").write_bytes(b"XX" + head[2:])
    assert not is_pack(tmp_path / "file")
    memory = Path("/proc/self/mem")  # Linux gives nobody its first bytes
    assert not memory.exists() or not is_pack(memory)


def test_an_index_that_does_not_fit_is_refused(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    index = json.loads(zipfile.ZipFile(pack).read(INDEX_NAME))

    def refusal(change: Callable[[dict[str, Any]], object]) -> str:
        values = json.loads(json.dumps(index))
        change(values)
        data = json.dumps(values).encode()
        other = rewritten(
            pack, tmp_path / "x.embedlib", lambda all_: all_.update({INDEX_NAME: data})
        )
        with pytest.raises(EmbedlibError) as caught:
            OpenedModel.find(other, config)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "format_version = 2; this version of embedlib reads only 1" in refusal(
        lambda values: values.update(format_version=2)
    )
    assert "is missing" in refusal(
        lambda values: values["files"].update({"../a\nb": {"num_bytes": 1, "sha256": "0" * 64}})
    )
    assert "config.json' does not have the place and size" in refusal(
        lambda values: values["files"]["config.json"].update(num_bytes=1)
    )
    assert "KeyError" in refusal(lambda values: values.pop("files"))
    assert "TypeError" in refusal(lambda values: values["files"].update({"config.json": 3}))
    assert "AttributeError" in refusal(lambda values: values.update(files=3))
    assert "hub_name, hub_revision" in refusal(lambda values: values.update(hub_name=[1]))
    told = "it holds ['config.json'], unlike its index"
    assert told in refusal(lambda values: values["files"].pop("config.json"))


def test_names_that_lead_out_of_a_pack_lead_nowhere(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    (tmp_path / "outside.json").write_text("[]")
    name, content = "../outside.json", b"[]"

    def add(entries: dict[str, bytes]) -> None:
        index = json.loads(entries[INDEX_NAME])
        facts = {"num_bytes": 2, "sha256": hashlib.sha256(content).hexdigest()}
        index["files"][name] = facts
        entries |= {name: content, INDEX_NAME: json.dumps(index).encode()}

    other = rewritten(pack, tmp_path / "x.embedlib", add)
    before = sorted(tmp_path.rglob("*"))
    OpenedModel.find(other, config).read_files(with_head=False)
    assert [path for path in sorted(tmp_path.rglob("*")) if "cache" not in path.parts] == [
        path for path in before if "cache" not in path.parts
    ]


def test_compressed_entries_are_refused(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    other = tmp_path / "x.embedlib"
    with zipfile.ZipFile(pack) as archive, zipfile.ZipFile(other, "w") as target:
        for name in archive.namelist():
            kind = zipfile.ZIP_DEFLATED if name == "config.json" else zipfile.ZIP_STORED
            target.writestr(zipfile.ZipInfo(name), archive.read(name), kind)
    with pytest.raises(ModelWeightsError, match=r"config.json' is compressed or encrypted"):
        OpenedModel.find(other, config)


@pytest.mark.parametrize("place", [6, 8])
def test_an_archive_that_zipfile_does_not_know_is_refused(
    place: int, tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    """By the version that it needs, or as a patch: two bytes of its directory."""
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    content = bytearray(pack.read_bytes())
    content[content.rindex(b"PK\x01\x02") + place] |= 0xE0 if place == 6 else 0x20
    pack.write_bytes(content)
    with pytest.raises(ModelWeightsError, match=r"is damaged \(.+\); copy the pack again"):
        OpenedModel.find(pack, config)


def test_other_files_are_no_packs(tmp_path: Path, config: Config) -> None:
    other = tmp_path / "x.embedlib"
    other.write_bytes(b"PK\x03\x04")
    assert not is_pack(other)
    with pytest.raises(ModelNotFoundError, match="is a file and no pack"):
        OpenedModel.find(other, config)
    with pytest.raises(ModelNotFoundError, match=r"no pack 'nowhere\.embedlib'"):
        OpenedModel.find("nowhere.embedlib", config)


def test_a_pack_is_on_the_disk_before_it_appears_and_its_name_is_then(
    tiny_folder: Folder, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, synced = tmp_path / "out" / "x.embedlib", list[tuple[str, bool]]()
    monkeypatch.setattr(write, "sync", lambda path: synced.append((path.name, pack.exists())))
    packed(tiny_folder("bert"), pack, config)
    assert synced == [(".x.embedlib.embedlib-part", False), ("out", True)]


def test_what_is_no_file_of_a_model_is_not_packed(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    expected = open_pack(packed(folder, tmp_path / "a.embedlib", config)).entries
    (folder / "LICENSES").mkdir()
    for name in ("fidelity.json", "fidelity-1.json", "1_Pooling/embedlib.json", "model.onnx"):
        (folder / name).write_text("{}")
    assert open_pack(packed(folder, tmp_path / "b.embedlib", config)).entries == expected


def test_odd_names_of_files_stay_as_they_are(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    for name in ("a\nb.json", "\u200b.json", "a\\b.txt"):
        (folder / name).write_text("{}")
    pack = packed(folder, tmp_path / "a.embedlib", config)
    assert {"a\nb.json", "\u200b.json", "a\\b.txt"} < open_pack(pack).entries.keys()
    assert fingerprint(read_model_files(pack), None, {}) == fingerprint(
        read_model_files(folder), None, {}
    )
    (folder / "\udcff.json").write_text("{}")
    with pytest.raises(EngineBuildError, match=r"the name '\\udcff\.json' is no Unicode.*rename"):
        packed(folder, tmp_path / "b.embedlib", config)


def test_what_does_not_load_is_not_packed(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    save_file(
        {**load_file(folder / "model.safetensors"), "more": np.ones(1, np.float32)},
        folder / "model.safetensors",
    )
    with pytest.raises(ModelWeightsError, match=r"tensor more \[1\] is left over"):
        packed(folder, tmp_path / "x.embedlib", config)


def test_only_a_pack_is_replaced(tiny_folder: Folder, tmp_path: Path, config: Config) -> None:
    out = tmp_path / "notes.embedlib"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="is there already and is no pack; give a new file"):
        packed(tiny_folder("bert"), out, config)
    assert out.read_text() == "mine"
    closed = tmp_path / "closed"
    closed.write_text("")
    with pytest.raises(EngineBuildError, match="cannot write"):
        packed(tiny_folder("bert"), closed / "x.embedlib", config)


def test_an_engine_directory_is_packed_and_compiling_a_pack_makes_the_same(
    tiny_folder: Folder, tmp_path: Path, config: Config
) -> None:
    folder = tiny_folder("bert")
    files = read_model_files(folder)
    made = compile_model(files, "int8", (), config, out=tmp_path / "int8")
    pack = packed(folder, tmp_path / "model.embedlib", config)
    of_pack = OpenedModel.find(pack, config).read_source()
    again = compile_model(of_pack, "int8", (), config, out=tmp_path / "again")
    names = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert [(again / name).read_bytes() for name in names] == [
        (made / name).read_bytes() for name in names
    ]
    report = make_report(fingerprint=model_fingerprint(files))
    write_report(made, report)
    compiled = packed(made, tmp_path / "int8.embedlib", config)
    assert read_reports(compiled) == [report]
    opened, of_folder = OpenedModel.find(compiled, config), OpenedModel.find(made, config)
    opened.check_bytes()
    assert opened.manifest == of_folder.manifest
    assert opened.read_files(with_head=False).spec == of_folder.read_files(with_head=False).spec
    with (made / "model.int8.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"?")
    with pytest.raises(EngineBuildError, match=r"int8\.safetensors is damaged"):
        packed(made, tmp_path / "damaged.embedlib", config)


def test_without_a_cache_a_pack_is_read_at_every_start(tiny_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = Config(engine_cache_dir=tmp_path / "file" / "cache")  # cannot be made
    pack = packed(tiny_folder("bert"), tmp_path / "model.embedlib", config)
    assert OpenedModel.find(pack, config).folder == pack


def test_a_pack_has_the_heads_of_its_model(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "m3", "xlm-roberta")
    head = {"weight": np.ones((1, 32), np.float32), "bias": np.zeros(1, np.float32)}
    save_file(head, folder / "sparse_linear.safetensors")
    pack = OpenedModel.find(packed(folder, tmp_path / "m3.embedlib", config), config)
    files = pack.read_files(with_head=False)
    assert has_token_head(files, "sparse")
    assert not has_token_head(files, "multi_vector")
