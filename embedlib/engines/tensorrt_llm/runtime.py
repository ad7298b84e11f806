"""Loads the TensorRT-LLM library and creates an `LLM` from an engine directory."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from embedlib.engines.tensorrt_llm.support import KNOWN_VERSIONS
from embedlib.errors import OTHER_CACHE, EngineUnavailableError, first_line

_logger = logging.getLogger(__name__)

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
        raise EngineUnavailableError(
            f"tensorrt-llm {version} cannot be loaded: {first_line(error)}; this engine was "
            f"written for {KNOWN_VERSIONS}"
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
        cache_dir: cache of tuned and compiled kernels, of all models.
    """
    library = load_library()
    import torch
    from tensorrt_llm.llmapi import EncodeCudaGraphConfig

    sizes = [tokens for tokens in GRAPH_TOKENS if tokens <= max_seq_tokens]
    graphs = None
    if sizes:
        graphs = EncodeCudaGraphConfig(
            batch_sizes=[1], num_tokens=sizes, seq_lens=sizes, enable_padding=True
        )
    gpu = re.sub(r"\W+", "-", torch.cuda.get_device_name(0))
    with _caches(cache_dir / _version() / gpu):
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

    A tuning result is the number of a kernel in a list that each kind of GPU has of its own, and
    the library does not look where a file is from. All models share one: what is read replaces
    what the process has. Source: `AutoTunerProfilingCache` in TensorRT-LLM, _torch/autotuner.py.

    Environment variables that the user has set are not changed. The first two are read whenever a
    kernel is compiled, so they stay set. FlashInfer has read its own when it was imported.
    """
    if not _can_write(folder):
        yield
        return
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    variable = "TLLM_AUTOTUNER_CACHE_PATH"
    if variable in os.environ:
        yield
        return
    results = folder / "autotuner.json"
    _remove_torn(results)
    os.environ[variable] = str(results)
    try:
        yield
    finally:
        del os.environ[variable]


def _can_write(folder: Path) -> bool:
    """Whether there can be a cache in a folder: the library fails where it cannot write."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return True
    except OSError as error:
        _logger.warning("tuned and compiled kernels are not cached: %s; %s", error, OTHER_CACHE)
        return False


def _remove_torn(path: Path) -> None:
    """Remove a JSON file that a process left incomplete, which the library refuses to read."""
    with suppress(OSError):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            path.unlink()


def _version() -> str:
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
