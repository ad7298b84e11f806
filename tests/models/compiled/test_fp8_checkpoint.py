"""The written checkpoint, against the one nvidia-modelopt exports for the same models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from embedlib.config import Config
from embedlib.errors import ConfigError, ModelUnsupportedError, ModelWeightsError
from embedlib.models.compiled.checkpoint import linear_layers
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.pooled_rows import pooled_modes
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Pooling
from embedlib.models.weights.load import load_weights
from embedlib.testing import fake_spec
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.write import write_tiny_model

GOLDENS = Path(__file__).parents[2] / "goldens" / "fp8"
TYPES = {"F8_E4M3": "float8_e4m3fn", "BF16": "bfloat16", "F32": "float32"}
NUMPY_TYPES = {"F8_E4M3": "u1", "BF16": "<u2", "F32": "<f4", "F16": "<f2", "I64": "<i8"}

Tensors = dict[str, tuple[str, NDArray[Any]]]
"""Name to dtype and stored array; FP8 and bfloat16 as bits."""
Compile = Callable[..., Path]


@pytest.fixture
def compile_folder(tmp_path: Path) -> Compile:
    """Return a function that compiles a model folder into a new folder."""

    def run(folder: Path, precision: Any = "fp8", excluded: tuple[str, ...] = ()) -> Path:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        return compile_model(read_model_files(folder), precision, excluded, Config(), out=out)

    return run


def read_file(path: Path) -> Tensors:
    """Read a safetensors file; `safe_open` checks that it is one."""
    with safe_open(path, framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt"}
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    tensors: Tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        kind = np.dtype(NUMPY_TYPES[entry["dtype"]])
        # torch creates views onto the file, which must be aligned.
        assert (8 + length + start) % kind.itemsize == 0
        array = np.frombuffer(content[8 + length + start : 8 + length + end], kind)
        tensors[name] = entry["dtype"], array.reshape(entry["shape"])
    return tensors


def read_all(folder: Path) -> Tensors:
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        found = read_file(path)
        assert not found.keys() & tensors.keys()
        tensors |= found
    return tensors


def write_file(path: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, array) in tensors.items():
        offsets = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        body += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def load_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def without_norms(names: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if "LayerNorm" not in name}


@pytest.mark.parametrize("variant", ["bert", "llama", "mistral", "qwen2"])
def test_the_same_as_modelopt(
    variant: str, tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    golden = load_json(GOLDENS / f"{variant}.json")
    # modelopt loaded the model in bfloat16.
    compiled = compile_folder(compile_folder(tiny_folder(variant), "bf16"))
    tensors = read_all(compiled)
    shapes = {name: [TYPES[kind], list(array.shape)] for name, (kind, array) in tensors.items()}
    # transformers renames BERT's norms to their TensorFlow names.
    assert without_norms(shapes) == without_norms(golden["tensors"])
    with np.load(GOLDENS / f"{variant}.npz") as stored:
        assert {name for name, (kind, _) in tensors.items() if kind == "F8_E4M3"} == {
            name for name in stored.files if not name.endswith("_scale")
        }
        for name in stored.files:
            np.testing.assert_array_equal(tensors[name][1], stored[name], err_msg=name)
    config = load_json(compiled / "config.json")
    assert config["torch_dtype"] == golden["dtype"]
    written = load_json(compiled / "hf_quant_config.json")
    if variant == "bert":  # modelopt shortens the names to a pattern
        assert golden["hf_quant_config"]["quantization"]["exclude_modules"] == ["embeddings*"]
        kept = written["quantization"]["exclude_modules"]
        assert kept
        assert all(fnmatchcase(name, "embeddings*") for name in kept)
        for content in (golden["hf_quant_config"]["quantization"], written["quantization"]):
            content.pop("exclude_modules")
        config["quantization_config"].pop("ignore")
        golden["quantization_config"].pop("ignore")
    assert written == golden["hf_quant_config"]
    assert config["quantization_config"] == golden["quantization_config"]


@pytest.mark.parametrize("variant", ["llama", "qwen2"])
def test_float32_and_float16_are_rounded_once(
    variant: str, tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    tensors = read_all(compile_folder(tiny_folder(variant)))
    with np.load(GOLDENS / f"{variant}.npz") as stored:
        for name in stored.files:
            if name.endswith("_scale"):
                # bfloat16 keeps 8 bits, so rounding changes a number by one part in 512 at most.
                np.testing.assert_allclose(tensors[name][1], stored[name], rtol=2**-8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_tensor_is_close_to_what_it_was(
    variant: str, tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    folder = tiny_folder(variant)
    files = read_model_files(folder)
    compiled = compile_folder(folder)
    for part in {files.transformer_dir, *files.module_dirs}:
        before = read_all(part)
        after = read_all(compiled / part.relative_to(folder))
        assert {name.removesuffix("_scale") for name in after} == set(before)
        for name, (dtype, array) in before.items():
            original = as_float(dtype, array)
            kind, stored = after[name]
            if kind == "F8_E4M3":
                numbers = stored.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
                numbers *= after[f"{name}_scale"][1][:, None]
                bound = 2**-4 * np.abs(original) + np.abs(original).max() * 1e-5
            else:
                assert kind == "BF16"
                assert f"{name}_scale" not in after
                numbers, bound = as_float(kind, stored), 2**-8 * np.abs(original)
            assert numbers.shape == original.shape
            assert (np.abs(numbers - original) <= bound).all(), name
    transformer = read_all(compiled / files.transformer_dir.relative_to(folder))
    linear = set(linear_layers(files).values())
    assert {name for name, (kind, _) in transformer.items() if kind == "F8_E4M3"} == linear
    # Some families store several of them as one tensor.
    experts = files.spec.encoder.experts
    without_mlp = 0 if experts is None else len(experts.layers)
    layers = 1 if variant == "albert" else files.spec.encoder.num_layers  # all have the same
    assert len(linear) >= 4 * layers - 2 * without_mlp


def as_float(dtype: str, array: NDArray[Any]) -> NDArray[np.float32]:
    if dtype == "BF16":
        return array.view(ml_dtypes.bfloat16).astype(np.float32)
    return array.astype(np.float32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_is_a_model_like_any_other(
    variant: str, tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    compiled = compile_folder(tiny_folder(variant), "bf16")
    assert list(compiled.rglob("hf_quant_config.json")) == []
    before, after = (read_model_files(folder) for folder in (tiny_folder(variant), compiled))
    assert before.spec == after.spec
    weights = load_weights(after)
    for role, original in load_weights(before).items():
        np.testing.assert_allclose(weights[role], original, rtol=2**-8, atol=1e-38)


def test_fp8_is_not_taken_for_a_model(
    tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    # Codes read without their scales would give wrong vectors.
    compiled = compile_folder(tiny_folder("mistral"))
    with pytest.raises(ModelUnsupportedError, match="quantization_config"):
        read_model_files(compiled)


def test_shards_keep_their_names_and_the_index_knows_the_scales(
    tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    compiled = compile_folder(tiny_folder("mistral"))
    index = load_json(compiled / "model.safetensors.index.json")
    where = {name: path.name for path in compiled.glob("*.safetensors") for name in read_file(path)}
    assert len(set(where.values())) == 3
    assert index["weight_map"] == where
    num_bytes = sum(array.nbytes for _, array in read_all(compiled).values())
    assert index["metadata"] == {"total_size": num_bytes}


def test_everything_else_is_copied(
    tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    folder = tiny_folder("bert-cls-dense")
    compiled = compile_folder(folder)
    changed = {"0_Transformer/config.json"}
    for path in folder.rglob("*.json"):
        name = path.relative_to(folder).as_posix()
        assert ((compiled / name).read_bytes() == path.read_bytes()) == (name not in changed)
    before = load_json(folder / "0_Transformer" / "config.json")
    after = load_json(compiled / "0_Transformer" / "config.json")
    assert after.pop("quantization_config")["quant_method"] == "modelopt"
    assert after.pop("torch_dtype") == "bfloat16"
    assert after == before
    assert (compiled / "0_Transformer" / "hf_quant_config.json").is_file()


def test_the_newer_key_of_the_type_is_set_where_it_is_used(
    tmp_path: Path, compile_folder: Compile
) -> None:
    folder = write_tiny_model(tmp_path / "model", "llama")
    config = load_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    written = load_json(compile_folder(folder) / "config.json")
    assert written["dtype"] == "bfloat16"
    assert "torch_dtype" not in written


def test_heads_and_buffers_are_kept(tmp_path: Path, compile_folder: Compile) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert-bare")
    tensors = read_all(folder)
    pooler = np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
    tensors["bert.pooler.dense.weight"] = "F32", pooler
    tensors["bert.embeddings.position_ids"] = "I64", np.arange(48).reshape(1, 48)
    # First by name, and six bytes long: the tensors after it are not aligned by chance.
    tensors["a.pooler.bias"] = "F16", np.ones(3, np.float16)
    for shape in ((3, 0), (0, 3), (1 << 40, 0)):
        tensors[f"b.pooler.{shape}"] = "F32", np.empty(shape, np.float32)
    tensors["z.pooler.scalar"] = "F32", np.array(1.5, np.float32)  # the last of the file
    write_file(folder / "model.safetensors", tensors)
    compiled = compile_folder(folder)
    after = read_all(compiled)
    assert after["z.pooler.scalar"][1].tolist() == 0x3FC0  # in bfloat16
    assert after["b.pooler.(3, 0)"][1].shape == (3, 0)
    assert after["bert.pooler.dense.weight"][0] == "BF16"
    assert after["a.pooler.bias"][0] == "BF16"
    assert after["bert.embeddings.position_ids"][0] == "I64"
    np.testing.assert_array_equal(after["bert.embeddings.position_ids"][1][0], np.arange(48))
    assert load_json(compiled / "hf_quant_config.json")["quantization"]["exclude_modules"] == [
        "bert.embeddings.position_embeddings",
        "bert.embeddings.token_type_embeddings",
        "bert.embeddings.word_embeddings",
        "bert.pooler.dense",
    ]


def test_weights_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, compile_folder: Compile
) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert-bare")
    tensors = read_all(folder) | {"surprise.weight": ("F32", np.ones((2, 2), np.float32))}
    write_file(folder / "model.safetensors", tensors)
    with pytest.raises(ModelWeightsError, match=r"surprise\.weight"):
        compile_folder(folder)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("cls", "last_token"), ("cls", "last_token")),
        (("cls", "mean"), ()),
        (None, ()),
    ],
)
def test_which_rows_are_pooled(modes: Any, expected: tuple[str, ...]) -> None:
    modules = () if modes is None else (Pooling(modes=modes),)
    assert pooled_modes(replace(fake_spec(9), modules=modules)) == expected


def test_excluded_layers(tiny_folder: Callable[[str], Path], compile_folder: Compile) -> None:
    excluded = ("layers.1.down", "layers.0.gate", "layers.0.up")
    compiled = compile_folder(tiny_folder("llama"), excluded=excluded)
    names = {f"model.layers.{name}" for name in ("1.mlp.down_proj", "0.mlp.gate_proj")}
    names.add("model.layers.0.mlp.up_proj")
    tensors = read_all(compiled)
    assert {name for name in names if tensors[f"{name}.weight"][0] == "BF16"} == names
    assert {f"{name}.weight_scale" for name in names} & tensors.keys() == set()
    assert sum(kind == "F8_E4M3" for kind, _ in tensors.values()) == 2 * 7 - 3
    quantization = load_json(compiled / "hf_quant_config.json")["quantization"]
    assert quantization["exclude_modules"] == sorted({*names, "lm_head", "model.embed_tokens"})
    config = load_json(compiled / "config.json")
    assert config["quantization_config"]["ignore"] == quantization["exclude_modules"]


@pytest.mark.parametrize(
    ("excluded", "message"),
    [
        (("layers.9.down",), "'layers.9.down' is not a linear layer of this model"),
        (("layers.0.attention_norm",), "is not a linear layer"),
        (("tokens",), "is not a linear layer"),
        (("layers.0.k",), "'layers.0.k' without layers.0.q, layers.0.v"),
        (("layers.0.q", "layers.1.k", "layers.0.v"), "'layers.0.q' without layers.0.k"),
        (("layers.1.up",), "'layers.1.up' without layers.1.gate"),
    ],
)
def test_wrong_names_of_layers(
    excluded: tuple[str, ...],
    message: str,
    tiny_folder: Callable[[str], Path],
    compile_folder: Compile,
) -> None:
    with pytest.raises(ConfigError, match="excluded: ") as caught:
        compile_folder(tiny_folder("llama"), excluded=excluded)
    assert message in str(caught.value)


def test_pooled_rows_change_no_file_and_want_one_pooled_token(
    tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    plain = compile_folder(tiny_folder("mistral"))
    tensors = {name: values for name, (_, values) in read_all(plain).items()}
    split = compile_folder(tiny_folder("mistral"), excluded=("pooled_rows",))
    for name, (_, values) in read_all(split).items():
        np.testing.assert_array_equal(values, tensors[name])
    for variant, precision in (("bert", "fp8"), ("mistral", "bf16"), ("mistral", "int8")):
        with pytest.raises(ConfigError, match=r"^excluded: 'pooled_rows' "):
            compile_folder(tiny_folder(variant), precision, ("pooled_rows",))


def test_a_layer_that_is_not_gated_has_up_alone(
    tiny_folder: Callable[[str], Path], compile_folder: Compile
) -> None:
    tensors = read_all(compile_folder(tiny_folder("bert"), excluded=("layers.0.up",)))
    assert tensors["encoder.layer.0.intermediate.dense.weight"][0] == "BF16"


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name",
    ["model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight", "model.norm.weight"],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    name: str, bad: float, precision: str, tmp_path: Path, compile_folder: Compile
) -> None:
    folder = write_tiny_model(tmp_path / "model", "llama")
    tensors = read_all(folder)
    array = tensors[name][1].copy()
    array.reshape(-1)[-1] = bad
    write_file(folder / "model.safetensors", tensors | {name: ("F32", array)})
    with pytest.raises(ModelWeightsError, match=r"model\.safetensors: tensor ") as caught:
        compile_folder(folder, precision)
    assert f"tensor {name} contains NaN, infinity" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_type_that_is_not_known(tmp_path: Path, compile_folder: Compile) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert-bare")
    tensors = read_all(folder) | {"a.pooler.bias": ("F4", np.zeros(4, np.uint8))}
    write_file(folder / "model.safetensors", tensors)
    with pytest.raises(
        ModelWeightsError, match=r"tensor a\.pooler\.bias has type F4; accepted: U64"
    ):
        compile_folder(folder)


def test_rows_longer_than_a_block(
    tiny_folder: Callable[[str], Path], compile_folder: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_all(compile_folder(tiny_folder("qwen2")))
    monkeypatch.setattr("embedlib.models.compiled.tensor_blocks.BLOCK_NUMBERS", 20)
    in_blocks = read_all(compile_folder(tiny_folder("qwen2")))
    for name, (kind, array) in whole.items():
        assert in_blocks[name][0] == kind
        np.testing.assert_array_equal(in_blocks[name][1], array)
