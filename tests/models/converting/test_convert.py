"""`embedlib convert`: what PyTorch saved, byte for byte; and pickles that mean harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.errors import ConfigError, ModelNotFoundError, ModelWeightsError
from embedlib.models.converting import convert, opcodes, torch_file
from embedlib.models.converting.convert import START, convert_folder
from embedlib.models.converting.opcodes import read_checkpoint
from embedlib.models.converting.torch_file import read_torch_file
from embedlib.models.weights.safetensors_files import list_tensors
from embedlib.testing.models.write import write_tiny_model
from tests.models.converting.pickles import (
    DICT,
    HEAD,
    as_pickles,
    checkpoint,
    number,
    numbers,
    tensor,
    text,
    write,
)

GOLDENS = Path(__file__).parent.parent.parent / "goldens" / "torch"


def test_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(b"?")
    done = convert_folder(tmp_path)
    made = (tmp_path / "model.safetensors").read_bytes()
    assert made == (GOLDENS / "model.safetensors").read_bytes()
    [written] = done.written
    assert (written.pickle, written.num_tensors) == ("pytorch_model.bin", 17)
    assert done.left_out == ("optimizer.pt",)
    assert done.confined_by in ("seccomp", "Python")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors", "optimizer.pt", "pytorch_model.bin",
    ]  # fmt: skip
    with pytest.raises(ModelNotFoundError, match="nothing to convert, safetensors for all"):
        convert_folder(tmp_path)


def test_the_older_format_is_refused_with_the_remedy() -> None:
    with pytest.raises(ModelWeightsError, match=r"legacy.bin: .* before 1\.6.*torch\.save\("):
        read_torch_file(GOLDENS / "legacy.bin", GOLDENS)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_converted_folder_loads(tmp_path: Path, num_shards: int) -> None:
    folder = write_tiny_model(tmp_path / "model", "late-pylate")
    with Embedder(folder, threads=1) as embedder:
        expected = embedder.encode_query("hello world")
    as_pickles(folder, num_shards)
    with pytest.raises(ModelWeightsError, match=f"pickle.*: embedlib convert {folder}$"):
        Embedder(folder)
    out = tmp_path / "out"
    done = convert_folder(folder, out)
    assert done.folder == out
    assert len(done.written) == num_shards + 1
    assert not list(out.rglob("*.bin*"))
    for index in out.glob("*.index.json"):
        sizes = [item.num_bytes for item in done.written if "/" not in item.weights]
        assert json.loads(index.read_text())["metadata"]["total_size"] == sum(sizes)
    with Embedder(out, threads=1) as embedder:
        np.testing.assert_array_equal(embedder.encode_query("hello world"), expected)
    with pytest.raises(ConfigError, match="is there already"):
        convert_folder(folder, out)


def test_what_convert_does_not_take_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    as_pickles(folder, 2)
    index = folder / "pytorch_model.bin.index.json"
    second = folder / "pytorch_model-2.bin"
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(ModelWeightsError, match=rf"^{second.name}: is missing.*download it"):
        convert_folder(folder)
    second.write_bytes(content)
    weights = folder / "model.safetensors.index.json"
    weights.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(ModelWeightsError, match=r"^model-1\.safetensors: is missing.*remove the i"):
        convert_folder(folder)
    weights.unlink()
    index.unlink()
    told = f"pytorch_model-1.bin is there without {index.name}; download that"
    with pytest.raises(ModelWeightsError, match=told):
        Embedder(folder)
    with pytest.raises(ModelNotFoundError, match=told):
        convert_folder(folder)
    second.unlink()
    (folder / "pytorch_model-1.bin").rename(folder / "model.pt")
    told = "model.pt is none of the files .* rename it to pytorch_model.bin"
    with pytest.raises(ModelWeightsError, match=told):
        Embedder(folder)
    with pytest.raises(ModelNotFoundError, match=told):
        convert_folder(folder)


def test_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    (tmp_path / "module").mkdir()
    monkeypatch.chdir(tmp_path / "module")
    before, beside = set(tmp_path.parent.iterdir()), set[Path]()

    def look(*_: int) -> None:
        beside.update(tmp_path.parent.iterdir())

    convert_folder(Path(".."), report=look)
    # Nothing is written around the folder, which may be read-only there.
    assert beside == before
    (tmp_path / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    assert convert_folder(Path(), Path("new/../out")).folder == tmp_path / "out"
    assert convert_folder(Path()).folder == tmp_path


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    module = tmp_path / "module"
    shutil.copytree(tmp_path, module, ignore=shutil.ignore_patterns("module"))
    (module / ".model.safetensors.embedlib-part").mkdir()
    told = f"^cannot write {module / 'model.safetensors'}: Is a directory$"
    with pytest.raises(ModelWeightsError, match=told):
        convert_folder(tmp_path)
    (tmp_path / "file").touch()
    shutil.copy(GOLDENS / "pytorch_model.bin", module)
    for out in (tmp_path / "file" / "out", tmp_path / ("x" * 300)):
        with pytest.raises(ModelWeightsError, match=f"^cannot write {out}: "):
            convert_folder(module, out)


def test_links_in_the_place_of_what_is_written_are_not_followed(tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    write_tiny_model(folder, "bert")
    as_pickles(folder, 2)
    other.write_text("mine")
    (folder / "module").mkdir()
    shutil.copy(GOLDENS / "pytorch_model.bin", folder / "module")
    (folder / ".model.safetensors.embedlib-lock").symlink_to(tmp_path / "made")
    for name in (
        "module/.model.safetensors.embedlib-part",
        ".model-00001-of-00002.safetensors.embedlib-part",
        ".model.safetensors.index.json.embedlib-part",
    ):
        (folder / name).symlink_to(other)
    told = f"^cannot write {folder}: Too many levels of symbolic links .*embedlib-lock"
    with pytest.raises(ModelWeightsError, match=told):
        convert_folder(folder)
    (folder / ".model.safetensors.embedlib-lock").unlink()
    assert len(convert_folder(folder).written) == 3
    assert other.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [folder, other]
    assert not [path for path in folder.rglob("[!.]*") if path.is_symlink()]


KILLED = """
import os, signal, sys
from pathlib import Path
from embedlib.models.converting.convert import convert_folder
convert_folder(Path(sys.argv[1]), report=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_process_that_was_killed(tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    # It ends when both processes have closed standard error.
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], stderr=subprocess.PIPE)
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, b"")
    assert not list(tmp_path.glob(".*part"))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "import json; folder = json.loads(sys.stdin.read())['target']; "
            "open(folder + '/.model.safetensors.embedlib-part', 'w'); "
            "os.kill(os.getpid(), signal.SIGKILL)",
            "was killed by signal 9 after 0 of 1 files; free memory and run it again",
        ),
        (
            "os.close(0); os._exit(3)",
            "ended with status 3 after 0 of 1 files; check the files and run it again",
        ),
    ],
)
@pytest.mark.parametrize("has_out", [False, True])
def test_the_other_process_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, told: str, has_out: bool
) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    monkeypatch.setattr(convert, "START", f"import os, signal, sys; {how}")
    with pytest.raises(ModelWeightsError, match=f"^{tmp_path}: the process that converts {told}$"):
        convert_folder(tmp_path, tmp_path / "out" if has_out else None)
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def test_the_other_process_has_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    fails = "worker.read_torch_file = lambda *_: [0] * (1 << 60); worker.main()"
    start = "import sys; sys.path[:] = sys.argv[1:]; from embedlib.models.converting import worker"
    monkeypatch.setattr(convert, "START", f"{start}; {fails}")
    told = rf"^{tmp_path}: cannot be converted \(MemoryError\); free memory and run it again$"
    with pytest.raises(ModelWeightsError, match=told):
        convert_folder(tmp_path)


TELLS = """
import json, os, sys
sys.stdin.read()
files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
locks = [os.path.basename(file) for file in files if file.endswith("-lock")]
print(json.dumps({"error": f"{locks}, leads a session: {os.getsid(0) == os.getpid()}"}))
"""


def test_the_other_process_holds_the_lock_and_has_a_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    monkeypatch.setattr(convert, "START", TELLS)
    told = r"^\['\.model\.safetensors\.embedlib-lock'\], leads a session: True$"
    with pytest.raises(ModelWeightsError, match=told):
        convert_folder(tmp_path)


def test_folders_three_deep_and_none_behind_a_link(tmp_path: Path) -> None:
    for place in ("model/1/2/3", "model/1/2/3/4", "model/.hidden", "elsewhere"):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path / place)
    (tmp_path / "model" / "link").symlink_to(tmp_path / "elsewhere")
    done = convert_folder(tmp_path / "model")
    assert [item.weights for item in done.written] == ["1/2/3/model.safetensors"]
    written = list(tmp_path.rglob("*.safetensors"))
    assert written == [tmp_path / "model/1/2/3/model.safetensors"]


@pytest.mark.parametrize("is_task", [False, True])
def test_whoever_gave_the_task_is_gone(tmp_path: Path, is_task: bool) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    pairs = [["pytorch_model.bin", "model.safetensors"]]
    given = json.dumps({"folder": str(tmp_path), "target": str(tmp_path), "pairs": pairs})
    reads, writes = os.pipe()
    os.close(reads)
    process = subprocess.run(
        [sys.executable, "-c", START, *sys.path],
        input=given.encode() if is_task else b"",
        stdout=writes,
        stderr=subprocess.PIPE,
    )
    os.close(writes)
    assert (process.returncode, process.stderr) == (1 if is_task else 0, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def test_parameters_are_their_tensors(tmp_path: Path) -> None:
    parameter = b"ctorch._utils\n_rebuild_parameter\n(" + tensor((2,)) + b"\x88" + DICT + b"tR"
    data = np.float32([1, 2])
    path = write(tmp_path / "a.bin", checkpoint({"a": parameter}), {"0": data.tobytes()})
    np.testing.assert_array_equal(read_torch_file(path, tmp_path)["a"].values, data)
    for given in (b"N", b"(" + tensor((2,)) + b"t", b"(" + text("a") + b"\x88" + DICT + b"t"):
        program = checkpoint({"a": b"ctorch._utils\n_rebuild_parameter\n" + given + b"R"})
        path = write(tmp_path / "b.bin", program, {"0": data.tobytes()})
        with pytest.raises(ModelWeightsError, match=r"a call of torch\._utils\._rebuild_parameter"):
            read_torch_file(path, tmp_path)


class Harm:
    """Pickles as a call of any function."""

    def __init__(self, function: Any, *given: Any) -> None:
        self._call = (function, given)

    def __reduce__(self) -> Any:
        return self._call


def test_calls_are_refused_by_name(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for function, given, name in (
        (os.system, (f"touch {marker}",), r"posix\.system"),
        (eval, (f"open({str(marker)!r}, 'w')",), r"__builtin__\.eval"),
        (socket.create_connection, (("localhost", 1),), r"socket\.create_connection"),
        (getattr, ({}, "get"), r"__builtin__\.getattr"),
    ):
        program = pickle.dumps({"weight": Harm(function, *given)}, protocol=2)
        path = write(tmp_path / "pytorch_model.bin", program)
        with pytest.raises(ModelWeightsError, match=f"{name}.*nothing of it was run"):
            read_torch_file(path, tmp_path)
        with pytest.raises(ModelWeightsError, match=name):
            convert_folder(tmp_path)
    assert not marker.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


DEEP = HEAD + b"]" + b"\x85" * 200_000 + b"."
LAUGHS = HEAD + b")q\x00" + b"".join(
    b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    for level in range(200)
) + b"."  # fmt: skip


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (DEEP, "no dict of tensors, but a tuple"),
        (LAUGHS, "no dict of tensors, but a tuple"),
        (HEAD + b"(" * (opcodes.MAX_STACK + 1), "values at a time"),
        (HEAD + b"X" + struct.pack("<I", 1 << 31), "damaged from byte 0 on;"),
        (HEAD + text("a")[:-1] + b"\xff.", "damaged from byte 0 on;"),
        (HEAD + b"X" + struct.pack("<I", 3) + b"\xed\xa0\x80.", "damaged from byte 2 on;"),
        (HEAD + b"\xff", "damaged from byte 0 on;"),
        (HEAD + b"c\\y\nfoo\n.", "damaged from byte 0 on;"),
        (HEAD + b"\x8b" + struct.pack("<i", 1 << 30), "damaged from byte 0 on;"),
        (HEAD + b"\x8b" + struct.pack("<i", 1) + b"\1.", "the opcode LONG4, at byte 2,"),
        (HEAD + b"ios\nsystem\n", "the opcode INST"),
        (HEAD + b"cos\nsy\x1bs tem\n.", r"the pickle has os\.sy\\x1bs tem, at byte 2,"),
        (HEAD + b"\x82\x01.", "the opcode EXT1"),
        (HEAD + b"j" + struct.pack("<I", 7) + b".", "damaged from byte 2 on"),
        (b"\x80\x04.", "protocol 4"),
        (HEAD, "damaged"),
        (b"", "damaged from byte 0 on"),
        (HEAD + b"R", "damaged"),
        (HEAD + b"t", "damaged"),
        (HEAD + b"(R", "damaged"),
        (HEAD + b"}" + text("a") + b"(s.", "damaged"),
        (HEAD + b"q\0.", "damaged"),
        (HEAD + b"}" + text("a") + b"Ns.", "'a' is None; only a dict of tensors"),
        (
            HEAD + b"}" + text("state_dict") + b"}s.",
            r"'state_dict' is a dict; .*torch\.load\(FILE, weights_only=True\)\['state_dict'\]",
        ),
        (HEAD + b"}K\x01Ns.", "a key that is a int"),
        (HEAD + b"}}b.", "an empty dict"),
        (HEAD + b")}b.", "attributes of a tuple"),
        (HEAD + b"ctorch\nFloatStorage\n)R.", "a call of torch.FloatStorage"),
        # Of a tensor that is negated, or conjugated, when it is read.
        (checkpoint({"a": tensor((2,))[:-2] + b"}tR"}), "a tensor of 7 arguments"),
        (HEAD + DICT[:-2] + b"K\x01\x85R.", "a call of collections.OrderedDict with a tuple"),
        (HEAD + text("x") + b"Q.", "a reference that is no storage"),
        (checkpoint({"a": tensor((2,)).replace(b"FloatStorage", b"Float8Storage")}), "Float8"),
    ],
)
def test_programs_that_are_no_checkpoint(program: bytes, message: str) -> None:
    with pytest.raises(ModelWeightsError, match=message):
        read_checkpoint(program, "x.bin")


STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu")
CALL = b"ctorch._utils\n_rebuild_tensor_v2\n"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (CALL + b"NR", r"a call of torch\._utils\._rebuild_tensor_v2 with None"),
        (b"ctorch\nFloatStorage\n(" + tensor((1,)) + b"NNtR", "a call of torch.FloatStorage"),
        (CALL + b"(" + text("0") + b"K\0))\x89NtR", "a tensor of a str"),
        (CALL + STORAGE.join([b"(", number(1) + b"tQK\0})\x89NtR"]), "no list of whole numbers"),
        (CALL + STORAGE.join([b"(", number(1) + b"tQK\0)}\x89NtR"]), "no list of whole numbers"),
        (tensor((2,), offset=-1), "no list of whole numbers"),
        (STORAGE + b"tQ", "a reference that is no storage"),
        (STORAGE.replace(b"storage", b"module!") + b"K\1tQ", "a reference that is no storage"),
        (STORAGE.replace(text("0"), b"K\0") + b"K\1tQ", "a reference that is no storage"),
        (STORAGE.replace(b"ctorch\nFloatStorage\n", text("F32")) + b"K\1tQ", "is no storage"),
        (STORAGE + number(-1) + b"tQ", "a reference that is no storage"),
        (b"]" + text("a") + b"Ns", "items of a list"),
        (b"}(" + text("a") + b"NK\1u", "items of a dict"),
    ],
)
def test_what_is_described_is_what_torch_writes(value: bytes, message: str) -> None:
    with pytest.raises(ModelWeightsError, match=message):
        read_checkpoint(HEAD + value + b".", "x.bin")


@pytest.mark.parametrize(
    ("program", "storage", "message"),
    [
        (tensor((2, 2)), 8, "its storage has 8 bytes, not 4 numbers of 4"),
        (tensor((2, 2), num_items=3), 12, r"shape \[2, 2\], beyond its storage"),
        (tensor((2, 2), offset=1), 16, "beyond its storage"),
        (tensor((1 << 30, 4), (0, 1), num_items=4), 16, "beyond its storage"),
        (tensor((2, 2), (1 << 30, 1)), 16, "beyond its storage"),
        (tensor((1,) * 9), 4, "9 axes and 9 strides"),
        (tensor((0, 1 << 60), (1, 1), num_items=1), 4, "beyond its storage"),
        (tensor((0, 1 << 30, 1 << 30), (1, 1, 1), num_items=1), 4, "beyond its storage"),
        (tensor((-2, 2), num_items=4), 16, "no list of whole numbers"),
        (tensor((2,)).replace(numbers((2,)), b"(G" + struct.pack(">d", 2) + b"t"), 8, "no list of"),
        (tensor((1,)).replace(numbers((1,)), b"(\x88t"), 4, "no list of whole numbers"),
        (tensor((2,), (1, 1)), 8, "1 axes and 2 strides"),
        (tensor((2,), key="../../etc/passwd"), 8, "has no storage"),
    ],
)
def test_sizes_are_those_of_the_file(
    tmp_path: Path, program: bytes, storage: int, message: str
) -> None:
    path = write(tmp_path / "x.bin", checkpoint({"a\nb": program}), {"0": bytes(storage)})
    with pytest.raises(ModelWeightsError, match=message) as caught:
        read_torch_file(path, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_stride_of_an_axis_with_one_place_says_nothing(tmp_path: Path) -> None:
    program = checkpoint({"a": tensor((1, 2), (1 << 62, 1))})
    path = write(tmp_path / "x.bin", program, {"0": bytes(8)})
    assert read_torch_file(path, tmp_path)["a"].values.tolist() == [[0, 0]]


def test_tensors_that_are_views_of_one_storage(tmp_path: Path) -> None:
    items = {
        "whole": tensor((2, 2)),
        "turned": tensor((2, 2), (1, 2)),
        "end": tensor((2,), offset=2, num_items=4),
    }
    path = write(tmp_path / "x.bin", checkpoint(items), {"0": np.float32([1, 2, 3, 4]).tobytes()})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/byteorder", b"little")
    found = {name: each.values.tolist() for name, each in read_torch_file(path, tmp_path).items()}
    assert found == {"whole": [[1, 2], [3, 4]], "turned": [[1, 3], [2, 4]], "end": [3, 4]}


def test_archives_that_torch_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(ModelWeightsError, match=r"'archive/data\.pkl' is compressed"):
        read_torch_file(path, tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/other", b"")
    with pytest.raises(ModelWeightsError, match=r"no data\.pkl"):
        read_torch_file(path, tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", checkpoint({}))
        archive.writestr("other/data.pkl", checkpoint({}))
    with pytest.raises(ModelWeightsError, match=r"has 'data\.pkl' twice"):
        read_torch_file(path, tmp_path)
    for order in (b"big", b"unknown", b"little" + b" " * 100):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", checkpoint({}))
            archive.writestr("archive/byteorder", order)
        with pytest.raises(ModelWeightsError, match="not little-endian"):
            read_torch_file(path, tmp_path)
    path.write_bytes(b"\x80\x04 plain pickle")
    with pytest.raises(ModelWeightsError, match=r"no archive of torch\.save"):
        read_torch_file(path, tmp_path)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", checkpoint({"a": tensor((2,))}))
        archive.writestr("archive/data/0", bytes(8))
    place = content.getvalue().find(b"PK\x03\x04", 10)
    path.write_bytes(content.getvalue()[:place] + b"XX" + content.getvalue()[place + 2 :])
    with pytest.raises(ModelWeightsError, match="its storage is damaged"):
        read_torch_file(path, tmp_path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("encrypted", lambda entry: entry[:8] + b"\x01" + entry[9:]),
        ("version", lambda entry: entry[:6] + b"\xff" + entry[7:]),
        ("size", lambda entry: entry[:20] + b"\xff\xff\xff\x01" * 2 + entry[28:]),
    ],
)
def test_a_directory_of_the_archive_that_lies(
    name: str, change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = write(tmp_path / "x.bin", checkpoint({"a": tensor((2,))}), {"0": bytes(8)})
    content = path.read_bytes()
    place = content.index(b"PK\x01\x02")  # of data.pkl
    path.write_bytes(content[:place] + change(content[place:]))
    with pytest.raises(ModelWeightsError, match=r"no archive of torch\.save \(.+\); download"):
        read_torch_file(path, tmp_path)


@pytest.mark.parametrize(("place", "lie"), [(10, b"\x08\0"), (20, bytes(4)), (24, bytes(4))])
def test_an_entry_whose_directory_says_that_it_is_compressed(
    place: int, lie: bytes, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.bin", checkpoint({"a": tensor((2,))}), {"0": bytes(8)})
    content = path.read_bytes()
    place += content.rindex(b"PK\x01\x02")  # of the storage: its method, or one of its sizes
    path.write_bytes(content[:place] + lie + content[place + len(lie) :])
    with pytest.raises(ModelWeightsError, match="'archive/data/0' is compressed"):
        read_torch_file(path, tmp_path)


def test_a_storage_that_begins_behind_the_end_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", checkpoint({"a": tensor((2,))}), {"0": bytes(8)})
    content = path.read_bytes()
    place = content.rindex(b"PK\x01\x02") + 42  # of the storage, whose place is the last number
    path.write_bytes(content[:place] + struct.pack("<I", 1 << 20) + content[place + 4 :])
    with pytest.raises(ModelWeightsError, match="a: its storage begins behind the end of the file"):
        read_torch_file(path, tmp_path)


def test_a_storage_without_a_sum_that_ends_behind_the_end_of_the_file(tmp_path: Path) -> None:
    program = checkpoint({"a": tensor((1 << 20,))})
    path = write(tmp_path / "x.bin", program, {"0": bytes(8)})
    content = path.read_bytes()
    place = content.rindex(b"PK\x01\x02") + 16  # of the storage: its sum and its sizes
    lie = struct.pack("<III", 0, 4 << 20, 4 << 20)
    path.write_bytes(content[:place] + lie + content[place + len(lie) :])
    with pytest.raises(ModelWeightsError, match="a: its storage is damaged; download the file"):
        read_torch_file(path, tmp_path)


def test_a_program_too_large_for_the_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.bin", checkpoint({"a": tensor((2,))}), {"0": bytes(8)})
    monkeypatch.setattr(torch_file, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(ModelWeightsError, match=r"data\.pkl has \d+ bytes, more than 100"):
        read_torch_file(path, tmp_path)


def test_an_archive_has_so_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.bin", checkpoint({"a": tensor((2,))}), {"0": bytes(8)})
    monkeypatch.setattr(torch_file, "MAX_ENTRIES", 2)
    assert read_torch_file(path, tmp_path).keys() == {"a"}
    monkeypatch.setattr(torch_file, "MAX_ENTRIES", 1)
    with pytest.raises(ModelWeightsError, match="has 2 entries, more than 1"):
        read_torch_file(path, tmp_path)


def test_tensors_that_share_all_they_have_do_not_fill_the_disk(tmp_path: Path) -> None:
    items = {f"a{number}": tensor((10_000,)) for number in range(100)}
    path = write(tmp_path / "x.bin", checkpoint(items), {"0": bytes(40_000)})
    with pytest.raises(ModelWeightsError, match="4,000,000 bytes without that, more than 64 times"):
        read_torch_file(path, tmp_path)
    write(
        path, checkpoint({name: items[name] for name in ("a1", "a2", "a3")}), {"0": bytes(40_000)}
    )
    assert len(read_torch_file(path, tmp_path)) == 3


def test_a_program_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "MAX_OPCODES", 100)
    with pytest.raises(ModelWeightsError, match="has more than 100 opcodes"):
        read_checkpoint(HEAD + b"}" * 100 + b".", "x")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    items = {"a": tensor((2,)), "b": tensor((1,), offset=1, num_items=2)}
    path = write(tmp_path / "x.bin", checkpoint(items), {"0": b"numbers!"})
    content = path.read_bytes()
    assert len(read_torch_file(path, tmp_path)) == 2
    flipped = content.replace(b"numbers!", b"Numbers!")
    path.write_bytes(flipped)
    with pytest.raises(ModelWeightsError, match="a: its storage is damaged; download the file"):
        read_torch_file(path, tmp_path)
    # torch leaves the sums out where it was told to.
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            content = content.replace(struct.pack("<I", info.CRC), bytes(4))
    path.write_bytes(content)
    assert len(read_torch_file(path, tmp_path)) == 2


CONFINED = """
from embedlib.models.converting.confined import confine
import os, socket
print(confine())
for action in (lambda: socket.socket(), lambda: os.execv("/bin/true", ["true"])):
    try:
        action()
    except PermissionError:
        print("refused")
"""


def test_the_process_is_confined() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", CONFINED], capture_output=True, text=True, check=True
    ).stdout.split()
    by, *refused = answer
    if by != "seccomp":
        pytest.skip(f"this kernel lets no process filter its system calls: {by} refuses sockets")
    assert refused == ["refused", "refused"]


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no pickle"):
        convert_folder(tmp_path)
    with pytest.raises(ModelNotFoundError, match="is no folder"):
        convert_folder(tmp_path / "absent")


def test_heads_of_bge_m3(tmp_path: Path) -> None:
    for stem in ("colbert_linear", "sparse_linear"):
        items = {"weight": tensor((2, 3), key="0"), "bias": tensor((2,), key="1")}
        program = checkpoint(items)
        write(tmp_path / f"{stem}.pt", program, {"0": bytes(24), "1": bytes(8)})
    assert [item.weights for item in convert_folder(tmp_path).written] == [
        "sparse_linear.safetensors", "colbert_linear.safetensors",
    ]  # fmt: skip
    found = list_tensors(tmp_path / "colbert_linear.safetensors", tmp_path)
    assert {name: item.shape for name, item in found.items()} == {"weight": (2, 3), "bias": (2,)}
