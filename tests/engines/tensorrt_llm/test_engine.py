"""The whole path from text to vector, with the stand-in of TensorRT-LLM."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Classifier, Embedder, Reranker
from embedlib.config import Config
from embedlib.engines.base import Batch, Lane, why_lost
from embedlib.engines.select import plan_engine
from embedlib.errors import (
    CloseTimeoutError,
    ConfigError,
    EngineBuildError,
    EngineOutOfMemoryError,
    EngineRunError,
    EngineUnavailableError,
    EngineUnsupportedError,
    ModelWeightsError,
)
from embedlib.fidelity import FidelityTexts, verify
from embedlib.models.compiled.cache import compiled_versions
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import MANIFEST_NAME
from embedlib.models.compiled.fidelity_report import write_report
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.testing import check_engine, make_batch
from embedlib.vectors.similarity import normalize
from tests.waiting import WAIT_SECONDS

TEXTS = [
    "a short text",
    "Ein anderer Text, mit Wörtern und Zahlen: 12, 13.",
    "x",
    "one more, a little longer than the others are, so that lengths differ",
] * 3
LIMITS = {"mistral": 6, "qwen3": 32}
"""By variant: a length limit at which the model's windows have no effect."""

Array = NDArray[np.float32]
Make = Callable[..., Embedder]


def cosines(vectors: Array, expected: Array) -> Array:
    cosine: Array = (normalize(vectors) * normalize(expected)).sum(1)
    return cosine


@pytest.fixture
def make(gpu: Any, tiny_folder: Callable[[str], Path], caches: Path) -> Make:
    """Return a function that creates an Embedder of a tiny model."""

    def make(variant: str, **options: Any) -> Embedder:
        defaults = {
            "engine": "tensorrt_llm",
            "engine_cache_dir": caches,
            "max_seq_tokens": LIMITS.get(variant),
            "on_truncate": "ignore",
            "threads": 1,
        }
        return Embedder(tiny_folder(variant), **(defaults | options))

    return make


@pytest.fixture
def compiled(gpu: Any, tiny_folder: Callable[[str], Path], caches: Path) -> Callable[..., Any]:
    """Return a function that compiles a tiny model and creates the engine."""

    def compile_and_load(variant: str, change: Callable[[Path], None] | None = None) -> Any:
        from embedlib.engines.tensorrt_llm.engine import TensorRTLLMEngine

        files = read_model_files(tiny_folder(variant))
        folder = compile_model(files, "fp8", (), Config(engine_cache_dir=caches))
        if change is not None:
            copy = caches / f"{folder.name}-{threading.get_ident()}-changed"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            folder = copy
            change(folder)
        return TensorRTLLMEngine(files, folder, cache_dir=caches / "tensorrt_llm")

    return compile_and_load


@pytest.mark.parametrize(
    ("variant", "precision"),
    [
        ("mistral", "bf16"),
        ("mistral", "fp8"),
        ("qwen3", "bf16"),
        ("qwen3", "fp8"),
        ("llama-bidirectional", "bf16"),
        ("bert-cls-dense", "fp8"),
        ("xlm-roberta", "bf16"),
    ],
)
def test_vectors_are_those_of_the_reference(variant: str, precision: str, make: Make) -> None:
    with make(variant, engine="openvino") as reference:
        expected = reference.encode(TEXTS, prompt="")
    with make(variant, precision=precision) as embedder:
        vectors = embedder.encode(TEXTS, prompt="")
        query = embedder.encode(TEXTS[0], prompt="")
    assert vectors.dtype == np.float32
    # Random weights make a model more non-linear than trained ones do.
    assert cosines(vectors, expected).min() > (0.9995 if precision == "bf16" else 0.985)
    assert cosines(query[None], expected[:1]).min() > (0.9995 if precision == "bf16" else 0.985)


@pytest.mark.parametrize("variant", ["llama-reward", "roberta-emotions"])
def test_a_classifier(variant: str, gpu: Any, tmp_path: Path, caches: Path) -> None:
    from embedlib.testing.models.write import write_tiny_model

    folder = write_tiny_model(tmp_path / "model", variant)
    texts = TEXTS[:3]
    with Classifier(folder, engine="openvino", threads=1, engine_cache_dir=caches) as reference:
        expected = reference.predict(texts, raw_scores=True)
    with Classifier(
        folder, engine="tensorrt_llm", precision="bf16", engine_cache_dir=caches
    ) as classifier:
        scores = classifier.predict(texts, raw_scores=True)
    for row, wanted in zip(scores, expected, strict=True):
        reached = {entry["label"]: entry["score"] for entry in row}
        assert reached == pytest.approx(
            {entry["label"]: entry["score"] for entry in wanted}, abs=0.05
        )


def test_both_lanes_and_any_batch(compiled: Callable[..., Any]) -> None:
    engine = compiled("llama")
    spec = engine._llm._encoder_executor.model_engine.model.source.files.spec
    check_engine(engine, spec, tolerance=2e-2)
    assert any(len(sequences) > 1 for sequences, _ in engine_calls())


def engine_calls() -> list[Any]:
    import tensorrt_llm

    calls: list[Any] = tensorrt_llm.LLM.made[-1].calls
    return calls


def test_what_the_library_is_asked_for(make: Make, gpu: Any, caches: Path) -> None:
    with make("llama", precision="fp8", max_batch_tokens=256) as embedder:
        llm = gpu.LLM.made[-1]
        assert llm.args.encode_only
        assert llm.args.skip_tokenizer_init
        assert llm.args.telemetry_config == {"disabled": True}
        assert llm.args.max_num_tokens == 256
        assert llm.args.max_seq_len == embedder.spec.max_seq_tokens
        embedder.encode(TEXTS)
        embedder.encode(TEXTS[0])
        assert all(type(ids) is list for sequences, _ in llm.calls for ids in sequences)
        assert llm.thread.name == "embedlib-tensorrt-llm"
        assert (1, 16) in llm._encoder_executor.model_engine.replayed, "a query runs in a graph"
    kept = {
        name: llm.environment[name]
        for name in (
            "TLLM_AUTOTUNER_CACHE_PATH",
            "TRITON_CACHE_DIR",
            "TORCHINDUCTOR_CACHE_DIR",
        )
    }
    assert len(set(kept.values())) == 3
    for path in kept.values():
        assert Path(path).parent == caches / "tensorrt_llm" / "1.3.0rc29" / "NVIDIA-H200"
    assert llm.environment["TRTLLM_NO_USAGE_STATS"] == "1"
    assert "TLLM_AUTOTUNER_CACHE_PATH" not in os.environ


def test_a_graph_is_not_given_the_next_query_before_it_has_read_its_own(
    compiled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = compiled("llama")
    copied, launched = engine._launched, SimpleQueue()
    monkeypatch.setattr(engine, "_launched", launched)  # so that no other thread waits for the GPU
    lengths = (5, 3, 60, 60, 4)
    sent = [engine.submit(packed([length]), lambda: None) for length in lengths]
    assert [launched.get(timeout=WAIT_SECONDS) for _ in sent] == sent
    assert [pending.error for pending in sent] == [None] * len(sent)
    assert len(engine._llm._encoder_executor.model_engine.replayed) == len(lengths)
    monkeypatch.setattr(engine, "_launched", copied)
    engine.close()


def packed(lengths: list[int]) -> Batch:
    return make_batch([[5] * length for length in lengths], Lane.QUERY)


def test_close_waits_for_a_limited_time(compiled: Callable[..., Any]) -> None:
    engine, may_end, begun = compiled("llama"), threading.Event(), threading.Event()

    def on_done() -> None:
        begun.set()
        assert may_end.wait(WAIT_SECONDS)

    engine.submit(packed([5]), on_done)
    assert begun.wait(WAIT_SECONDS)
    for _ in range(2):
        with pytest.raises(CloseTimeoutError, match="'embedlib-tensorrt-llm-copies' still runs"):
            engine.close(timeout=0.1)
    assert engine._llm is not None
    may_end.set()
    engine.close()
    assert engine._llm is None


def test_a_cache_of_the_users_own(
    make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = str(tmp_path / "mine")
    monkeypatch.setenv("TLLM_AUTOTUNER_CACHE_PATH", mine)
    make("llama", precision="bf16").close()
    assert gpu.LLM.made[-1].environment["TLLM_AUTOTUNER_CACHE_PATH"] == mine
    assert os.environ["TLLM_AUTOTUNER_CACHE_PATH"] == mine


def test_a_second_model_leaves_the_first_its_tuning_results(make: Make, tmp_path: Path) -> None:
    from tensorrt_llm._torch.autotuner import AutoTuner

    options = {"precision": "fp8", "engine_cache_dir": tmp_path}
    for variant in ("llama", "bert-cls-dense"):
        make(variant, **options).close()
        AutoTuner.get().tactics.clear()  # a new process has none
    with make("llama", **options) as first, make("bert-cls-dense", **options):
        first.encode(TEXTS)
        assert AutoTuner.get().missed == set()


def test_tuning_results_of_another_gpu_are_not_read(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    options = {"precision": "fp8", "engine_cache_dir": tmp_path}
    make("llama", **options).close()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: "NVIDIA L40S")
    make("llama", **options).close()
    files = (tmp_path / "tensorrt_llm").rglob("autotuner.json")
    assert {path.parent.name for path in files} == {"NVIDIA-H200", "NVIDIA-L40S"}


@pytest.mark.parametrize("content", ["", '{"metadata": {'])
def test_tuning_results_of_a_process_that_was_killed(
    content: str, make: Make, tmp_path: Path
) -> None:
    options = {"precision": "fp8", "engine_cache_dir": tmp_path}
    make("llama", **options).close()
    [path] = (tmp_path / "tensorrt_llm").rglob("autotuner.json")
    written = path.read_text()
    path.write_text(content)
    make("llama", **options).close()
    assert path.read_text() == written


def test_a_cache_that_cannot_be_written(
    make: Make, gpu: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorrt_llm").touch()  # a file where a folder should be
    with make("llama", precision="fp8", engine_cache_dir=tmp_path) as embedder:
        assert embedder.encode("a text").shape == (32,)
    assert "kernels are not cached: " in caplog.text
    assert "engine_cache_dir" in caplog.text
    assert "TRITON_CACHE_DIR" not in gpu.LLM.made[-1].environment


def test_the_limits_are_those_the_library_has(
    make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm._torch.pyexecutor import ModelEngine

    original = ModelEngine.__init__

    def smaller(self: Any, *args: Any) -> None:
        original(self, *args)
        self.batch_size, self.max_num_tokens = 2, 64

    monkeypatch.setattr(ModelEngine, "__init__", smaller)
    with make("llama", precision="bf16") as embedder:
        assert embedder.encode(TEXTS).shape == (len(TEXTS), 32)
        sizes = [len(sequences) for sequences, _ in gpu.LLM.made[-1].calls]
        assert max(sizes) == 2
        tokens = [sum(map(len, sequences)) for sequences, _ in gpu.LLM.made[-1].calls]
        assert max(tokens) <= 64


def test_no_room_for_the_longest_sequence(
    make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm._torch.pyexecutor import ModelEngine

    original = ModelEngine.__init__

    def smaller(self: Any, *args: Any) -> None:
        original(self, *args)
        self.max_num_tokens = 10

    monkeypatch.setattr(ModelEngine, "__init__", smaller)
    told = r"^engine tensorrt_llm has max_num_tokens = 10, less than this model's 64 tokens; max_"
    with pytest.raises(EngineBuildError, match=told):
        make("llama", precision="bf16")
    assert gpu.LLM.made[-1]._encoder_executor is None, "the GPU's memory is free again"


def test_closing_frees_the_model(make: Make, gpu: Any) -> None:
    embedder = make("llama", precision="bf16")
    llm = gpu.LLM.made[-1]
    model = weakref.ref(llm._encoder_executor.model_engine.model)
    embedder.encode(TEXTS)
    embedder.close()
    embedder.close()
    assert llm._encoder_executor is None
    assert model() is None
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("embedlib-tensorrt-llm") for name in names)
    with pytest.raises(RuntimeError, match="shut down"):
        llm.encode([[1, 2]])


@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        ("OutOfMemoryError", "CUDA out of memory", EngineOutOfMemoryError),
        ("RuntimeError", "CUDA error: out of memory", EngineOutOfMemoryError),
        ("RuntimeError", "an illegal memory access", EngineRunError),
    ],
)
def test_a_batch_that_fails(
    error: str,
    told: str,
    kind: type[Exception],
    make: Make,
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    def fail(*args: Any, **kwargs: Any) -> None:
        kinds: dict[str, type[Exception]] = {
            "OutOfMemoryError": torch.OutOfMemoryError,
            "RuntimeError": RuntimeError,
        }
        raise kinds[error](f"{told}\nsee the manual")

    with make("llama", precision="bf16") as embedder:
        with monkeypatch.context() as patch:
            patch.setattr(gpu.LLM, "encode", fail)
            with pytest.raises(kind, match=f"engine tensorrt_llm: .*{told}$"):
                embedder.encode("a text")
        assert embedder.encode("a text").shape == (32,)


@pytest.mark.parametrize("at_launch", [False, True])
def test_a_lost_gpu_is_told(
    at_launch: bool,
    make: Make,
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import torch

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nsee the manual")

    with make("llama", precision="bf16") as embedder:
        monkeypatch.setattr(torch.cuda, "empty_cache", fail)
        assert why_lost(embedder._model.engine) is None
        monkeypatch.setattr(torch.cuda.Event, "synchronize", fail)
        monkeypatch.setattr(torch.cuda.Stream, "synchronize", fail)
        if at_launch:
            monkeypatch.setattr(gpu.LLM, "encode", fail)
        with pytest.raises(EngineRunError, match="tensorrt_llm: CUDA error: an illegal memory"):
            embedder.encode(["a text", "another one"])
        told = r"the GPU is lost \(CUDA error: an illegal .*\); restart the process$"
        with pytest.raises(EngineRunError, match=f"engine tensorrt_llm: {told}"):
            embedder.encode(["a text", "another one"])
        lost = why_lost(embedder._model.engine)
        assert lost is not None
        assert re.match(told, lost)
        given_back: list[int] = []
        monkeypatch.setattr(embedder._model.engine, "_give_back", lambda: given_back.append(1))
    assert given_back == [1], "it is closed all the same"
    told = "closing the GPU: CUDA error: an illegal memory access was encountered"
    assert told in [record.getMessage() for record in caplog.records]


def test_the_whole_batch_is_split_where_memory_is_short(
    make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    encode = gpu.LLM.encode

    def fail(self: Any, inputs: Any, return_raw_logits: bool = False, **kwargs: Any) -> Any:
        if sum(map(len, inputs)) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encode(self, inputs, return_raw_logits=return_raw_logits, **kwargs)

    monkeypatch.setattr(gpu.LLM, "encode", fail)
    with make("llama", precision="bf16") as embedder:
        assert embedder.encode(TEXTS).shape == (len(TEXTS), 32)


@pytest.mark.parametrize("is_explained", [False, True])
def test_loading_without_enough_memory(
    is_explained: bool, make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT-LLM chains its own exception if a part of its executor does not fit."""
    import torch

    def fail(*args: Any, **kwargs: Any) -> None:
        error = torch.OutOfMemoryError("CUDA out of memory")
        if is_explained:
            raise RuntimeError(
                "Executor creation failed due to insufficient GPU memory.\nreduce max_num_tokens"
            ) from error
        raise error

    monkeypatch.setattr(gpu.LLM, "__init__", fail)
    with pytest.raises(EngineBuildError, match=r"too little memory for .*; a smaller max_batch_"):
        make("llama", precision="bf16")


def test_an_engine_directory(
    make: Make, tiny_folder: Callable[[str], Path], tmp_path: Path, gpu: Any
) -> None:
    files = read_model_files(tiny_folder("llama"))
    out = compile_model(files, "fp8", ("layers.1.down",), Config(), out=tmp_path / "out")
    with make("llama", precision="fp8", engine_cache_dir=tmp_path) as plain:
        expected = plain.encode(TEXTS)
    with Embedder(out, engine_cache_dir=tmp_path) as embedder:
        assert gpu.LLM.made[-1].args.model == str(out)
        vectors = embedder.encode(TEXTS)
    assert cosines(vectors, expected).min() > 0.98
    assert not np.array_equal(vectors, expected), "a layer is not in FP8"
    layers = gpu.LLM.made[-1]
    assert layers.args.model_kwargs["architectures"] == ["EmbedlibModel_out"]


def test_precisions_have_fingerprints_of_their_own(make: Make, caches: Path) -> None:
    prints = set()
    for options in ({"engine": "openvino"}, {"precision": "bf16"}, {"precision": "fp8"}):
        with make("llama", **options) as embedder:
            prints.add(embedder.fingerprint)
    assert len(prints) == 3


def test_an_engine_directory_and_wrong_options(
    tiny_folder: Callable[[str], Path], tmp_path: Path, gpu: Any
) -> None:
    files = read_model_files(tiny_folder("llama"))
    out = compile_model(files, "fp8", (), Config(), out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"^precision = 'bf16': .*out was compiled to fp8; give"):
        Embedder(out, precision="bf16")
    told = r"^engine = 'openvino' cannot run .*out, which was compiled to fp8; give the model"
    with pytest.raises(ConfigError, match=told):
        Embedder(out, engine="openvino")


def test_a_damaged_engine_directory(
    tiny_folder: Callable[[str], Path], tmp_path: Path, gpu: Any
) -> None:
    files = read_model_files(tiny_folder("llama"))
    out = compile_model(files, "fp8", (), Config(), out=tmp_path / "out")
    weights = out / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(EngineBuildError, match=r"model\.safetensors is damaged .*compile the mod"):
        Embedder(out)
    weights.write_bytes(content[:-1])
    with pytest.raises(EngineBuildError, match=r"has \d+ bytes, expected \d+; compile the model"):
        Embedder(out)
    (out / MANIFEST_NAME).write_text("{")
    with pytest.raises(EngineBuildError, match=r"embedlib\.json: is damaged"):
        Embedder(out)


def edit_tensors(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


NORM = "model.layers.0.input_layernorm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda t: t.pop(NORM), rf"has no tensor {NORM}; compile the model again$"),
        (
            lambda t: t.pop(DOWN + "_scale"),
            rf"has no tensor {DOWN}_scale; compile the model again$",
        ),
        (lambda t: t.pop("model.embed_tokens.weight"), r"has no tensor embed_tokens\.weight"),
        (
            lambda t: t.update(more=t[NORM].clone()),
            r"^the engine directory has a tensor more that the model does not use; compile",
        ),
        (
            lambda t: t.update({NORM: t[NORM][:4].clone()}),
            r"layers\.0\.attention_norm\.weight has shape \[4\]; expected: \[32\]",
        ),
    ],
)
def test_every_tensor_is_taken(
    edit: Callable[[dict[str, Any]], None], told: str, compiled: Callable[..., Any]
) -> None:
    with pytest.raises(ModelWeightsError, match=told):
        compiled("llama", lambda folder: edit_tensors(folder, edit))


@pytest.mark.parametrize("name", ["weight", "bias", "weight_scale"])
def test_every_parameter_is_filled(
    name: str, compiled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm._torch.modules.linear import Linear

    copy = Linear._copy

    def forget(self: Any, which: str, parts: Any) -> None:
        if which != name:
            copy(self, which, parts)

    monkeypatch.setattr(Linear, "_copy", forget)
    with pytest.raises(ModelWeightsError, match=rf"^the parameter \S+\.{name} was not filled from"):
        compiled("llama")


MOVED = {
    "attention.attention": "modules.attention",
    "attention.qk_norm_attention": "modules.qk_norm_attention",
    "attention.backends.interface": "attention_backend.interface",
}
"""Modules of TensorRT-LLM, and their former paths."""


def test_a_version_from_before_its_parts_moved(
    make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for new, old in MOVED.items():
        module = importlib.import_module(f"tensorrt_llm._torch.{new}")
        monkeypatch.setitem(sys.modules, f"tensorrt_llm._torch.{old}", module)
    for new in MOVED:
        monkeypatch.setitem(sys.modules, f"tensorrt_llm._torch.{new}", None)
    with make("qwen3", precision="bf16") as embedder:
        assert embedder.encode(TEXTS, prompt="").shape == (len(TEXTS), 32)


def test_a_version_that_keeps_its_parts_elsewhere(
    make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("attention.attention", "modules.attention"):
        monkeypatch.setitem(sys.modules, f"tensorrt_llm._torch.{name}", None)
    told = (
        r"^tensorrt-llm 1\.3\.0rc29 cannot be loaded: .*; this engine was written for 1\.3\.0rc22"
    )
    with pytest.raises(EngineUnavailableError, match=told):
        make("llama", precision="bf16")


@pytest.mark.parametrize("what", ["encode", "encode_only", "return_raw_logits"])
def test_a_version_without_what_is_called(
    what: str, make: Make, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm.llmapi import TorchLlmArgs

    if what == "encode":
        monkeypatch.delattr(gpu.LLM, "encode")
    elif what == "encode_only":
        monkeypatch.setattr(TorchLlmArgs, "model_fields", {})
    else:
        monkeypatch.setattr(gpu.LLM, "encode", lambda self, inputs: None)
    told = r"has no LLM\.encode with encode_only and return_raw_logits; install 1\.3\.0rc22 to 1\.4"
    with pytest.raises(EngineUnavailableError, match=told):
        make("llama", precision="bf16")


def test_a_pair_with_token_types_is_refused(gpu: Any, tmp_path: Path) -> None:
    from embedlib.testing.models.write import write_tiny_model

    folder = write_tiny_model(tmp_path / "model", "bert-reranker")
    with pytest.raises(EngineUnsupportedError, match="pairs of texts with token types"):
        Reranker(folder, engine="tensorrt_llm")


def test_a_head_is_as_wide_as_the_model_says(
    compiled: Callable[..., Any],
) -> None:
    def widen(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"head_dim": 4}))

    with pytest.raises(EngineUnsupportedError, match=r"computes head_dim = 4, .* has 8; pass"):
        compiled("llama", widen)


def test_the_longest_sequence_is_not_looked_for_in_config_json(
    compiled: Callable[..., Any],
) -> None:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"max_position_embeddings": 8}))

    engine = compiled("llama", change)
    model_engine = engine._llm._encoder_executor.model_engine
    assert model_engine.max_seq_len == model_engine.model.source.files.spec.max_seq_tokens == 64
    engine.close()


def test_it_is_not_asked_for_what_it_refuses(
    gpu: Any, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    from embedlib.engines.tensorrt_llm.engine import TensorRTLLMEngine

    files: ModelFiles = read_model_files(tiny_folder("gemma2"))
    with pytest.raises(EngineUnsupportedError, match="attention_cap"):
        TensorRTLLMEngine(files, tmp_path, cache_dir=tmp_path)
    spec = replace(files.spec, modules=())
    with pytest.raises(EngineUnsupportedError, match="vectors per token"):
        TensorRTLLMEngine(replace(files, spec=spec), tmp_path, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ("fp8", "float32")),
        ({"reference": "bf16"}, ("fp8", "bf16")),
    ],
)
def test_the_one_command_that_settles_it(
    gpu: Any,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    arguments: Any,
    expected: tuple[str, str],
) -> None:
    texts = FidelityTexts(("who ran",), ("two dogs ran",) * 99)
    options = Config(engine_cache_dir=tmp_path, threads=1)
    config = replace(options, engine="tensorrt_llm")
    report = verify(tiny_folder("llama"), texts=texts, config=config, **arguments).report
    assert (report.engine, report.hardware) == ("tensorrt_llm", "NVIDIA H200")
    assert (report.precision, report.reference) == expected
    assert 0.99 < report.mean < 1
    files = read_model_files(tiny_folder("llama"))
    [version] = [v for v in compiled_versions(files, options) if v.precision == "fp8"]
    assert version.report == report
    # The tiny model's FP8 vectors do not pass an Embedder's gate.
    write_report(version.folder, replace(report, mean=1.0, p1=1.0))
    assert plan_engine(files, config).precision.name == "fp8"
    write_report(version.folder, report)
    write_report(version.folder, replace(report, mean=1.0, p1=1.0, hardware="NVIDIA A100"))
    with caplog.at_level(logging.INFO):
        assert plan_engine(files, config).precision.name == "bf16"
    assert "it was measured on tensorrt_llm, NVIDIA A100" in caplog.text
