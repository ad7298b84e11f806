"""Loads the TensorRT-LLM library and creates an `LLM` from an engine directory."""

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
"""Lengths of single queries that CUDA graphs are captured for; shorter queries are padded to them.
At these lengths the GPU waits for kernel launches; from a few hundred tokens on it does not."""

MAX_BATCH_SEQS: Final = 1024
"""Maximum sequences per call of `LLM.encode`; a larger batch takes several calls."""


def load_library() -> Any:
    """Import tensorrt_llm and return it.

    Raises:
        EngineUnavailableError: if it cannot be loaded, or lacks an API that this engine calls.
    """
    # The library reads this when it is loaded; without it, it reports its use over the network.
    os.environ["TRTLLM_NO_USAGE_STATS"] = "1"
    version = _version()
    try:
        import tensorrt_llm
        from tensorrt_llm.llmapi import TorchLlmArgs

        importlib.import_module(MODEL_MODULE)  # its own imports may have moved
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
    """Return an encode-only `LLM` that runs in this process.

    Args:
        folder: contains config.json and the transformer's tensors.
        architecture: the name of a registered class.
        max_seq_tokens: maximum tokens of a sequence.
        batch_tokens: token budget of a batch.
        cache_dir: cache of tuned and compiled kernels.
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
            # Attention outputs bfloat16, and each linear layer computes a scale per token.
            force_dynamic_quantization=True,
            telemetry_config={"disabled": True},
            model_kwargs={"architectures": [architecture]},
        )


@contextmanager
def _caches(folder: Path) -> Iterator[None]:
    """Cache what is tuned and compiled while loading, so that the next load is faster.

    Environment variables that the user has set are not changed. All but the last are read whenever
    a kernel is compiled, so they stay set; kernels of other models may end up in the same folders.
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
