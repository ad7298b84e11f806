"""The stand-in rejects every misuse that TensorRT-LLM rejects or silently computes wrong."""

from __future__ import annotations

import importlib
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib.config import Config
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path], caches: Path) -> tuple[Any, Path]:
    files = read_model_files(tiny_folder("llama"))
    return files, compile_model(files, "fp8", (), Config(engine_cache_dir=caches))


@pytest.fixture
def make(gpu: Any, folder: tuple[Any, Path]) -> Callable[..., Any]:
    """Return a function that creates an LLM of our model."""
    from embedlib.engines.tensorrt_llm.model import register

    name = register(*folder, ())

    def make(**arguments: Any) -> Any:
        defaults = {
            "encode_only": True,
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "max_batch_size": 4,
            "max_num_tokens": 20,
            "max_seq_len": 10,
            "force_dynamic_quantization": True,
            "model_kwargs": {"architectures": [name]},
        }
        return gpu.LLM(str(folder[1]), **(defaults | arguments))

    return make


@pytest.fixture
def graphs(gpu: Any) -> Any:
    from tensorrt_llm.llmapi import EncodeCudaGraphConfig

    return EncodeCudaGraphConfig(
        batch_sizes=[1, 4], num_tokens=[8, 16], seq_lens=[8], enable_padding=True
    )


def test_forms_of_what_it_returns(make: Callable[..., Any]) -> None:
    llm = make()
    raw = llm.encode([[1, 2, 3], [4]], return_raw_logits=True, copy_logits_to_host=False)
    assert raw.shape == (2, 32)
    outputs = llm.encode([[1, 2, 3], [4]])
    assert [output.prompt_token_ids for output in outputs] == [[1, 2, 3], [4]]
    np.testing.assert_array_equal(outputs[1].logits, raw[1])
    single = llm.encode([1, 2, 3])
    assert single.logits.shape == (32,)
    assert llm.encode([1, 2, 3], return_raw_logits=True).shape == (1, 32)


@pytest.mark.parametrize(
    "inputs",
    [
        ((1, 2), (3,)),
        np.array([1, 2]),
        [np.array([1, 2])],
        [(1, 2)],
        [[np.int32(1), np.int32(2)]],
        {"ids": [1]},
    ],
)
def test_only_lists_of_lists_of_int(inputs: Any, make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="Unsupported input type"):
        make().encode(inputs)


def test_text_needs_a_tokenizer(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="tokenizer is required"):
        make().encode("a text")


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ([[1]] * 5, "exceeds max_batch_size"),
        ([[1] * 10, [1] * 10, [1]], "exceeds max_num_tokens"),
        ([[1] * 11], "exceeds max_seq_len"),
    ],
)
def test_limits(inputs: Any, told: str, make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=told):
        make().encode(inputs)


def test_the_limits_can_be_read(make: Callable[..., Any]) -> None:
    engine = make()._encoder_executor.model_engine
    assert (engine.batch_size, engine.max_num_tokens, engine.max_seq_len) == (4, 20, 10)


def test_one_thread_only(make: Callable[..., Any]) -> None:
    llm = make()
    llm.encode([[1]])
    failures: list[BaseException] = []

    def encode() -> None:
        try:
            llm.encode([[1]])
        except AssertionError as error:
            failures.append(error)

    thread = threading.Thread(target=encode)
    thread.start()
    thread.join()
    assert "only one thread" in str(failures[0])


def test_after_shutdown(make: Callable[..., Any]) -> None:
    llm = make()
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        llm.encode([[1]])


def test_without_encode_only(make: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="requires encode_only=True"):
        make(encode_only=False).encode([[1]])


def test_generating(make: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="not available when encode_only=True"):
        make().generate([[1]])


def test_pickling(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(make())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"mm_encoder_only": True}, "exclude each other"),
        ({"tensor_parallel_size": 2}, "one GPU"),
        ({"no_such_argument": 1}, "no_such_argument"),
        ({"telemetry_config": {"is_disabled": True}}, "other fields"),
    ],
)
def test_arguments(arguments: dict[str, Any], told: str, make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=told):
        make(**arguments)


def test_piecewise_graphs(make: Callable[..., Any]) -> None:
    from tensorrt_llm.llmapi import TorchCompileConfig

    with pytest.raises(ValueError, match="piecewise"):
        make(torch_compile_config=TorchCompileConfig(enable_piecewise_cuda_graph=True))


def test_extra_arguments(make: Callable[..., Any], graphs: Any) -> None:
    llm = make()
    llm.encode([[1]], seq_lens=[1], attn_metadata=None)  # these arguments are dropped
    assert llm.calls[-1][1] == {}
    with pytest.raises(NotImplementedError, match="CUDA graphs"):
        make(cuda_graph_config=graphs).encode([[1]], token_type_ids=[0])


def test_a_graph_computes_the_same(make: Callable[..., Any], graphs: Any) -> None:
    eager, graph = make(), make(cuda_graph_config=graphs)
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
    expected = eager.encode(inputs, return_raw_logits=True)
    vectors = graph.encode(inputs, return_raw_logits=True)
    engine = graph._encoder_executor.model_engine
    assert engine.replayed == [(4, 16)]
    np.testing.assert_allclose(vectors, expected, rtol=1e-2, atol=1e-2)
    graph.encode([[1] * 9])
    graph.encode([[1]])
    assert engine.replayed[1:] == [(1, 8)], "what fits no graph runs without"


def test_a_graph_of_more_tokens_than_its_sequences_have(make: Callable[..., Any]) -> None:
    from tensorrt_llm.llmapi import EncodeCudaGraphConfig

    impossible = EncodeCudaGraphConfig(batch_sizes=[1], num_tokens=[16], seq_lens=[8])
    llm = make(cuda_graph_config=impossible)
    llm.encode([[1, 2]])
    assert llm._encoder_executor.model_engine.replayed == []


def test_a_graph_before_its_predecessor_has_read(make: Callable[..., Any], graphs: Any) -> None:
    llm = make(cuda_graph_config=graphs)
    llm.encode([[1]])  # this call waits for the vectors
    llm.encode([[1]], copy_logits_to_host=False)
    llm.encode([[1] * 9], copy_logits_to_host=False)  # too long for any graph
    with pytest.raises(AssertionError, match="may not have read its input yet"):
        llm.encode([[1]], copy_logits_to_host=False)


def test_tuning_results(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from tensorrt_llm._torch.autotuner import AutoTuner, autotune

    path, tuner = tmp_path / "results.json", AutoTuner.get()
    monkeypatch.setenv("TLLM_AUTOTUNER_CACHE_PATH", str(path))
    llm = make()
    llm.encode([[1]])
    assert tuner.missed == set()
    other = tmp_path / "of_another_model.json"
    other.write_text(json.dumps(json.loads(path.read_text()) | {"rank_0": {}}))
    with autotune(str(other)):
        pass
    llm.encode([[1]])
    assert tuner.missed, "what is read replaces what there was"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: "NVIDIA L40S")
    with pytest.raises(AssertionError, match="results of a GPU NVIDIA H200"):
        make()
    path.write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        make()


def test_an_unknown_class(make: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="Unknown model architecture: NoSuchModel"):
        make(model_kwargs={"architectures": ["NoSuchModel"]})


def test_where_parts_were_before(gpu: Any) -> None:
    with pytest.warns(FutureWarning, match=r"has moved to tensorrt_llm\._torch\.attention"):
        importlib.import_module("tensorrt_llm._torch.modules.attention")
    for name in ("modules.qk_norm_attention", "attention_backend.interface"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"tensorrt_llm._torch.{name}")


def test_attention_that_would_round_twice(make: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError):
        make(force_dynamic_quantization=False)


def test_a_layer_without_its_scales_stays_garbage(gpu: Any) -> None:
    import torch
    from tensorrt_llm._torch.model_config import QuantConfig
    from tensorrt_llm._torch.modules.linear import FP8_ROWWISE, Linear

    layer = Linear(
        4, 2, bias=False, dtype=torch.bfloat16, quant_config=QuantConfig(quant_algo=FP8_ROWWISE)
    )
    layer.weight_scale.data.fill_(7.0)
    weight = torch.ones(2, 4).to(torch.float8_e4m3fn)
    layer.load_weights(weights=[{"weight": weight}])
    assert layer.weight_scale.tolist() == [7.0, 7.0]
    layer.load_weights(weights=[{"weight": weight, "weight_scale": torch.tensor([0.5, 2.0])}])
    values = torch.ones(1, 4, dtype=torch.bfloat16)
    assert layer(values).tolist() == [[2.0, 8.0]]
    with pytest.raises(AssertionError, match="1 dicts are expected"):
        layer.load_weights(weights=[{"weight": weight}] * 3)


def test_what_is_excluded_is_not_in_fp8(
    gpu: Any, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    import torch

    from embedlib.engines.tensorrt_llm.engine import TensorRTLLMEngine

    files = read_model_files(tiny_folder("llama"))
    excluded = ("layers.0.k", "layers.0.q", "layers.0.v", "layers.1.down")
    folder = compile_model(files, "fp8", excluded, Config(engine_cache_dir=tmp_path))
    listed = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert listed["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"
    engine = TensorRTLLMEngine(files, folder, excluded=excluded, cache_dir=tmp_path)
    first, second = engine._llm._encoder_executor.model_engine.model.model.layers
    assert first.attention.qkv_proj.weight.dtype == torch.bfloat16
    assert first.attention.o_proj.weight.dtype == torch.float8_e4m3fn
    assert first.mlp.gate_up_proj.weight.dtype == torch.float8_e4m3fn
    assert first.mlp.down_proj.weight.dtype == torch.float8_e4m3fn
    assert second.mlp.down_proj.weight.dtype == torch.bfloat16
    assert second.attention.qkv_proj.weight.dtype == torch.float8_e4m3fn
    engine.close()
