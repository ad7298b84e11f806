"""Engine directories as models, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder, Reranker
from embedlib.config import Config
from embedlib.engines.compiled.compile import compile_model
from embedlib.errors import ConfigError, EngineUnavailableError, EngineUnsupportedError
from embedlib.models.files import read_model_files
from embedlib.models.tiny_variants import SCORING_VARIANTS

TEXTS = ["a text", "and another one"]


@pytest.fixture
def compiled(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that compiles a tiny model into a folder."""

    def compile_tiny(precision: Any, *, excluded: tuple[str, ...] = (), name: str = "") -> Path:
        files = read_model_files(tiny_folder("bert"))
        config = Config(engine_cache_dir=tmp_path / "cache")
        return compile_model(files, precision, excluded, config, out=tmp_path / (name or precision))

    return compile_tiny


def test_int8(
    compiled: Callable[..., Path], tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    options = {"engine_cache_dir": tmp_path / "cache", "threads": 1}
    with Embedder(tiny_folder("bert"), precision="int8", **options) as from_model:
        expected, print_of_model = from_model.encode(TEXTS), from_model.fingerprint
    with Embedder(tiny_folder("bert"), precision="float32", **options) as reference:
        exact, exact_print = reference.encode(TEXTS), reference.fingerprint
    with Embedder(compiled("int8"), **options) as embedder:
        np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-6)
        assert embedder.fingerprint == print_of_model
    kept = compiled("int8", excluded=("layers.0.v",), name="mixed")
    with Embedder(kept, **options) as mixed:
        assert len({mixed.fingerprint, print_of_model, exact_print}) == 3
        mixed.max_seq_length -= 1
        assert mixed.fingerprint != print_of_model
    assert not np.array_equal(expected, exact)


def test_options_against_an_engine_directory(compiled: Callable[..., Path]) -> None:
    folder = compiled("int8")
    told = r"^precision = 'float32': .*int8 was compiled to int8; give the model it was made from"
    with pytest.raises(ConfigError, match=told):
        Embedder(folder, precision="float32")


@pytest.mark.parametrize("variant", ["qwen3-answers", "qwen3-logit-score"])
def test_a_reranker_that_answers_in_words_in_int8(
    variant: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"engine_cache_dir": tmp_path / "cache", "threads": 1}
    options["template"] = SCORING_VARIANTS[variant].template
    pairs = [("a cat", "two dogs"), ("who ran", "the dog")]
    with Reranker(tiny_folder(variant), precision="float32", **options) as reference:
        right = reference.predict(pairs)
    files = read_model_files(tiny_folder(variant), with_head=variant == "qwen3-logit-score")
    # Also where it was compiled without its head.
    out = compile_model(files, "int8", (), Config(engine_cache_dir=tmp_path / "cache"))
    with Reranker(tiny_folder(variant), precision="int8", **options) as reranker:
        found = reranker.predict(pairs)
    np.testing.assert_allclose(found, right, atol=0.05)
    assert not np.array_equal(found, right)
    if variant == "qwen3-answers":
        with pytest.raises(EngineUnsupportedError, match="has no head"):
            Reranker(out, **options)


def test_bf16_is_a_model_like_any_other(compiled: Callable[..., Path], tmp_path: Path) -> None:
    with Embedder(compiled("bf16"), engine_cache_dir=tmp_path / "cache", threads=1) as embedder:
        assert embedder.encode(TEXTS).shape == (2, 32)
        assert embedder.fingerprint.startswith("folder:")


def test_fp8_where_no_gpu_is(compiled: Callable[..., Path]) -> None:
    folder = compiled("fp8")
    told = r"^a model compiled to fp8 cannot be used here: tensorrt_llm: .*; cuda: "
    with pytest.raises(EngineUnavailableError, match=told):
        Embedder(folder)
    with pytest.raises(ConfigError, match=r"^engine = 'openvino' cannot run .*compiled to fp8"):
        Embedder(folder, engine="openvino")
