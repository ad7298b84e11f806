"""The files of a model folder: what is no file, too deep or too large is refused by name."""

from __future__ import annotations

import codecs
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.errors import EmbedlibError, ModelNotFoundError, ModelUnsupportedError
from embedlib.models.hub import resolve
from embedlib.models.opening import OpenedModel
from embedlib.models.reading import model_file
from embedlib.models.reading.files import is_scoring_model, read_model_files
from embedlib.models.reading.json_files import JsonObject, quote, show
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.models.weights.load import load_weights
from embedlib.testing.models.write import write_tiny_model

NAMES = (
    "config.json",
    "modules.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "model.safetensors",
    "sparse_linear.safetensors",
    "embedlib.json",
    "other.json",
)

KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe; it must be a regular file"),
    "directory": (Path.mkdir, "is a directory; it must be a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device; it must be a regular"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "does not exist|cannot be read"),
    "link to itself": (lambda path: path.symlink_to(path), "cannot be read: Too many levels"),
}


def use(folder: Path) -> None:
    """Read all files of a folder, as an Embedder does, and as an index asks for its fingerprint."""
    files = OpenedModel.find(folder, Config()).read_files(with_head=is_scoring_model(folder))
    load_weights(files)
    fingerprint(files, None, {})


def use_all(folder: Path) -> None:
    """Read the tokenizer, too."""
    use(folder)
    load_tokenizer(read_model_files(folder))


def refusal(folder: Path) -> str:
    with pytest.raises(EmbedlibError) as caught:
        use(folder)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    return message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_refused_and_never_read(name: str, kind: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / name).unlink(missing_ok=True)
    make, message = KINDS[kind]
    make(folder / name)
    with pytest.raises(EmbedlibError, match=rf"{name}: .*({message})"):
        use(folder)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("json")][:-1])
@pytest.mark.parametrize("depth", [70, 100_000])
def test_deep_json_is_refused(name: str, depth: int, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / name).write_text('{"a":' + "[" * depth + "]" * depth + "}")
    assert f"{name}: has objects or lists nested more than 64 deep" in refusal(folder)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    monkeypatch.setattr(model_file, "MAX_JSON_BYTES", 1 << 20)
    with (folder / "config.json").open("ab") as file:
        file.truncate(1 << 40)  # sparse
    assert "config.json: has more than 1 MiB" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_told(name: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
    (folder / name).write_text(pointer)
    with pytest.raises(EmbedlibError, match=rf"^{name}: is a pointer of Git LFS.*`git lfs pull`"):
        use_all(folder)


def test_a_pointer_of_git_lfs_that_no_model_needs_is_left_alone(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "vocab.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    use(folder)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer.json"])
def test_a_byte_order_mark_is_told(name: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / name).write_bytes(codecs.BOM_UTF8 + (folder / name).read_bytes())
    with pytest.raises(ModelUnsupportedError, match=rf"^{name}: begins with a byte order mark"):
        load_tokenizer(read_model_files(folder))


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("place", ["model", f"models--owner--model/snapshots/{COMMIT}"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("1_Pooling/config.json", "copy all files of the model"),
        ("2_Dense/config.json", "copy all files of the model"),
        ("3_LayerNorm/config.json", "copy all files of the model"),
        ("0_Transformer/tokenizer.json", "write it with AutoTokenizer"),
    ],
)
def test_a_missing_file_comes_with_a_remedy(
    place: str, name: str, remedy: str, tmp_path: Path
) -> None:
    folder = tmp_path / place
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_tiny_model(tmp_path / "made", "bert-cls-dense").rename(folder)
    (folder / name).unlink()
    with pytest.raises(ModelUnsupportedError) as caught:
        load_tokenizer(read_model_files(folder))
    message = str(caught.value)
    assert message.startswith(f"{name}: the file is missing; ")
    is_snapshot = place != "model"
    assert ("load the model once online" in message) is is_snapshot
    assert (remedy in message) is (not is_snapshot or "Auto" in remedy)


@pytest.mark.parametrize("path", ["x" * 5000, "a\nb", "a\x00b", "a\u2028b", "\ud800", "a/" * 9])
def test_an_odd_path_of_a_module_is_refused(path: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    entries = json.loads((folder / "modules.json").read_text())
    entries[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(entries))
    assert refusal(folder).startswith('modules.json: [1]: path = "')


@pytest.mark.parametrize("shard", ["x" * 5000, "a\nb", "a\x00b", "..", "", "../a.safetensors"])
def test_an_odd_name_of_a_shard_is_refused(shard: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(folder).startswith("model.safetensors.index.json: weight_map = ")


def test_a_file_with_an_odd_name_is_named_on_one_line(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    os.mkfifo(folder / "a\nb\udcff.json")
    assert refusal(folder).startswith("a\\nb\\udcff.json: is a pipe")


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "mistral")
    shard = min(folder.glob("model-*.safetensors"))
    shard.unlink()
    KINDS[kind][0](shard)
    assert shard.name in refusal(folder)


COUNTS = (
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "intermediate_size",
    "num_attention_heads",
    "max_position_embeddings",
    "type_vocab_size",
)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [100_000_000, 10**9, 10**12, 10**400, -1, 1.5, True])
def test_an_absurd_count_is_refused(key: str, value: float, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    assert refusal(folder).startswith(f"config.json: {key} = ")


@pytest.mark.parametrize("value", [True, 5, "BertModel", {"a": 1}, [1], [None], [[]]])
def test_architectures_must_be_names(value: Any, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-reranker")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": value}))
    assert refusal(folder).startswith("config.json: architectures = ")


def test_odd_names_of_prompts_are_told_on_one_line(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    prompts = {"a\nb": "", "x" * 5000: "", **{str(number): "" for number in range(1000)}}
    settings = {"prompts": prompts, "default_prompt_name": "none"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert refusal(folder).startswith("config_sentence_transformers.json: default_prompt_name = ")


@pytest.mark.parametrize("layers", [1024, 100_000])
def test_many_layers_are_refused_quickly(layers: int, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    assert refusal(folder).startswith("model.safe" if layers == 1024 else "config.json: num_hidden")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, 0, -1, 1e31, "1", True])
def test_an_absurd_number_is_refused(value: Any) -> None:
    config = JsonObject("config.json", {"rms_norm_eps": value, "rope_theta": value})
    for key in ("rms_norm_eps", "rope_theta"):
        with pytest.raises(ModelUnsupportedError, match=f"{key} = .*accepted: a number from "):
            config.number(key)


def test_a_string_is_unicode_and_null_is_no_choice_but_the_default() -> None:
    content = JsonObject("a.json", {"key": "\ud800", "null": None})
    with pytest.raises(
        ModelUnsupportedError, match=r"key = .*; accepted: a string without lone sur"
    ):
        content.text("key")
    assert content.optional_choice("null", {"a": 1, "b": 2}, "b") == 2
    with pytest.raises(ModelUnsupportedError, match="null = null is not supported; accepted: a, b"):
        content.choice("null", {"a": 1, "b": 2}, "b")


def test_names_and_values_in_messages_are_short_and_on_one_line() -> None:
    assert quote("a\nb\u2028\ud800") == '"a\\nb\\u2028\\ud800"'
    assert show("layers.0") == "layers.0"
    assert show("a\u2028b") == '"a\\u2028b"'
    for text in (quote(["x"] * 1000), show("x" * 1000)):
        assert len(text) <= 80


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000, "a\x00b", "~nobody-of-this-name/model"])
def test_an_odd_name_of_a_model_is_not_found(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name, Config(local_files_only=True))
    assert len(str(caught.value).splitlines()) == 1


def test_the_files_of_a_model_are_read(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "config.json").rename(folder / "blob")
    (folder / "config.json").symlink_to("blob")  # as in the hub's cache
    use(folder)
    assert read_model_files(folder).spec.encoder.num_layers == 2


def test_a_file_takes_as_much_memory_as_it_has_bytes(tmp_path: Path) -> None:
    """A process with little memory left must get as far as the message that says so."""
    (tmp_path / "modules.json").write_bytes(b" " * 1000)
    tracemalloc.start()
    try:
        content = model_file.read_file(tmp_path / "modules.json", tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(content) == 1000
    assert peak < 1 << 20
