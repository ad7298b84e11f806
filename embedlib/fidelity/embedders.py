"""Embedders to be measured: of a planned engine, or of weights that are at hand."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Engine
from embedlib.loading import limit_length
from embedlib.models.files import ModelFiles
from embedlib.models.tokenizer_files import load_tokenizer

CPU_ENGINE: Final = "openvino"
ALONE: Final = 1
"""Token budget with which every text is a batch of its own, so that results can be repeated: in
int8 a text's vector depends a little on its batch."""
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "openvino": ("openvino",),
    "cuda": ("torch", "triton"),
    "tensorrt_llm": ("tensorrt_llm",),
}
"""What an engine computes with."""

Weights = Mapping[str, NDArray[Any]]


def limited(files: ModelFiles, config: Config) -> ModelFiles:
    """Return a model whose texts are cut where the options say."""
    return replace(files, spec=limit_length(files.spec, load_tokenizer(files), config))


def around_engine(engine: Engine, files: ModelFiles, config: Config) -> Embedder:
    """Return an Embedder that cuts long texts without a word."""
    config = replace(config, on_truncate="ignore")
    return Embedder.from_engine(engine, files.spec, load_tokenizer(files), config)


def on_cpu(weights: Weights, files: ModelFiles, config: Config) -> Embedder:
    """Return an Embedder that computes with these weights, each text alone."""
    # Imported only now: an engine's library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine

    engine = OpenVINOEngine(
        files.spec, weights, threads=config.num_threads, max_batch_tokens=ALONE, cache_dir=None
    )
    return around_engine(engine, files, config)


def through_fp8(weights: Mapping[str, NDArray[np.float32]], roles: frozenset[str]) -> Weights:
    """Return weights of which these have been rounded to FP8, as float32.

    This is the weights' half of what an engine in FP8 does; it rounds activations too.
    """
    from embedlib.engines.fp8 import decode_e4m3, quantize_rows

    rounded: dict[str, NDArray[Any]] = dict(weights)
    for role in roles:
        codes, scales = quantize_rows(np.asarray(weights[role]))
        rounded[role] = decode_e4m3(codes) * scales[:, np.newaxis]
    return rounded


def versions(engine: str) -> dict[str, str]:
    """Return the versions of what computes."""
    names = ("embedlib", "numpy", *PACKAGES[engine])
    return {name: importlib.metadata.version(name) for name in names}
