"""The engine directory: found again, verified, replaced, and never incomplete."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from embedlib.config import Config
from embedlib.errors import (
    OTHER_CACHE,
    ConfigError,
    EngineBuildError,
    EngineUnavailableError,
    ModelWeightsError,
)
from embedlib.models.compiled import compile as compile_module
from embedlib.models.compiled import engine_folder
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import (
    MANIFEST_NAME,
    compiled_folder,
    model_fingerprint,
    read_manifest,
    verify_engine_folder,
)
from embedlib.models.compiled.jobs import run_jobs
from embedlib.models.families.table import FAMILIES
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.tensor_roles import encoder_shapes, tensor_name
from embedlib.packages.installing import install_line
from embedlib.testing.models.write import write_tiny_model
from tests.models.compiled.dying import compile_until
from tests.waiting import WAIT_SECONDS

NUM_KILLS = 10
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", "qwen3")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(engine_cache_dir=tmp_path / "cache")


def compile_fp8(folder: Path, config: Config, out: Path | None = None) -> Path:
    return compile_model(read_model_files(folder), "fp8", (), config, out=out)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def neighbours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


def cannot_be_opened(folder: Path) -> str:
    with pytest.raises(EngineBuildError) as caught:
        verify_engine_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


# --- the cache ------------------------------------------------------------------------------------


def test_it_is_made_once_and_found_by_content(
    folder: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(folder)
    assert compiled_folder(files, "fp8", (), config) is None
    compiled = compile_fp8(folder, config)
    assert compiled_folder(files, "fp8", [], config) == compiled
    assert compiled.is_relative_to(config.engine_cache_path)
    assert neighbours(compiled) == [compiled.name]

    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    assert compiled_folder(read_model_files(elsewhere), "fp8", (), config) == compiled
    monkeypatch.setattr(compile_module, "write_checkpoint", None)  # must not be called again
    assert compile_fp8(elsewhere, config) == compiled


def test_another_way_of_compiling_is_another_folder(folder: Path, config: Config) -> None:
    files = read_model_files(folder)
    ways: list[tuple[Any, tuple[str, ...]]] = [
        ("fp8", ()),
        ("bf16", ()),
        ("fp8", ("layers.0.down",)),
        ("fp8", ("layers.1.down", "layers.0.down")),
    ]
    folders = [compile_model(files, precision, names, config) for precision, names in ways]
    assert len(set(folders)) == len(ways)
    for compiled, (precision, names) in zip(folders, ways, strict=True):
        assert compiled_folder(files, precision, names, config) == compiled
        manifest = verify_engine_folder(compiled)
        assert (manifest.precision, manifest.excluded) == (precision, tuple(sorted(names)))
    assert compiled_folder(files, "fp8", ("layers.0.down", "layers.1.down"), config) == folders[3]


@pytest.mark.parametrize("file", ["config_sentence_transformers.json", WEIGHTS, "tokenizer.json"])
def test_another_model_is_another_folder(file: str, folder: Path, config: Config) -> None:
    compiled = compile_fp8(folder, config)
    path = folder / file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if file == WEIGHTS else content + b" ")
    files = read_model_files(folder)
    assert compiled_folder(files, "fp8", (), config) is None
    assert compile_fp8(folder, config) != compiled


def test_the_manifest(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "model", "mistral")  # its weights have an index
    files = read_model_files(folder)
    compiled = compile_fp8(folder, config)
    manifest = verify_engine_folder(compiled)
    assert manifest.fingerprint == model_fingerprint(files)
    assert manifest.spec["encoder"]["family"] == "mistral"
    assert manifest.spec["modules"][0]["kind"] == "Pooling"
    assert manifest.versions.keys() == {"embedlib", "numpy", "ml_dtypes"}
    for digests, root in ((manifest.inputs, folder), (manifest.outputs, compiled)):
        found = {
            name: (len(content), sha256(content).hexdigest())
            for name, content in contents(root).items()
            if name != MANIFEST_NAME
        }
        assert {name: (entry.num_bytes, entry.sha256) for name, entry in digests.items()} == found


def test_what_is_copied_of_a_compiled_model(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "model", "mistral")
    (folder / "LICENSE").write_text("free")
    (folder / "LICENSES").mkdir()
    odd = os.fsdecode(b"LICENSE \xff")  # no Unicode
    (folder / odd).touch()
    bf16 = compile_model(read_model_files(folder), "bf16", (), config)
    made = compile_model(read_model_files(bf16), "int8", (), config)
    names = verify_engine_folder(made).outputs.keys()
    assert names.isdisjoint(compile_module.WRITTEN_NAMES)
    assert {"LICENSE", odd} <= names


@pytest.mark.parametrize("precision", ["fp8", "bf16", "int8"])
def test_threads_change_nothing(
    precision: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.models.compiled.tensor_blocks.BLOCK_NUMBERS", 100)
    files = read_model_files(folder)
    one, many = (
        compile_model(files, precision, (), Config(threads=threads), out=tmp_path / str(threads))
        for threads in (1, 4)
    )
    assert contents(one) == contents(many)
    assert verify_engine_folder(many).inputs.keys() >= {WEIGHTS, "config.json"}


# --- the name on the hub --------------------------------------------------------------------------


def test_the_name_on_the_hub_is_kept(folder: Path, config: Config, tmp_path: Path) -> None:
    files = read_model_files(folder)
    named = dataclasses.replace(files, hub_name="owner/model", hub_revision="0123")
    bf16 = compile_model(named, "bf16", (), config, out=tmp_path / "bf16")
    found = OpenedModel.find(bf16, config)
    assert (found.folder, found.name, found.revision) == (bf16, "owner/model", "0123")
    nameless = compile_model(files, "bf16", (), config, out=tmp_path / "nameless")
    assert OpenedModel.find(nameless, config).name == str(nameless)
    assert OpenedModel.find(folder, config).name == str(folder)
    made = (nameless / MANIFEST_NAME).stat().st_mtime_ns
    compile_model(files, "bf16", (), config, out=nameless)
    assert (nameless / MANIFEST_NAME).stat().st_mtime_ns == made


def test_another_name_is_written_anew_but_not_in_the_cache(
    folder: Path, config: Config, tmp_path: Path
) -> None:
    files = read_model_files(folder)
    named = dataclasses.replace(files, hub_name="owner/model", hub_revision="0123")
    compile_model(files, "bf16", (), config, out=tmp_path / "out")
    compile_model(named, "bf16", (), config, out=tmp_path / "out")
    assert read_manifest(tmp_path / "out").hub_revision == "0123"
    cached = compile_model(named, "bf16", (), config)
    made = (cached / MANIFEST_NAME).stat().st_mtime_ns
    assert compile_model(files, "bf16", (), config) == cached
    assert (cached / MANIFEST_NAME).stat().st_mtime_ns == made


# --- verifying ------------------------------------------------------------------------------------


def test_damage_is_named(folder: Path, config: Config) -> None:
    compiled = compile_fp8(folder, config)
    path = compiled / WEIGHTS
    whole = path.read_bytes()

    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert f"{WEIGHTS} is damaged (SHA-256 " in cannot_be_opened(compiled)
    path.write_bytes(whole[:-1])
    expected = f"{WEIGHTS} has {len(whole) - 1} bytes, expected {len(whole)}"
    assert expected in cannot_be_opened(compiled)
    path.unlink()
    assert f"{WEIGHTS} is missing" in cannot_be_opened(compiled)
    assert compiled_folder(read_model_files(folder), "fp8", (), config) is None
    path.write_bytes(whole)
    assert verify_engine_folder(compiled)
    (compiled / "1_Pooling" / "config.json").unlink()
    assert "1_Pooling/config.json is missing" in cannot_be_opened(compiled)


def test_what_cannot_be_read_is_named(
    folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compile_fp8(folder, config)
    unreadable = Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(engine_folder, "sha256", unreadable)
    assert "cannot be read: Input/output error; compile" in cannot_be_opened(compiled)


def test_a_digest_that_is_none_is_told(folder: Path, config: Config) -> None:
    compiled = compile_fp8(folder, config)
    path = compiled / MANIFEST_NAME
    content = json.loads(path.read_text())
    content["outputs"][WEIGHTS]["sha256"] = None
    path.write_text(json.dumps(content))
    assert "expected None…); compile the model again" in cannot_be_opened(compiled)
    assert verify_engine_folder(compile_fp8(folder, config))


@pytest.mark.parametrize("lost", [WEIGHTS, "tokenizer.json", MANIFEST_NAME])
def test_compiling_again_repairs(lost: str, folder: Path, config: Config) -> None:
    compiled = compile_fp8(folder, config)
    before = contents(compiled)
    path = compiled / lost
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    assert compile_fp8(folder, config) == compiled
    assert contents(compiled) == before
    assert neighbours(compiled) == [compiled.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content | {"format_version": 1}, "format_version = 1; this version"),
        (lambda content: content | {"format_version": None}, "format_version = None"),
        (lambda content: content | {"precision": "int4"}, "is damaged (ValueError"),
        (lambda content: content | {"excluded": "layers.0.o"}, "is damaged (ValueError"),
        (lambda content: content | {"hub_name": 5, "hub_revision": "a"}, "is damaged (ValueError"),
        (lambda content: content | {"hub_name": "a/b"}, "is damaged (ValueError"),
        (lambda content: content | {"outputs": ["a"]}, "is damaged (AttributeError"),
        (lambda content: content | {"surprise": 1}, "is damaged (TypeError"),
        (lambda content: [content], "is damaged (TypeError"),
        (lambda content: {}, "is damaged (KeyError"),
    ],
)
def test_a_manifest_that_is_not_ours(
    change: Callable[[Any], Any], message: str, folder: Path, config: Config
) -> None:
    compiled = compile_fp8(folder, config)
    path = compiled / MANIFEST_NAME
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert message in cannot_be_opened(compiled)
    assert compiled_folder(read_model_files(folder), "fp8", (), config) is None


def test_what_is_no_engine_directory(folder: Path, tmp_path: Path, config: Config) -> None:
    assert "is not an engine directory, it has no embedlib.json" in cannot_be_opened(folder)
    assert "is not an engine directory" in cannot_be_opened(tmp_path / "nowhere")
    compiled = compile_fp8(folder, config)
    (compiled / MANIFEST_NAME).write_text("{")
    assert "is damaged (embedlib.json: is not valid JSON" in cannot_be_opened(compiled)


# --- out ------------------------------------------------------------------------------------------


def test_out(folder: Path, config: Config, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "inside"
    assert compile_fp8(folder, config, out) == out
    assert verify_engine_folder(out)
    assert not config.engine_cache_path.exists()
    assert neighbours(out) == ["inside"]
    manifest = out / MANIFEST_NAME
    made = manifest.stat().st_mtime_ns
    assert compile_fp8(folder, config, out) == out
    assert manifest.stat().st_mtime_ns == made  # it existed already


def test_out_takes_the_place_of_another_compiled_model(
    folder: Path, config: Config, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    compile_fp8(write_tiny_model(tmp_path / "other", "mistral"), config, out)
    (out / WEIGHTS).touch()  # not one of the files it wrote: mistral has shards
    with pytest.raises(ConfigError, match=f"did not write \\({WEIGHTS}\\)"):
        compile_fp8(folder, config, out)
    (out / WEIGHTS).unlink()
    (out / "tokenizer.json").unlink()  # damaged
    compile_fp8(folder, config, out)
    assert verify_engine_folder(out).spec["encoder"]["family"] == "qwen3"
    assert not list(out.glob("*-of-*"))


@pytest.mark.parametrize(
    "change", [{"format_version": 1}, {"format_version": 99, "news": {}}, {"precision": 7}]
)
def test_out_takes_the_place_of_one_of_another_version(
    change: dict[str, object], folder: Path, config: Config, tmp_path: Path
) -> None:
    out = compile_fp8(folder, config, tmp_path / "out")
    manifest = out / MANIFEST_NAME
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    assert "compile the model again" in cannot_be_opened(out)
    (out / "mine").touch()
    with pytest.raises(ConfigError, match=r"did not write \(mine\)"):
        compile_fp8(folder, config, out)
    (out / "mine").unlink()
    assert verify_engine_folder(compile_fp8(folder, config, out)).precision == "fp8"


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_out_whose_manifest_is_damaged_holds_what_nobody_knows(
    content: str, folder: Path, config: Config, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    for name in (MANIFEST_NAME, "file"):
        (tmp_path / "out" / name).write_text(content)
    with pytest.raises(ConfigError, match=r"did not write \(file\)"):
        compile_fp8(folder, config, tmp_path / "out")


def test_out_refuses_what_is_not_ours(folder: Path, config: Config, tmp_path: Path) -> None:
    mine = write_tiny_model(tmp_path / "mine", "qwen3")
    with pytest.raises(ConfigError, match="holds files that embedlib did not write"):
        compile_fp8(folder, config, mine)
    assert contents(mine) == contents(folder)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="is a file; give a new folder"):
        compile_fp8(folder, config, file)
    (tmp_path / "empty").mkdir()
    assert compile_fp8(folder, config, tmp_path / "empty") == tmp_path / "empty"
    assert verify_engine_folder(tmp_path / "empty")


def test_out_is_not_the_model(folder: Path, config: Config, tmp_path: Path) -> None:
    # It could be: an engine directory in bfloat16 is also a model folder.
    model = compile_model(read_model_files(folder), "bf16", (), config, out=tmp_path / "bf16")
    with pytest.raises(ConfigError, match="is the model's own folder"):
        compile_fp8(model, config, model)
    assert verify_engine_folder(model).precision == "bf16"


def test_out_through_a_link(folder: Path, config: Config, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert compile_fp8(folder, config, tmp_path / "link") == tmp_path / "real"
    assert verify_engine_folder(tmp_path / "link")


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_full_disk(folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_fp8(folder, config)
    shutil.rmtree(compiled)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("embedlib.models.compiled.fp8_file.rewrite_tensor", fail)
    with pytest.raises(EngineBuildError) as caught:
        compile_fp8(folder, config)
    message = (
        f"cannot write the engine directory {compiled}: No space left on device; {OTHER_CACHE}"
    )
    assert str(caught.value) == message
    assert list(compiled.parent.iterdir()) == []


def test_a_place_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = Config(engine_cache_dir=tmp_path / "file" / "cache")
    with pytest.raises(
        EngineBuildError, match=r"cannot write the engine directory .*Not a directory"
    ):
        compile_fp8(folder, config)
    with pytest.raises(EngineBuildError, match=r"File exists .*; name another folder with out"):
        compile_fp8(folder, config, tmp_path / "file" / "out")
    with pytest.raises(EngineBuildError, match=r"File name too long .*; name another folder with"):
        compile_fp8(folder, config, tmp_path / ("x" * 300))


def test_without_ml_dtypes(folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_fp8(folder, config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineUnavailableError, match=re.escape(install_line("compile"))):
        compile_fp8(folder, config)
    assert compiled_folder(read_model_files(folder), "fp8", (), config) == compiled


def test_wrong_weights(folder: Path, config: Config) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-5])
    with pytest.raises(ModelWeightsError, match="damaged"):
        compile_fp8(folder, config)
    assert not config.engine_cache_path.exists()


def test_progress(folder: Path, config: Config) -> None:
    seen: list[tuple[int, int]] = []
    compile_model(
        read_model_files(folder), "fp8", (), config, report=lambda *numbers: seen.append(numbers)
    )
    size = (folder / WEIGHTS).stat().st_size
    assert {total for _, total in seen} == {size}
    done = [number for number, _ in seen]
    assert done == sorted(done)
    assert 0.8 * size < done[-1] < size  # all but the header


def test_two_at_once_make_it_once(
    folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_here = threading.Barrier(2, timeout=WAIT_SECONDS)
    real_cache_folder = compile_module.cache_folder
    real_write = compile_module.write_checkpoint
    num_written = []

    def cache_folder(*arguments: Any) -> Path:
        both_here.wait()
        return real_cache_folder(*arguments)

    def write(*arguments: Any) -> Any:
        num_written.append(1)
        return real_write(*arguments)

    monkeypatch.setattr(compile_module, "cache_folder", cache_folder)
    monkeypatch.setattr(compile_module, "write_checkpoint", write)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(compile_fp8(folder, config))) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert len(num_written) == 1
    assert found[0] == found[1]
    assert verify_engine_folder(found[0])
    assert neighbours(found[0]) == [found[0].name]


def test_a_part_in_use_is_left_alone(
    folder: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_model(tmp_path / "other", "llama")
    real_write = compile_module.write_checkpoint

    def write(*arguments: Any) -> Any:
        monkeypatch.setattr(compile_module, "write_checkpoint", real_write)
        compile_fp8(other, config)  # while this one is being compiled
        return real_write(*arguments)

    monkeypatch.setattr(compile_module, "write_checkpoint", write)
    compiled = compile_fp8(folder, config)
    assert verify_engine_folder(compiled)
    assert len(neighbours(compiled)) == 2


@pytest.mark.parametrize("precision", ["fp8", "bf16", "int8"])
def test_a_model_cut_short_meanwhile(
    precision: Any, folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = folder / WEIGHTS

    fingerprint = compile_module.model_fingerprint

    def cut(jobs: Any, *others: Any) -> None:
        os.truncate(weights, weights.stat().st_size - 2)
        run_jobs(jobs, *others)

    def hashed(*arguments: Any) -> str:
        found = fingerprint(*arguments)
        monkeypatch.setattr(compile_module, "run_jobs", cut)  # the next jobs read tensors
        return found

    monkeypatch.setattr(compile_module, "model_fingerprint", hashed)
    with pytest.raises(ModelWeightsError, match=f"^{WEIGHTS}: was truncated while it was read; "):
        compile_model(read_model_files(folder), precision, (), config, out=folder.parent / "out")
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("has_name", [False, True])
@pytest.mark.parametrize("moment", ["place_lock", "_digests", "check_unchanged"])
def test_a_checkpoint_saved_meanwhile(
    moment: str, has_name: bool, folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1  # the last byte of a number
    later = folder.parent / "later.safetensors"
    later.write_bytes(content)
    files = read_model_files(folder)
    called = getattr(compile_module, moment)

    def save(*arguments: Any) -> Any:
        if later.exists():
            later.replace(folder / WEIGHTS)
        return called(*arguments)

    out = folder.parent / "out" if has_name else None
    monkeypatch.setattr(compile_module, moment, save)
    with pytest.raises(EngineBuildError, match="model was changed while it was compiled"):
        compile_model(files, "int8", (), config, out=out)
    compiled = compile_model(files, "int8", (), config, out=out)
    assert verify_engine_folder(compiled).fingerprint == model_fingerprint(files)
    assert neighbours(compiled) == neighbours(folder) if has_name else [compiled.name]


# --- killed ---------------------------------------------------------------------------------------


def big_model(folder: Path, *, vocab_size: int, intermediate_size: int) -> Path:
    """Write a bfloat16 model whose weights repeat one block of random numbers."""
    write_tiny_model(folder, "llama-bare")
    config = json.loads((folder / "config.json").read_text())
    sizes = {"vocab_size": vocab_size, "intermediate_size": intermediate_size}
    sizes |= {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 1}
    config |= sizes
    (folder / "config.json").write_text(json.dumps(config))
    encoder = read_model_files(folder).spec.encoder
    block = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32).view(np.uint32)
    half = (block >> 16).astype(np.uint16).tobytes()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for role, shape in encoder_shapes(encoder).items():
        name = "model." + tensor_name(role, FAMILIES["llama"])
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / WEIGHTS).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, len(half)):
            stream.write(half[: end - start])
    return folder


def test_killed_at_any_instant(tmp_path: Path) -> None:
    folder = big_model(tmp_path / "model", vocab_size=1024, intermediate_size=1024)
    cache = tmp_path / "cache"
    config = Config(engine_cache_dir=cache)
    files = read_model_files(folder)
    num_events = compile_until(folder, tmp_path / "whole")
    whole = compiled_folder(files, "fp8", (), Config(engine_cache_dir=tmp_path / "whole"))
    assert whole is not None
    dice = random.Random(0)
    num_parts = 0
    for _ in range(NUM_KILLS):
        compile_until(folder, cache, dice.randrange(num_events))
        found = compiled_folder(files, "fp8", (), config)
        if found is not None:
            verify_engine_folder(found)
            shutil.rmtree(found)
        num_parts += len(list(cache.rglob("*.embedlib-part")))
        visible = [path for path in (cache / "compiled").iterdir() if path.name[0] != "."]
        assert visible == []
    assert num_parts > NUM_KILLS // 2, "the kills came too late to mean anything"
    compiled = compile_fp8(folder, config)
    assert contents(compiled) == contents(whole)
    assert neighbours(compiled) == [compiled.name]


DIES = """
import os, pathlib, signal, sys
from pathlib import Path
from embedlib.config import Config
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files

calls = 0
rename = pathlib.Path.rename

def dying(path, target):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

pathlib.Path.rename = dying
files = read_model_files(Path(sys.argv[1]))
compile_model(files, "fp8", (), Config(), out=Path(sys.argv[2]))
"""


@pytest.mark.parametrize("call", [1, 2])
def test_killed_while_the_old_one_is_replaced(
    call: int, folder: Path, config: Config, tmp_path: Path
) -> None:
    out = tmp_path / "place" / "out"
    compile_fp8(write_tiny_model(tmp_path / "other", "mistral"), config, out)
    arguments = [str(folder), str(out), str(call)]
    done = subprocess.run([sys.executable, "-c", DIES, *arguments], timeout=WAIT_SECONDS)
    assert done.returncode == -signal.SIGKILL
    assert len(neighbours(out)) > 1
    if call == 1:
        assert verify_engine_folder(out).spec["encoder"]["family"] == "mistral"
    else:
        assert not out.exists()
    compile_fp8(folder, config, out)
    assert verify_engine_folder(out).spec["encoder"]["family"] == "qwen3"
    assert neighbours(out) == ["out"]


CTRL_C = """
import os, runpy, signal, sys
from pathlib import Path
from embedlib.models.compiled import compile

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it
place, sent, run_jobs = Path(sys.argv[-1]).parent, [], compile.run_jobs

def run_interrupted(jobs, num_threads, report=lambda num_bytes: None):
    def tell(num_bytes):
        if not sent and list(place.rglob("*.embedlib-part/model.safetensors")):
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        report(num_bytes)
    run_jobs(jobs, num_threads, tell)

compile.run_jobs = run_interrupted
runpy.run_module("embedlib", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    folder = big_model(tmp_path / "model", vocab_size=4096, intermediate_size=4096)
    out = tmp_path / "place" / "out"
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, "compile", str(folder), "--out", str(out)],
        stderr=subprocess.PIPE,
        env={**os.environ, **cache},
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 130
    assert b"Traceback" not in done.stderr
    assert list(out.parent.iterdir()) == []


def test_a_later_model_cleans_up_too(folder: Path, config: Config) -> None:
    compiled = compile_fp8(folder, config)
    left = compiled.with_name(".fp8-0123.embedlib-part")
    left.mkdir()
    (left / WEIGHTS).write_text("half of it")
    compile_model(read_model_files(folder), "bf16", (), config)
    assert not left.exists()
    assert len(neighbours(compiled)) == 2


# --- memory ---------------------------------------------------------------------------------------

MEASURE = """
import re, sys
from pathlib import Path
from embedlib.config import Config
from embedlib.models.compiled import fp8_file
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files

def peak():
    # Not ru_maxrss: that of a new program begins with the memory of the one that started it.
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

files = read_model_files(Path(sys.argv[1]))
before = peak()
compile_model(files, "fp8", (), Config(), out=Path(sys.argv[2]))
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    folder = big_model(tmp_path / "model", vocab_size=20_000, intermediate_size=20_000)
    assert (folder / WEIGHTS).stat().st_size > 160e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert int(done.stdout) < 20e6


def test_reading_the_manifest_reads_no_weights(folder: Path, config: Config) -> None:
    # An Embedder looks for an engine directory when it loads; hashing 7 GB would take seconds.
    compiled = compile_fp8(folder, config)
    content = (compiled / WEIGHTS).read_bytes()
    (compiled / WEIGHTS).write_bytes(bytes(len(content)))
    assert read_manifest(compiled).precision == "fp8"
    assert "is damaged (SHA-256 " in cannot_be_opened(compiled)
