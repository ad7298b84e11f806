"""The table of peers: what each needs, how it makes batches, and whose result it is to be.

A bare name is a library as its users get it; what comes behind the name says what was forced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

EMBEDLIB: Final = "embedlib"
"""This library as it comes, without an option."""

FLOAT32: Final = "embedlib-float32"
"""This library in float32: what the vectors of all others are compared with."""

INT8: Final = "embedlib-int8"

ST: Final = "sentence-transformers"

BY_TOKENS: Final = "by tokens"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A row of the table."""

    modules: tuple[str, ...]
    """What its process imports."""
    remedy: str | None = None
    """What brings them; None: the extra `bench`."""
    own_batches: str | None = None
    """How it makes batches; None: by a number of texts, and the best of several is looked for."""


def _onnx(modules: tuple[str, ...]) -> Peer:
    return Peer(
        modules=(*modules, "sentence_transformers", "optimum.onnxruntime"),
        remedy='pip install "sentence-transformers[onnx]" fastembed into an environment of their '
        "own, and name its interpreter with --python",
    )


def _llama_cpp() -> Peer:
    return Peer(
        modules=("llama_cpp", "gguf"),
        remedy="pip install llama-cpp-python gguf",
        own_batches=BY_TOKENS,
    )


PEERS: Final[Mapping[str, Peer]] = {
    INT8: Peer(modules=("openvino",), remedy="pip install openvino", own_batches=BY_TOKENS),
    ST: Peer(modules=("sentence_transformers", "torch")),
    f"{ST}-bf16": Peer(modules=("sentence_transformers", "torch")),
    f"{ST}-openvino": Peer(modules=("sentence_transformers", "optimum.intel", "openvino")),
    f"{ST}-openvino-float32": Peer(modules=("sentence_transformers", "optimum.intel", "openvino")),
    f"{ST}-onnx-int8": _onnx(()),
    "fastembed": _onnx(("fastembed",)),
    "llama.cpp-float32": _llama_cpp(),
    "llama.cpp-bf16": _llama_cpp(),
    "llama.cpp-q8_0": _llama_cpp(),
    "infinity": Peer(
        modules=("infinity_emb", "torch"),
        remedy='pip install "infinity-emb[torch]" into an environment of its own, and name its '
        "interpreter with --python",
        own_batches="32 texts",
    ),
    "model2vec": Peer(
        modules=("model2vec",), remedy="pip install model2vec", own_batches="1024 texts"
    ),
    "text-embeddings-inference": Peer(
        modules=(),
        remedy="put text-embeddings-router on PATH, or name it in EMBEDLIB_BENCH_TEI",
        own_batches=BY_TOKENS,
    ),
}
"""The names allowed in `vs`."""

RERANK_PEERS: Final = (ST, INT8)
"""Those with a reranker that takes the same folders."""

ALL_PEERS: Final = "all"
"""In place of their names."""


def missing_of(modules: Iterable[str]) -> list[str]:
    """Return the modules that this interpreter does not have; imports none of them."""
    # A late import: the list of commands imports this module, and must be quick.
    from embedlib.engines.machine import Machine

    has_module = Machine().has_module
    return [module for module in modules if not has_module(module)]


def missing_modules(name: str) -> list[str]:
    """Return the modules a peer needs that this interpreter does not have; imports no peer."""
    return missing_of(PEERS[name].modules)
