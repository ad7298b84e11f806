"""TensorRT-LLM itself: loading the library, making an `LLM` of an engine directory."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from embedlib.engines.tensorrt_llm.support import KNOWN_VERSIONS
from embedlib.errors import EngineUnavailableError

MODEL_MODULE: Final = "embedlib.engines.tensorrt_llm.model"

GRAPH_TOKENS: Final = (16, 32, 64, 128)
"""Lengths of single queries that CUDA graphs are captured for, shorter ones are padded: there the
GPU waits for launches. From some hundred tokens on it does not."""

MAX_BATCH_SEQS: Final = 1024
"""Sequences in one call; a batch with more takes several."""


def load_library() -> Any:
    """Import tensorrt_llm and return it.

    Raises:
        EngineUnavailableError: it cannot be loaded, or lacks what this engine calls.
    """
    # Read when the library is loaded; it would report its use over the network.
    os.environ["TRTLLM_NO_USAGE_STATS"] = "1"
    version = _version()
    try:
        import tensorrt_llm
        from tensorrt_llm.llmapi import TorchLlmArgs

        importlib.import_module(MODEL_MODULE)  # the parts it is made of may have moved
    except (ImportError, OSError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise EngineUnavailableError(
            f"tensorrt-llm {version} cannot be loaded: {lines[0]}; this engine was written for "
            f"{KNOWN_VERSIONS}"
        ) from error
    encode = getattr(tensorrt_llm.LLM, "encode", None)
    has_encode = encode is not None and "return_raw_logits" in inspect.signature(encode).parameters
    if not has_encode or "encode_only" not in TorchLlmArgs.model_fields:
        raise EngineUnavailableError(
            f"tensorrt-llm {version} has no LLM.encode with encode_only and return_raw_logits; "
            f"install {KNOWN_VERSIONS}"
        )
    return tensorrt_llm


def make_llm(
    folder: Path, architecture: str, *, max_seq_tokens: int, batch_tokens: int, cache_dir: Path
) -> Any:
    """Return an `LLM` that only encodes, in this process.

    Args:
        folder: holds config.json and the transformer's tensors.
        architecture: the name of a registered class.
        max_seq_tokens: the longest sequence.
        batch_tokens: the largest batch.
        cache_dir: where kernels that were tuned and compiled here are kept.
    """
    library = load_library()
    from tensorrt_llm.llmapi import EncodeCudaGraphConfig

    sizes = [tokens for tokens in GRAPH_TOKENS if tokens <= max_seq_tokens]
    graphs = None
    if sizes:
        graphs = EncodeCudaGraphConfig(
            batch_sizes=[1], num_tokens=sizes, seq_lens=sizes, enable_padding=True
        )
    with _caches(cache_dir / _version()):
        return library.LLM(
            model=str(folder),
            encode_only=True,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            attn_backend="TRTLLM",
            max_batch_size=min(MAX_BATCH_SEQS, batch_tokens),
            max_num_tokens=batch_tokens,
            max_seq_len=max_seq_tokens,
            cuda_graph_config=graphs,
            # Attention hands on bfloat16, and each linear layer scales every token by itself.
            force_dynamic_quantization=True,
            telemetry_config={"disabled": True},
            model_kwargs={"architectures": [architecture]},
        )


@contextmanager
def _caches(folder: Path) -> Iterator[None]:
    """Keep what is tuned and compiled at a start, so that the next one is quick.

    Variables that the user has set stay as they are. All but the last are read whenever a kernel is
    compiled, so they stay set; kernels of other models may then lie there as well.
    """
    for variable, name in (
        ("TRITON_CACHE_DIR", "triton"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("FLASHINFER_WORKSPACE_BASE", "flashinfer"),
    ):
        os.environ.setdefault(variable, str(folder / name))
    variable = "TLLM_AUTOTUNER_CACHE_PATH"
    if variable in os.environ:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[variable] = str(folder / "autotuner.json")
    try:
        yield
    finally:
        del os.environ[variable]


def _version() -> str:
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
