"""int8 on the CPU: quantization, the graph, the file, and the engine directory."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from openvino import opset15 as op

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs.matrices import matrix_rows
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import ConfigError, EngineBuildError, ModelWeightsError
from embedlib.models.compiled import cache as cache_module
from embedlib.models.compiled.cache import compiled_versions, int8_weights
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import model_fingerprint, verify_engine_folder
from embedlib.models.compiled.fidelity_report import (
    OTHERS_PATTERN,
    REPORT_NAME,
    FidelityReport,
    read_report,
    read_reports,
    report_paths,
    write_report,
)
from embedlib.models.compiled.int8 import INT8_GROUPS, dequantize, groups_of, quantize_groups
from embedlib.models.compiled.int8_file import INT8_NAME
from embedlib.models.compiled.role_file import RoleFile
from embedlib.models.compiled.row_scales import SMALLEST_SCALE
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.weights.load import load_weights
from embedlib.testing import check_engine
from embedlib.testing.models.write import write_tiny_model
from tests.waiting import WAIT_SECONDS

Floats = NDArray[np.float32]
WEIGHTS = "model.safetensors"
TEXTS = ("a cat", "two dogs ran")
CONFIG = "0_Transformer/config.json"


# --- numbers --------------------------------------------------------------------------------------

GROUP = INT8_GROUPS["int8"]
groups = pytest.mark.parametrize("group", INT8_GROUPS.values())
matrices = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 40) | st.sampled_from([64, 128, 192, 256])),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


@given(matrices, st.sampled_from(list(INT8_GROUPS.values())))
def test_rounding(weight: Floats, group: int) -> None:
    codes, scales = quantize_groups(weight, group)
    assert codes.dtype == np.int8
    assert scales.dtype == np.float32
    assert scales.shape == (len(weight), groups_of(weight.shape[1], group))
    assert (np.abs(codes.astype(int)) <= 127).all()
    assert (scales >= SMALLEST_SCALE).all()
    grouped = (*scales.shape, -1)
    wide = scales.astype(np.float64)[:, :, None]
    off = codes.reshape(grouped) * wide - weight.reshape(grouped)
    # Half a step, plus the rounding error of the float32 division.
    assert (np.abs(off) <= wide * (0.5 + 127 * 2.0**-22)).all()
    large = np.abs(weight.reshape(grouped)).max(axis=2) > 200 * SMALLEST_SCALE
    assert (np.abs(codes.astype(int)).reshape(grouped).max(axis=2)[large] == 127).all()
    rounded = codes.reshape(grouped) * scales[:, :, None]
    np.testing.assert_array_equal(dequantize(codes, scales), rounded.reshape(weight.shape))
    negative, same = quantize_groups(-weight, group)
    np.testing.assert_array_equal(negative, -codes)
    np.testing.assert_array_equal(same, scales)


def test_rows_of_zeros_and_of_tiny_numbers() -> None:
    codes, scales = quantize_groups(np.array([[0, -0.0], [1e-44, 0], [3, -6]], np.float32), GROUP)
    assert codes.tolist() == [[0, 0], [0, 0], [64, -127]]
    expected = [1, np.float32(SMALLEST_SCALE), np.float32(6) / np.float32(127)]
    assert scales[:, 0].tolist() == expected


@groups
def test_groups_of_a_row_have_scales_of_their_own(group: int) -> None:
    weight = np.ones((1, 2 * group), np.float32)
    weight[0, 0] = 127
    codes, scales = quantize_groups(weight, group)
    assert scales.tolist() == [[1, np.float32(1) / np.float32(127)]]
    assert codes[0, [0, 1, -1]].tolist() == [127, 1, 127]
    assert quantize_groups(weight[:, 1:], group)[1].shape == (1, 1), (
        "it cannot be divided into groups"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_the_scale(bad: float) -> None:
    _, scales = quantize_groups(np.array([[1, bad], [1, 2]], np.float32), GROUP)
    assert np.isfinite(scales).tolist() == [[False], [True]]


# --- the graph ------------------------------------------------------------------------------------


def multiply(vectors: Floats, weight: Floats, group: int = GROUP) -> Floats:
    """Return OpenVINO's product of vectors and an int8 matrix, with the engine's options."""
    codes, scales = quantize_groups(weight, group)
    node = op.parameter([-1, -1, weight.shape[1]], np.float32)
    product = op.matmul(node, matrix_rows({"m": codes, "m_scale": scales}, "m"), False, True)
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
    }
    graph = ov.Model([op.prelu(product, op.constant(np.ones(1, np.float32)))], [node])
    result: Floats = ov.Core().compile_model(graph, "CPU", options)(vectors)[0]
    return result


def emulate(vectors: Floats, weight: Floats, group: int = GROUP, *, rounds: bool) -> Floats:
    """Return it computed in numpy: `group` activations share a scale, or stay float32."""
    rows = dequantize(*quantize_groups(weight, group))
    if not rounds:
        return vectors @ rows.T
    total = np.zeros((*vectors.shape[:-1], len(weight)), np.float32)
    for start in range(0, weight.shape[1], group):
        part = vectors[..., start : start + group]
        scale = np.abs(part).max(-1, keepdims=True) / np.float32(127)
        total += np.rint(part / scale) * scale @ rows[:, start : start + group].T
    return total


def error(found: Floats, expected: Floats) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def sample(rows: int, columns: int) -> tuple[Floats, Floats]:
    dice = np.random.default_rng(columns)
    spread = np.exp(dice.standard_normal(columns))
    vectors = dice.standard_normal((1, 5, columns)) * spread
    return vectors.astype(np.float32), dice.standard_normal((rows, columns)).astype(np.float32)


def rounds_activations() -> bool:
    """Return whether this CPU multiplies int8; otherwise OpenVINO keeps activations in float32."""
    vectors, weight = sample(64, 128)
    return error(multiply(vectors, weight), emulate(vectors, weight, rounds=False)) > 1e-4


@groups
@pytest.mark.parametrize("columns", [128, 200, 384])
def test_products_round_activations_in_groups_or_not_at_all(columns: int, group: int) -> None:
    """On every CPU; which of the two it is depends on the CPU, and on nothing else."""
    vectors, weight = sample(37, columns)
    found = multiply(vectors, weight, group)
    assert error(found, emulate(vectors, weight, group, rounds=rounds_activations())) < 2e-6
    assert error(found, vectors @ weight.T) < 5e-2


@groups
@pytest.mark.parametrize("columns", [64, 100, 128, 200, 384])
def test_rounding_activations_in_groups_is_close_to_not_rounding_them(
    columns: int, group: int
) -> None:
    """What a CPU with VNNI computes, in numpy: the bounds that its exact test goes by."""
    vectors, weight = sample(37, columns)
    rounded = emulate(vectors, weight, group, rounds=True)
    assert 5e-3 < error(rounded, emulate(vectors, weight, group, rounds=False)) < 5e-2
    assert error(rounded, vectors @ weight.T) < 5e-2


@groups
def test_vectors_shorter_than_a_group_stay_float32(group: int) -> None:
    vectors, weight = sample(37, group - 16)
    found = multiply(vectors, weight, group)
    assert error(found, emulate(vectors, weight, group, rounds=False)) < 2e-6


# --- file, engine, engine directory ---------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(engine_cache_dir=tmp_path / "cache")


def compile_int8(files: ModelFiles, config: Config, excluded: tuple[str, ...] = ()) -> Path:
    return compile_model(files, "int8", excluded, config)


def run(files: ModelFiles, weights: Any) -> Floats:
    """Return the vectors of the texts, each computed alone."""
    engine = OpenVINOEngine(files.spec, weights, Layout(threads=1, activation_group=GROUP))
    with Embedder.from_engine(engine, files.spec, load_tokenizer(files)) as embedder:
        vectors: Floats = np.array([embedder.encode(text, prompt="") for text in TEXTS])
    return vectors


@pytest.mark.parametrize("block_numbers", [100, 1 << 16])
@pytest.mark.parametrize("variant", ["bert", "qwen3", "gemma2", "modernbert", "mistral"])
def test_the_file_holds_every_role(
    variant: str,
    block_numbers: int,
    tiny_folder: Callable[[str], Path],
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embedlib.models.compiled.tensor_blocks.BLOCK_NUMBERS", block_numbers)
    files = read_model_files(tiny_folder(variant))
    # The CPU engine computes q, k and v separately, even if a model stores them as one tensor.
    weights = int8_weights(compile_int8(files, config, ("layers.1.v",)))
    floats = load_weights(files)
    num_quantized = 0
    for role, expected in floats.items():
        is_layer = role.startswith("layers.") and expected.ndim == 2
        if is_layer and role != "layers.1.v.weight":
            codes, scales = quantize_groups(expected, GROUP)
            np.testing.assert_array_equal(weights[role], codes)
            np.testing.assert_array_equal(weights[f"{role}_scale"], scales)
            num_quantized += 1
        else:
            assert weights[role].dtype == np.float32
            np.testing.assert_array_equal(weights[role], expected)
    assert num_quantized > 8
    assert len(weights) == len(list(weights)) == len(floats) + num_quantized


@pytest.mark.parametrize("variant", ["bert", "qwen3", "bert-cls-dense"])
def test_vectors_are_those_of_the_rounded_weights(
    variant: str, tiny_folder: Callable[[str], Path], config: Config
) -> None:
    files = read_model_files(tiny_folder(variant))
    # In a tiny model only the inputs of `down` are long enough to be quantized, too.
    kept = tuple(f"layers.{layer}.down" for layer in range(files.spec.encoder.num_layers))
    weights = int8_weights(compile_int8(files, config, kept))
    rounded = {role: np.array(values) for role, values in load_weights(files).items()}
    for role in rounded:
        if f"{role}_scale" in weights:
            rounded[role] = dequantize(weights[role], weights[f"{role}_scale"])
    found = run(files, weights)
    expected = run(files, rounded)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    exact = run(files, load_weights(files))
    assert np.abs(found - exact).max() > 1e-4


@pytest.mark.parametrize("variant", ["bert"])
def test_the_engine_keeps_its_promises(
    variant: str, tiny_folder: Callable[[str], Path], config: Config
) -> None:
    files = read_model_files(tiny_folder(variant))
    engine = OpenVINOEngine(
        files.spec, int8_weights(compile_int8(files, config)), Layout(threads=2)
    )
    # Per element; docs/int8.md explains why it is larger than in float32.
    check_engine(engine, files.spec, tolerance=3e-2)


def test_the_directory(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert-cls-dense")
    files = read_model_files(folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # ml_dtypes is not needed
    made = compile_int8(files, config)
    manifest = verify_engine_folder(made)
    assert manifest.fingerprint == model_fingerprint(files)
    assert (manifest.precision, manifest.excluded) == ("int8", ())
    assert manifest.versions.keys() == {"embedlib", "numpy"}
    assert f"0_Transformer/{WEIGHTS}" in manifest.inputs
    assert {INT8_NAME, CONFIG, "0_Transformer/tokenizer.json"} <= manifest.outputs.keys()
    assert (made / CONFIG).read_bytes() == (folder / CONFIG).read_bytes()
    # It is not mistaken for a model with float weights.
    with pytest.raises(ModelWeightsError, match=f"there is no {WEIGHTS}"):
        load_weights(read_model_files(made))
    sizes = [(made / INT8_NAME).stat().st_size, (folder / "0_Transformer" / WEIGHTS).stat().st_size]
    assert sizes[0] < sizes[1]


def test_what_may_be_kept(tiny_folder: Callable[[str], Path], config: Config) -> None:
    files = read_model_files(tiny_folder("bert"))
    made = compile_int8(files, config, ("layers.1.v", "layers.0.k"))
    assert verify_engine_folder(made).excluded == ("layers.0.k", "layers.1.v")
    assert made != compile_int8(files, config)
    with pytest.raises(ConfigError, match=r"'layers.9.v' is not a linear layer of this model"):
        compile_int8(files, config, ("layers.9.v",))
    with pytest.raises(ConfigError, match="engines compute them as one matrix"):
        compile_model(files, "fp8", ("layers.1.v",), config)


def test_weights_that_are_not_finite(tmp_path: Path, config: Config) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    weights = load_weights(read_model_files(folder))
    place = weights.stored("layers.1.down.weight").start
    with (folder / WEIGHTS).open("r+b") as stream:
        stream.seek(place)
        stream.write(np.array([np.nan], "<f4").tobytes())
    message = f"{WEIGHTS}: tensor layers.1.down.weight contains NaN or infinity"
    with pytest.raises(ModelWeightsError, match=message):
        compile_int8(read_model_files(folder), config)
    assert list((config.engine_cache_path / "compiled").iterdir()) == []


def test_opening_what_is_not_int8(tiny_folder: Callable[[str], Path], config: Config) -> None:
    files = read_model_files(tiny_folder("bert"))
    other = compile_model(files, "bf16", (), config)
    with pytest.raises(EngineBuildError, match="is an engine directory in bf16, not int8; compile"):
        int8_weights(other)
    with pytest.raises(EngineBuildError, match="is not an engine directory"):
        int8_weights(files.folder)
    made = compile_int8(files, config)
    path = made / INT8_NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EngineBuildError, match=f"{INT8_NAME} has .* bytes, expected"):
        int8_weights(made)
    with pytest.raises(ModelWeightsError, match="damaged"):
        RoleFile(path)
    compile_int8(files, config)
    assert int8_weights(made)


DIES = """
import os, signal, sys
from pathlib import Path
from embedlib.config import Config
from embedlib.models.compiled import tensor_blocks
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files

calls = 0
as_numbers = tensor_blocks.as_numbers

def dying(*arguments):
    global calls
    calls += 1
    if calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return as_numbers(*arguments)

tensor_blocks.as_numbers = dying
config = Config(engine_cache_dir=Path(sys.argv[2]))
compile_model(read_model_files(Path(sys.argv[1])), "int8", (), config)
"""


def test_killed_and_repeated(
    tiny_folder: Callable[[str], Path], config: Config, tmp_path: Path
) -> None:
    files = read_model_files(tiny_folder("bert"))
    arguments = [str(files.folder), str(config.engine_cache_path)]
    done = subprocess.run([sys.executable, "-c", DIES, *arguments], timeout=WAIT_SECONDS)
    assert done.returncode == -signal.SIGKILL
    place = config.engine_cache_path / "compiled"
    assert [path for path in place.iterdir() if path.name[0] != "."] == []
    assert list(place.glob(".*.embedlib-part"))
    assert compiled_versions(files, config) == []
    made = compile_int8(files, config)
    assert list(place.iterdir()) == [made]
    whole = compile_int8(files, Config(engine_cache_dir=tmp_path / "whole"))
    assert (made / INT8_NAME).read_bytes() == (whole / INT8_NAME).read_bytes()


# --- what is there --------------------------------------------------------------------------------


def report_of(files: ModelFiles, **fields: Any) -> FidelityReport:
    values: dict[str, Any] = {
        "fingerprint": model_fingerprint(files),
        "engine": "openvino",
        "precision": "int8",
        "excluded": (),
        "reference": "float32",
        "hardware": "x86_64",
        "max_seq_tokens": 512,
        "template": None,
        "num_texts": 1,
        "texts_digest": "0",
        "mean": 0.9995,
        "p1": 0.999,
        "min": 0.99,
        "top10_overlap": None,
        "worst": (),
        "versions": {},
    }
    return FidelityReport(**{**values, **fields})


def test_compiled_versions(
    tmp_path: Path, tiny_folder: Callable[[str], Path], config: Config
) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    files = read_model_files(folder)
    assert compiled_versions(files, config) == []
    plain = compile_int8(files, config)
    kept = compile_int8(files, config, ("layers.1.v",))
    bf16 = compile_model(files, "bf16", (), config)
    compile_int8(read_model_files(tiny_folder("llama")), config)
    shutil.copytree(plain, plain.with_name(".plain"))  # of a process that died before it was named
    write_report(kept, report_of(files, excluded=("layers.1.v",)))
    write_report(plain, report_of(files, excluded=("layers.1.v",)))  # for the other one
    found = {version.folder: version for version in compiled_versions(files, config)}
    assert found.keys() == {plain, kept, bf16}
    assert found[kept].report == report_of(files, excluded=("layers.1.v",))
    assert found[kept].excluded == ("layers.1.v",)
    assert (found[plain].report, found[plain].precision) == (None, "int8")
    assert found[bf16].precision == "bf16"
    # The option for shorter texts changes the spec, but not the fingerprint of the weights.
    shorter = replace(files, spec=replace(files.spec, max_seq_tokens=7))
    assert len(compiled_versions(shorter, config)) == 3

    (kept / INT8_NAME).unlink()
    assert {version.folder for version in compiled_versions(files, config)} == {plain, bf16}
    with (folder / WEIGHTS).open("r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)
        stream.seek(-1, 2)
        stream.write(bytes([last[0] ^ 1]))
    assert compiled_versions(files, config) == []


def test_a_copy_of_a_model_without_its_license_has_the_same_directories(
    tmp_path: Path, config: Config
) -> None:
    """A download by its name lacks what a clone of it has beside the files that are read."""
    folder = write_tiny_model(tmp_path / "model", "bert")
    for name in ("LICENSE", "vocab.txt", "sentencepiece.bpe.model"):
        (folder / name).write_text("a")
    files = read_model_files(folder)
    made = compile_int8(files, config)
    assert "vocab.txt" in verify_engine_folder(made).inputs
    (folder / "LICENSE").unlink()
    (folder / "vocab.txt").unlink()
    (folder / "sentencepiece.bpe.model").write_text("another size")
    assert compile_int8(files, config) == made
    assert [version.folder for version in compiled_versions(files, config)] == [made]


def test_a_directory_has_a_report_for_each_use(
    tiny_folder: Callable[[str], Path], config: Config, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    (model / OTHERS_PATTERN.replace("*", "1")).write_text("{}")  # is not copied
    files = read_model_files(model)
    folder = compile_int8(files, config)
    assert report_paths(folder) == []
    first, other, newer = (
        report_of(files, hardware="x86_64"),
        report_of(files, hardware="aarch64"),
        report_of(files, hardware="aarch64", mean=0.5),
    )
    others = [report_of(files, template={"suffix": "yes"}), report_of(files, engine="another")]
    for report in (first, other, newer, *others):
        write_report(folder, report)
    reports = [version.report for version in compiled_versions(files, config)]
    assert reports[0] == first
    assert newer in reports
    assert other not in reports
    assert len(reports) == len(report_paths(folder)) == 4

    (folder / REPORT_NAME).write_text("{")  # damaged: the next one of another use takes its place
    write_report(folder, replace(newer, mean=0.25))
    assert read_report(folder) is None
    assert [report.mean for report in read_reports(folder) if report.use == newer.use] == [0.25]
    write_report(folder, first)
    assert read_report(folder) == first
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    compile_model(files, "int8", ("layers.0.q",), config, out=out)  # over all reports
    assert report_paths(out) == []


def test_weights_are_read_only_where_a_directory_may_be_the_models(
    tiny_folder: Callable[[str], Path],
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bert = read_model_files(tiny_folder("bert"))
    compile_int8(bert, config)
    monkeypatch.setattr(cache_module, "model_fingerprint", None)
    other = shutil.copytree(bert.folder, tmp_path / "other")
    with (other / WEIGHTS).open("ab") as stream:
        stream.write(b" ")  # everything else is equal
    assert compiled_versions(read_model_files(other), config) == []
    shutil.copy(bert.folder / WEIGHTS, other)
    content = (other / "config.json").read_text()
    (other / "config.json").write_text(content.replace("\n", " ", 1))  # of the same size
    assert compiled_versions(read_model_files(other), config) == []
    assert compiled_versions(read_model_files(tiny_folder("qwen3")), config) == []


def test_the_report_is_no_file_of_the_directory(
    tiny_folder: Callable[[str], Path], config: Config, tmp_path: Path
) -> None:
    files = read_model_files(tiny_folder("bert"))
    out = compile_model(files, "int8", (), config, out=tmp_path / "out")
    write_report(out, report_of(files))
    assert verify_engine_folder(out).precision == "int8"
    assert sorted(out.glob(".*")) == []
    compile_model(files, "int8", ("layers.0.q",), config, out=out)  # replaces it
    assert verify_engine_folder(out).excluded == ("layers.0.q",)
    assert not (out / REPORT_NAME).exists()
    with pytest.raises(EngineBuildError, match=f"cannot write .*{REPORT_NAME}"):
        write_report(tmp_path / "nowhere", report_of(files))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content | {"report_version": 1},
        lambda content: content | {"surprise": 1},
        lambda content: content | {"mean": "high"},
        lambda content: content | {"mean": float("inf")},
        lambda content: content | {"p1": float("nan")},
        lambda content: content | {"min": 1.5},
        lambda content: content | {"min": -1.5},
        lambda content: content | {"num_texts": 1.5},
        lambda content: content | {"num_texts": "200"},
        lambda content: content | {"max_seq_tokens": 0},
        lambda content: content | {"worst": [{"text": "a", "cosine": 2.0}]},
        lambda content: {name: content[name] for name in content if name != "p1"},
        lambda content: [content],
    ],
)
def test_a_report_that_cannot_be_read_is_none(
    change: Callable[[Any], Any], tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    report = report_of(read_model_files(tiny_folder("bert")))
    write_report(tmp_path, report)
    assert read_report(tmp_path) == report
    (tmp_path / REPORT_NAME).write_text(json.dumps(change(report.as_json())))
    assert read_report(tmp_path) is None
    (tmp_path / REPORT_NAME).write_text("{")
    assert read_report(tmp_path) is None
