"""Engine directories as models, on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedlib import Embedder, Reranker
from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.gpus import Gpu
from embedlib.engines.kind import EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.errors import (
    ConfigError,
    EngineBuildError,
    EngineUnavailableError,
    EngineUnsupportedError,
    ModelWeightsError,
)
from embedlib.fidelity.model import open_model
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights import file_hashes
from embedlib.models.weights.file_hashes import sha256
from embedlib.session import loading
from embedlib.session.loading import load_model
from embedlib.testing import FakeEngine
from embedlib.testing.models.table import SCORING_VARIANTS
from embedlib.testing.models.write import write_tiny_model
from tests.machines import CUDA, H200, fake_machine

TEXTS = ["a text", "and another one"]


@pytest.fixture
def compiled(
    tiny_folder: Callable[[str], Path], tmp_path: Path, new_cache: Path
) -> Callable[..., Path]:
    """Return a function that compiles a tiny model into a folder."""

    def compile_tiny(precision: Any, *, excluded: tuple[str, ...] = (), name: str = "") -> Path:
        files = read_model_files(tiny_folder("bert"))
        config = Config(engine_cache_dir=new_cache)
        return compile_model(files, precision, excluded, config, out=tmp_path / (name or precision))

    return compile_tiny


def test_int8(
    compiled: Callable[..., Path], tiny_folder: Callable[[str], Path], new_cache: Path
) -> None:
    options = {"engine_cache_dir": new_cache, "threads": 1}
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
    variant: str, tiny_folder: Callable[[str], Path], new_cache: Path
) -> None:
    options: dict[str, Any] = {"engine_cache_dir": new_cache, "threads": 1}
    options["template"] = SCORING_VARIANTS[variant].template
    pairs = [("a cat", "two dogs"), ("who ran", "the dog")]
    with Reranker(tiny_folder(variant), precision="float32", **options) as reference:
        right = reference.predict(pairs)
    files = read_model_files(tiny_folder(variant), with_head=variant == "qwen3-logit-score")
    # Also where it was compiled without its head.
    out = compile_model(files, "int8", (), Config(engine_cache_dir=new_cache))
    with Reranker(tiny_folder(variant), precision="int8", **options) as reranker:
        found = reranker.predict(pairs)
    np.testing.assert_allclose(found, right, atol=0.05)
    assert not np.array_equal(found, right)
    if variant == "qwen3-answers":
        with pytest.raises(EngineUnsupportedError, match="has no head"):
            Reranker(out, **options)


def test_bf16_is_a_model_like_any_other(compiled: Callable[..., Path], new_cache: Path) -> None:
    with Embedder(compiled("bf16"), engine_cache_dir=new_cache, threads=1) as embedder:
        assert embedder.encode(TEXTS).shape == (2, 32)
        assert embedder.fingerprint.startswith("folder:")


def test_fp8_where_no_gpu_is(compiled: Callable[..., Path]) -> None:
    folder = compiled("fp8")
    told = r"^a model compiled to fp8 cannot be used here: tensorrt_llm: .*; cuda: "
    with pytest.raises(EngineUnavailableError, match=told):
        Embedder(folder)
    with pytest.raises(ConfigError, match=r"^engine = 'openvino' cannot run .*compiled to fp8"):
        Embedder(folder, engine="openvino")


PutOnHub = Callable[[str, Path], dict[str, Any]]


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_prompts_known_by_name_are_those_of_the_engine_directory(
    precision: Any,
    tiny_folder: Callable[[str], Path],
    put_on_hub: PutOnHub,
    tmp_path: Path,
    new_cache: Path,
) -> None:
    name, cache = "BAAI/bge-small-en-v1.5", {"engine_cache_dir": new_cache}
    options = {**put_on_hub(name, tiny_folder("bert")), "threads": 1, **cache}
    files = open_model(name, Config(**options)).files
    out = compile_model(files, precision, (), Config(**cache), out=tmp_path / "out")
    with Embedder(out, **cache, threads=1) as compiled, Embedder(name, **options) as by_name:
        assert compiled.prompts == by_name.prompts != {}
        found, expected = (one.encode_query("a text") for one in (compiled, by_name))
        assert found @ expected > 0.999
        assert abs(compiled.encode("a text", prompt="") @ expected) < 0.999
        commit, _, _ = by_name.fingerprint.partition(":")
        assert len(commit) == 40
        assert compiled.fingerprint.startswith(f"{commit}:")
    with Embedder(name, **options, precision="float32") as plain:
        assert plain.fingerprint != compiled.fingerprint
    if precision == "int8":
        with Embedder(name, **options, precision="int8") as cached:
            assert cached.fingerprint == compiled.fingerprint
            np.testing.assert_array_equal(cached.encode_query("a text"), found)


def test_the_template_known_by_name_is_that_of_the_engine_directory(
    tiny_folder: Callable[[str], Path], put_on_hub: PutOnHub, tmp_path: Path, new_cache: Path
) -> None:
    name, cache = "Qwen/Qwen3-Reranker-0.6B", {"engine_cache_dir": new_cache}
    options = {**put_on_hub(name, tiny_folder("qwen3-answers")), "threads": 1, **cache}
    files = open_model(name, Config(**options)).files
    out = compile_model(files, "bf16", (), Config(**cache), out=tmp_path / "out")
    pairs = [("a cat", "two dogs"), ("who ran", "the dog")]
    with Reranker(out, **cache, threads=1) as compiled, Reranker(name, **options) as by_name:
        np.testing.assert_allclose(compiled.predict(pairs), by_name.predict(pairs), atol=0.02)


def test_an_engine_directory_knows_the_answers_of_a_reranker(
    tiny_folder: Callable[[str], Path], tmp_path: Path, new_cache: Path
) -> None:
    variant = "qwen3-logit-score"
    options: dict[str, Any] = {"engine_cache_dir": new_cache, "threads": 1}
    options["template"] = SCORING_VARIANTS[variant].template
    files = read_model_files(tiny_folder(variant), with_head=True, template=options["template"])
    out = compile_model(files, "bf16", (), Config(), out=tmp_path / "out")
    pairs = [("a cat", "two dogs"), ("who ran", "the dog")]
    with Reranker(out, **options) as compiled, Reranker(tiny_folder(variant), **options) as plain:
        np.testing.assert_allclose(compiled.predict(pairs), plain.predict(pairs), atol=0.02)


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_an_engine_directory_has_the_heads_for_tokens(
    precision: Any, tmp_path: Path, new_cache: Path
) -> None:
    folder = write_tiny_model(tmp_path / "m3", "xlm-roberta")
    rng = np.random.default_rng(0)
    for stem, num_rows in (("sparse_linear", 1), ("colbert_linear", 32)):
        weight = rng.standard_normal((num_rows, 32), dtype=np.float32)
        head = {"weight": weight, "bias": np.full(num_rows, 9, np.float32)}
        save_file(head, folder / f"{stem}.safetensors")
    cache = {"engine_cache_dir": new_cache}
    out = compile_model(read_model_files(folder), precision, (), Config(), out=tmp_path / "out")
    with Embedder(out, **cache, threads=1) as compiled, Embedder(folder, threads=1) as plain:
        found, expected = (
            one.encode("a cat", prompt="", output_value="sparse") for one in (compiled, plain)
        )
        assert found == pytest.approx(expected, abs=0.3)
        assert found
        found, expected = (
            one.encode("a cat", prompt="", output_value="multi_vector") for one in (compiled, plain)
        )
        assert (found * expected).sum(axis=1).min() > 0.99


def test_an_engine_without_memory_for_the_weights(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("embedlib.session.loading.make_engine", fail)
    with pytest.raises(ModelWeightsError, match=r"the weights need 0\.0 GiB of memory"):
        Embedder(tiny_folder("bert"))


TOO_NEW = "device = 'cuda:0': torch sees no NVIDIA GPU"
BUILT = "engine cuda: precision bf16 failed on this device"


def refusing(machine: Machine, reason: str = TOO_NEW) -> Machine:
    """Return a machine whose driver lists GPUs that no library can use."""

    def ask(check: Callable[[], None]) -> None:
        raise EngineUnavailableError(reason)

    return replace(machine, ask_library=ask)


def skipped(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that an engine is not used."""
    records = [each for each in caplog.records if each.levelno == logging.WARNING]
    return [each.getMessage() for each in records if "is not used" in each.getMessage()]


def test_auto_skips_a_gpu_that_torch_cannot_use(
    tiny_folder: Callable[[str], Path], new_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[None] = []

    def probe() -> list[Gpu]:
        asked.append(None)
        return [H200]

    machine = refusing(fake_machine(packages=CUDA, probe=probe))
    config = Config(engine_cache_dir=new_cache, threads=1, prepare=False)
    model = load_model(tiny_folder("bert"), config, machine=machine)
    model.engine.close()
    assert (model.plan.engine, model.precision) == ("openvino", "float32")
    assert skipped(caplog) == [f"engine cuda is not used: {TOO_NEW}"]
    assert not (new_cache / "compiled").exists()
    assert len(asked) == 1
    # The second engine and other precisions are planned on the CPU as well.
    assert model.machine.refused == {"cuda": TOO_NEW}
    model.lower_tokens().close()


@pytest.mark.parametrize("options", [{"engine": "cuda"}, {"device": "cuda:0"}, {"device": "all"}])
def test_an_engine_or_a_device_that_is_named_is_not_skipped(
    options: dict[str, Any], tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    machine = refusing(fake_machine(H200, packages=CUDA))
    config = Config(engine_cache_dir=tmp_path, **options)
    with pytest.raises(EngineUnavailableError, match=f"^{TOO_NEW}$"):
        load_model(tiny_folder("bert"), config, machine=machine)
    assert not list(tmp_path.iterdir())


def test_auto_skips_an_engine_that_cannot_be_built(
    tiny_folder: Callable[[str], Path],
    new_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
        if plan.engine == "cuda":
            raise EngineBuildError(BUILT)
        return make_engine(plan, files, config)

    monkeypatch.setattr("embedlib.session.loading.make_engine", make)
    machine = fake_machine(H200, packages=CUDA)
    config = Config(engine_cache_dir=new_cache, threads=1, prepare=False)
    model = load_model(tiny_folder("bert"), config, machine=machine)
    model.engine.close()
    assert model.plan.engine == "openvino"
    assert skipped(caplog) == ["engine cuda is not used: precision bf16 failed on this device"]
    with pytest.raises(EngineBuildError, match=f"^{BUILT}"):
        load_model(tiny_folder("bert"), replace(config, engine="cuda"), machine=machine)


def test_what_does_not_fit_the_cpu_either_says_why_the_gpu_was_skipped(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    memory = {"/proc/meminfo": "MemTotal:  2048 kB\nMemAvailable:  1024 kB\n"}
    machine = refusing(fake_machine(H200, packages=CUDA, files=memory))
    config = Config(engine_cache_dir=tmp_path, prepare=False)
    with pytest.raises(
        EngineUnavailableError, match=f"needs about .*; skipped was cuda: {TOO_NEW}$"
    ):
        load_model(tiny_folder("bert"), config, machine=machine)
    # Where no engine is left, its list of reasons has that one.
    with pytest.raises(EngineUnavailableError, match=f"missing; .*; cuda: {TOO_NEW}$") as raised:
        load_model(tiny_folder("bert"), replace(config, precision="fp8"), machine=machine)
    assert str(raised.value).count(TOO_NEW) == 1


def test_the_weights_are_read_for_one_fingerprint_where_nothing_can_be_stored(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def reading(path: Path, *args: Any) -> str:
        read.append(path)
        return sha256(path, *args)

    no_folder = tmp_path / "file"
    no_folder.touch()
    monkeypatch.setattr(loading, "make_engine", lambda *_: FakeEngine())
    monkeypatch.setattr(file_hashes, "sha256", reading)
    model = load_model(tiny_folder("bert"), Config(engine_cache_dir=no_folder))
    found = {model.fingerprint({}), model.fingerprint({}), *model.fingerprints({})}
    assert (len(found), len(read)) == (1, 1)
