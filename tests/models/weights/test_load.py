from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from embedlib.errors import ModelUnsupportedError, ModelWeightsError
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.load import Weights, load_weights
from embedlib.models.weights.mapped import mapped_paths
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors, map_file
from embedlib.models.weights.weight_files import weights_digest
from embedlib.system.cgroups import read_system_file
from embedlib.system.memory import Memory, Room
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.write import uniform, write_tiny_model
from tests.tiny_models.sparse import write_sparse_model

OVERCOMMIT = "/proc/sys/vm/overcommit_memory"

Arrays = dict[str, NDArray[np.float32]]


def _load(folder: Path) -> Weights:
    return load_weights(read_model_files(folder))


def _rewrite(folder: Path, change: Callable[[Arrays], object]) -> None:
    """Edit the tensors of model.safetensors."""
    path = folder / "model.safetensors"
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    change(arrays)
    save_file(arrays, path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_loads(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder(variant))
    encoder = files.spec.encoder
    weights = load_weights(files)
    assert len(weights) == len(list(weights))
    assert weights["tokens"].shape == (encoder.vocab_size, encoder.table_width)
    assert ("positions" in weights) == encoder.has_position_table
    assert ("layers.0.gate.weight" in weights) == encoder.is_gated
    if encoder.convolutions is None:
        assert ("layers.0.q_norm.weight" in weights) == encoder.has_qk_norm
        assert ("layers.0.v.bias" in weights) == encoder.has_qkv_bias
        assert ("layers.0.o.bias" in weights) == encoder.has_output_bias
    else:
        assert ("layers.0.conv.bias" in weights) == encoder.convolutions.has_bias
    assert ("layers.0.up.bias" in weights) == encoder.has_mlp_bias
    assert ("layers.0.down.bias" in weights) == encoder.has_down_bias
    for array in weights.values():
        assert array.dtype == np.float32
        assert np.isfinite(array).all()


def test_to_ask_for_a_role_reads_no_tensor(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = _load(tiny_folder("bert"))
    monkeypatch.setattr(StoredTensor, "read", None)
    assert "tokens" in weights
    assert "nothing" not in weights


def test_rows_are_outputs_as_torch_stores_them(tiny_folder: Callable[[str], Path]) -> None:
    weights = _load(tiny_folder("qwen3"))
    shapes = {stem: weights[f"layers.0.{stem}.weight"].shape for stem in ("q", "k", "o", "up")}
    assert shapes == {"q": (48, 32), "k": (24, 32), "o": (32, 48), "up": (64, 32)}
    weights = _load(tiny_folder("bert-cls-dense"))
    assert weights["modules.1.weight"].shape == (20, 32)
    assert weights["modules.2.bias"].shape == (20,)


def test_float32_is_a_view_onto_the_file_that_never_writes_to_it(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    stored = load_file(folder / "model.safetensors")["encoder.layer.0.attention.self.query.weight"]
    weights = _load(folder)
    array = weights["layers.0.q.weight"]
    assert np.shares_memory(array, weights["layers.0.q.weight"])
    np.testing.assert_array_equal(array, stored)
    # Writable, since some libraries share only writable memory.
    array[:] = 0
    assert _load(folder)["layers.0.q.weight"].any()


def test_float16_is_converted_exactly(tiny_folder: Callable[[str], Path]) -> None:
    weights = _load(tiny_folder("qwen2"))
    role = "layers.0.attention_norm.weight"
    exact = 1 + uniform(f"qwen2/{role}", (32,)) * np.float32(0.25)
    np.testing.assert_array_equal(weights[role], exact.astype(np.float16).astype(np.float32))


def test_bfloat16_over_several_files_is_converted_exactly(
    tiny_folder: Callable[[str], Path],
) -> None:
    assert len(list(tiny_folder("mistral").glob("model-*.safetensors"))) == 3
    weights = _load(tiny_folder("mistral"))
    exact = uniform("mistral/tokens", weights["tokens"].shape)
    upper_half = exact.view(np.uint32) & np.uint32(0xFFFF0000)
    np.testing.assert_array_equal(weights["tokens"].view(np.uint32), upper_half)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=16))
def test_every_bfloat16_is_the_upper_half_of_a_float32(halves: list[int]) -> None:
    stored = np.array(halves, dtype="<u2")
    tensor = StoredTensor(Path("x"), "x", "BF16", (len(halves),), 0)
    read = tensor.read(stored.view(np.uint8))
    assert read.view(np.uint32).tolist() == [half << 16 for half in halves]


@pytest.mark.parametrize(
    ("variant", "prefix"),
    [
        ("bert", "bert."),
        ("bert", "0.auto_model."),
        ("roberta", ""),
        ("xlm-roberta", "roberta."),
        ("qwen3", "model."),
        ("llama", ""),
    ],
)
def test_names_may_have_the_prefix_of_who_wrote_them(
    tmp_path: Path, variant: str, prefix: str, tiny_folder: Callable[[str], Path]
) -> None:
    folder = write_tiny_model(tmp_path, variant)

    def rename(arrays: Arrays) -> None:
        for name in list(arrays):
            bare = name.removeprefix("roberta.").removeprefix("model.")
            arrays[prefix + bare] = arrays.pop(name)

    _rewrite(folder, rename)
    expected, weights = _load(tiny_folder(variant)), _load(folder)
    assert list(weights) == list(expected)
    assert all(np.array_equal(weights[role], expected[role]) for role in expected)


def test_norms_may_have_the_names_of_tensorflow(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    expected = np.array(_load(folder)["layers.0.mlp_norm.bias"])

    def rename(arrays: Arrays) -> None:
        for name in list(arrays):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            arrays[old.replace("LayerNorm.bias", "LayerNorm.beta")] = arrays.pop(name)

    _rewrite(folder, rename)
    np.testing.assert_array_equal(_load(folder)["layers.0.mlp_norm.bias"], expected)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("bert", "embeddings.position_ids"),
        ("bert", "pooler.dense.weight"),
        ("bert", "cls.predictions.bias"),
        ("roberta", "lm_head.dense.bias"),
        ("roberta", "roberta.pooler.dense.bias"),
        ("llama", "lm_head.weight"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ],
)
def test_tensors_of_heads_are_ignored(tmp_path: Path, variant: str, name: str) -> None:
    folder = write_tiny_model(tmp_path, variant)
    roles = set(_load(folder))
    _rewrite(folder, lambda arrays: arrays.update({name: np.arange(3)}))
    assert set(_load(folder)) == roles


QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop(QUERY), rf"tensor {QUERY} \[32, 32\] is missing"),
        (
            lambda arrays: arrays.pop("embeddings.word_embeddings.weight"),
            "tensor embeddings.word_embeddings.weight is missing",
        ),
        (
            lambda arrays: arrays.update({QUERY: np.zeros((32, 16), np.float32)}),
            rf"tensor {QUERY} has shape \[32, 16\]; expected: \[32, 32\]",
        ),
        (
            lambda arrays: arrays.update({QUERY: np.zeros((32, 32), np.int8)}),
            f"tensor {QUERY} has type I8; accepted: F32, F16, BF16",
        ),
        (
            lambda arrays: arrays.update({QUERY: np.zeros((32, 32), np.float64)}),
            f"tensor {QUERY} has type F64; accepted: .*save_file",
        ),
        (
            lambda arrays: arrays.update({"encoder.layer.2.x": np.zeros(5, np.float32)}),
            r"tensor encoder.layer.2.x \[5\] is left over",
        ),
        (
            lambda arrays: arrays.update({"embeddings.LayerNorm.gamma": np.ones(32, np.float32)}),
            "tensor embeddings.LayerNorm.weight is stored twice",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: Callable[[Arrays], object], message: str
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _rewrite(folder, change)
    with pytest.raises(ModelWeightsError, match=f"^model.safetensors: {message}"):
        _load(folder)


def test_weights_of_modules_are_checked(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    _rewrite(folder / "2_Dense", lambda arrays: arrays.pop("linear.bias"))
    message = r"^2_Dense/model.safetensors: tensor linear.bias \[20\] is missing"
    with pytest.raises(ModelWeightsError, match=message):
        _load(folder)


@pytest.mark.parametrize(
    ("variant", "name"),
    [("bert", "pytorch_model.bin"), ("bert-cls-dense", "2_Dense/pytorch_model.bin")],
)
def test_pickles_are_refused_with_the_remedy(tmp_path: Path, variant: str, name: str) -> None:
    folder = write_tiny_model(tmp_path, variant)
    path = folder / name
    path.with_name("model.safetensors").rename(path)
    with pytest.raises(ModelWeightsError, match=rf"^{name}: .*pickle.*embedlib convert"):
        _load(folder)


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelWeightsError, match=r"there is no model.safetensors"):
        _load(folder)


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["model.fp16.safetensors"], "has a name that transformers .* call it model.safetensors"),
        (["model-00001-of-00002.safetensors"], "is a part of the weights: copy model.safetensors."),
        (["weights.pt", "colbert_linear.safetensors"], "weights.pt is none of the files that"),
        (["adapter_model.safetensors"], "no model.safetensors.index.json$"),
        (["sparse_linear.safetensors"], "no model.safetensors.index.json$"),
        (["onnx/model.onnx"], "onnx/model.onnx has weights for another runtime; load the model"),
        (["model-q4.gguf"], "model-q4.gguf has weights for another runtime; load the model that"),
    ],
)
def test_weights_under_other_names(tmp_path: Path, names: list[str], remedy: str) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    with pytest.raises(ModelWeightsError, match=f"there is no model.safetensors .*{remedy}"):
        _load(folder)


def test_a_module_whose_pickle_was_not_downloaded(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--dense" / "snapshots" / ("0" * 40)
    folder = write_tiny_model(tmp_path / "model", "bert-cls-dense")
    (folder / "2_Dense" / "model.safetensors").unlink()
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    said = r"2_Dense: there is no model.safe.* pickle, .*run embedlib convert acme/dense once"
    with pytest.raises(ModelWeightsError, match=said):
        _load(snapshot)


@pytest.mark.parametrize("keep", [0, 4, 100, 20_000])
def test_a_file_cut_short_is_damaged(tmp_path: Path, keep: int) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    path = folder / "model.safetensors"
    assert path.stat().st_size > keep
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelWeightsError, match=r"^model.safetensors: is damaged") as caught:
        _load(folder)
    assert "\n" not in str(caught.value)


def header(*entries: object) -> dict[str, object]:
    """Return the entries of a header: each with type, shape, start and end."""
    keys = ("dtype", "shape")
    return {
        f"t{number}": dict(zip(keys, entry[:2], strict=True)) | {"data_offsets": entry[2:]}  # type: ignore[index]
        for number, entry in enumerate(entries)
    }


@pytest.mark.parametrize(
    ("content", "num_bytes", "told"),
    [
        (header(("F32", [2], 0, 8)), 9, "9 bytes of tensors, 8 according to the header"),
        (header(("F32", [2], 0, 8)), 7, "7 bytes of tensors, 8 according to the header"),
        (header(("F32", [2], 0, 7)), 7, "tensor t0 of another size than its place"),
        (header(("F32", [1, 2], 0, 4)), 4, "tensor t0 of another size"),
        (header(("F32", [1], 4, 8)), 8, "tensor t0 of another size"),
        (header(("F32", [2], 0, 8), ("F4", [1], 8, 4)), 4, "tensor t1 of another size"),
        (header(("F4\x1b[2J", [1], 0, 4)), 4, r"tensor t0 of type 'F4\\x1b\[2J'"),
        (header(("", [1], 0, 4)), 4, "tensor t0 of type ''"),
        (header(("F32", [1], 0, 4), ("F32", [1], 0, 4)), 4, "tensor t1 of another size"),
        (header(("F32", [1], 0, 4), ("F32", [1], 2, 6)), 6, "tensor t1 of another size"),
        (header(("F32", [-1, -1], 0, 4)), 4, "tensor t0 of another size"),
        (header(("F32", [1.0], 0, 4)), 4, "tensor t0 of another size"),
        (header(("F32", [True], 0, 4)), 4, "tensor t0 of another size"),
        (header(("F32", [1] * 33, 0, 4)), 4, "tensor t0 of another size"),
        (header(("F32", [1 << 60] * 100_000, 0, 4)), 4, "tensor t0 of another size"),
        (header(("F32", [0, 1 << 62], 0, 0)), 0, "tensor t0 of another size"),
        (header(("F4", [1 << 30, 0, 1 << 30], 0, 0)), 0, "tensor t0 of another size"),
        (header(("F32", 1, 0, 4)), 4, "TypeError: "),
        (header((["F32"], [1], 0, 4)), 4, "TypeError: "),
        (header(("F32", [1], 0)), 4, "ValueError: "),
        (header(("F32", [1], 0, 4), ("F32", [1], "4", 8)), 8, "TypeError: "),
        ({"t": {"dtype": "F32", "shape": [1]}}, 4, "KeyError: 'data_offsets'"),
        ([], 0, "TypeError: "),
        (7, 0, "AttributeError: "),
    ],
)
def test_a_header_that_does_not_fit_the_file_is_damage(
    tmp_path: Path, content: object, num_bytes: int, told: str
) -> None:
    text = json.dumps(content).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(num_bytes))
    with pytest.raises(ModelWeightsError, match=rf"is damaged \(.*{told}.*; download it again"):
        list_tensors(path, tmp_path)


@pytest.mark.parametrize("content", [b"\xff" * 9, (200_000).to_bytes(8, "little") + b"[" * 200_000])
def test_what_is_no_header_is_damage(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelWeightsError, match=r"is damaged \((Unicode|Recursion|JSON)"):
        list_tensors(path, tmp_path)


def test_tensors_lie_in_any_order_and_may_be_empty_or_of_an_unknown_type(tmp_path: Path) -> None:
    content = header(
        ("F32", [1], 11, 15), ("F4", [6], 8, 11), ("F32", [], 4, 8), ("F32", [0], 0, 0),
        ("F32", [1], 0, 4),
    )  # fmt: skip
    text = json.dumps({"__metadata__": {"format": "pt"}, **content}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(15))
    tensors = list_tensors(path, tmp_path)
    starts = {name: tensor.start - 8 - len(text) for name, tensor in tensors.items()}
    assert starts == {"t0": 11, "t1": 8, "t2": 4, "t3": 0, "t4": 0}


NO_MEMORY = (
    r"^model.safetensors: the weights need 0\.00*[1-9] GiB of memory, and this process can have "
    r"0\.00* GiB"
)


def test_weights_that_do_not_fit_into_memory(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        # As for a file that is larger than the memory, or than the process's limit.
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("embedlib.models.weights.safetensors_files.mmap.mmap", fail)
    room = Memory(Room(0, "available on this machine"))
    monkeypatch.setattr("embedlib.models.weights.memory.read_memory", lambda: room)
    with pytest.raises(ModelWeightsError, match=NO_MEMORY):
        _load(tiny_folder("bert"))


@pytest.mark.skipif(
    not Path("/proc/meminfo").exists() or read_system_file(OVERCOMMIT).strip() == "2",
    reason="the system does not map more than its memory, or does not say what it has",
)
def test_a_file_larger_than_the_memory_is_mapped(tmp_path: Path) -> None:
    """A model of 7 billion weights in float32 has 28 GB, and runs in int8 in 8."""
    rows = dict(line.split(":") for line in read_system_file("/proc/meminfo").splitlines())
    num_kib = sum(int(rows[name].split()[0]) for name in ("MemTotal", "SwapTotal"))
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(1024 * num_kib + (1 << 30))
        file.seek(-1, 2)
        file.write(b"7")
    content = map_file(path)
    assert content[-1] == ord("7")
    assert content.flags.writeable
    assert content.size == path.stat().st_size


def test_a_file_that_is_gone_is_no_lack_of_memory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "gone")


def test_files_are_in_the_order_of_the_roles(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(9)]
    for path in paths:
        save_file({"weight": np.zeros(1, np.float32)}, path)
    stored = {path.stem: list_tensors(path, tmp_path)["weight"] for path in paths}
    # Part of the key of a cache, which another process must find: no order of hashes.
    assert mapped_paths(Weights(stored)) == paths


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "mistral")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        ModelWeightsError, match=r"^model-00002-of-00003.safetensors: the file is missing"
    ):
        _load(folder)


@pytest.mark.parametrize("table", [{"a": "../elsewhere.safetensors"}, {}])
def test_an_index_names_files_in_its_folder(table: dict[str, str], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "mistral")
    index = {"weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Exception, match=r"^model.safetensors.index.json: weight_map = "):
        _load(folder)


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    first = weights_digest(read_model_files(folder), FileHashes())
    assert len(first) == 32
    (folder / "0_Transformer" / "model.safetensors").touch()
    assert weights_digest(read_model_files(folder), FileHashes()) == first
    _rewrite(
        folder / "2_Dense", lambda arrays: arrays.update({"linear.bias": arrays["linear.bias"] + 1})
    )
    assert weights_digest(read_model_files(folder), FileHashes()) != first


def test_the_digest_reads_no_blob_that_its_name_tells(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "snapshot", "bert")
    plain = weights_digest(read_model_files(folder), FileHashes())
    path = folder / "model.safetensors"
    blob = tmp_path / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
    blob.parent.mkdir()
    path.rename(blob)
    path.symlink_to(blob)
    assert weights_digest(read_model_files(folder), FileHashes()) == plain
    # While the blob's name stays the same, the content is not read.
    blob.write_bytes(blob.read_bytes()[:-1])
    assert weights_digest(read_model_files(folder), FileHashes()) == plain


def test_a_row_of_answers_may_be_divided(tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder("qwen3-answers")
    files = read_model_files(folder, with_head=True, template="qwen3-reranker")
    [(position, rows)] = files.module_tensors.items()
    assert isinstance(rows, AnswerRows)
    divided = replace(files, module_tensors={position: replace(rows, divisor=5.0)})
    whole = load_weights(files)[f"modules.{position}.weight"]
    assert np.allclose(load_weights(divided)[f"modules.{position}.weight"] * 5, whole, rtol=1e-6)


@pytest.mark.parametrize("answer", ["true_token_id", "false_token_id"])
def test_a_tied_lm_head_is_refused_if_the_file_has_another(answer: str, tmp_path: Path) -> None:
    # transformers 5 does not tie two matrices that differ, 4 does.
    folder = write_tiny_model(tmp_path, "qwen2-answers")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    arrays = {name: array.copy() for name, array in load_file(folder / "model.safetensors").items()}
    head = arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    files = read_model_files(folder, with_head=True, template="mxbai-rerank-v2")
    rows = files.module_tensors[1]
    assert isinstance(rows, AnswerRows)
    assert rows.false_token_id is not None
    head[rows.true_token_id + 1] += 1  # of no answer
    save_file(arrays, folder / "model.safetensors")
    tied = head[rows.true_token_id] - head[rows.false_token_id]
    assert np.array_equal(load_weights(files)["modules.1.weight"][0], tied)
    save_file(arrays | {"lm_head.weight": head[:-1]}, folder / "model.safetensors")
    with pytest.raises(ModelWeightsError, match=r"tensor lm_head.weight has shape .*; expected: "):
        load_weights(files)
    head[getattr(rows, answer)] *= 2
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelWeightsError, match=r"LM head differs from .* tie_word_embeddings"):
        load_weights(files)


def test_a_template_may_score_with_a_single_token(tmp_path: Path) -> None:
    # The tiny model with a token that these templates answer with.
    folder = write_tiny_model(tmp_path, "qwen3-answers")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["Yes"] = content["model"]["vocab"].pop("yes")
    content["model"]["merges"] = [m for m in content["model"]["merges"] if "".join(m) != "yes"]
    path.write_text(json.dumps(content))
    files = read_model_files(folder, with_head=True, template="zerank")
    yes = content["model"]["vocab"]["Yes"]
    assert files.module_tensors == {1: AnswerRows(None, yes, None, 5.0)}
    with pytest.raises(ModelUnsupportedError, match="scores with the logits of two tokens"):
        read_model_files(folder, with_head=True, template="nemotron-rerank")


def test_a_gemma_s_norms_are_stored_less_one(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "gemma")
    stored = load_file(folder / "model.safetensors")["layers.0.input_layernorm.weight"]
    np.testing.assert_array_equal(_load(folder)["layers.0.attention_norm.weight"], stored + 1)


@pytest.mark.parametrize("name", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_the_bias_of_a_sparse_head_has_one_of_two_names(name: str, tmp_path: Path) -> None:
    folder = write_sparse_model(tmp_path)
    first = load_file(folder / "model.safetensors")
    [own] = first.keys() & {"cls.predictions.bias", "cls.predictions.decoder.bias"}
    _rewrite(folder, lambda arrays: arrays.update({name: arrays.pop(own)}))
    np.testing.assert_array_equal(_load(folder)["modules.2.bias"], first[own])


def test_an_error_of_a_mapping_is_no_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("mmap.mmap", refuse)
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(OSError, match="Invalid argument"):
        map_file(tmp_path / "a")
