"""Makes a contestant by its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from embedlib.bench.contestants import (
    CROSS_ENCODER,
    INT8_RERANKER,
    RERANKER,
    Contestant,
    EmbedlibContestant,
    EmbedlibFloat32Contestant,
    EmbedlibInt8Contestant,
)
from embedlib.bench.llama_cpp_contestant import LlamaCppContestant
from embedlib.bench.other_contestants import (
    FastembedContestant,
    InfinityContestant,
    Model2vecContestant,
)
from embedlib.bench.peers import EMBEDLIB, FLOAT32, INT8, ST
from embedlib.bench.rerank_contestants import (
    CrossEncoderContestant,
    Int8RerankerContestant,
    RerankerContestant,
)
from embedlib.bench.sentence_transformers_contestants import (
    Bf16Contestant,
    OnnxInt8Contestant,
    OpenVINOContestant,
    OpenVINOFloat32Contestant,
    SentenceTransformersContestant,
)
from embedlib.bench.tei_contestant import TeiContestant


def make_contestant(name: str) -> Contestant:
    """Return a contestant by its name; it has loaded nothing yet."""
    makers: dict[str, Callable[[], Contestant]] = {
        EMBEDLIB: EmbedlibContestant,
        FLOAT32: EmbedlibFloat32Contestant,
        INT8: EmbedlibInt8Contestant,
        RERANKER: RerankerContestant,
        INT8_RERANKER: Int8RerankerContestant,
        CROSS_ENCODER: CrossEncoderContestant,
        ST: SentenceTransformersContestant,
        f"{ST}-bf16": Bf16Contestant,
        f"{ST}-openvino": OpenVINOContestant,
        f"{ST}-openvino-float32": OpenVINOFloat32Contestant,
        f"{ST}-onnx-int8": OnnxInt8Contestant,
        "fastembed": FastembedContestant,
        "llama.cpp-float32": partial(LlamaCppContestant, "float32"),
        "llama.cpp-bf16": partial(LlamaCppContestant, "bf16"),
        "llama.cpp-q8_0": partial(LlamaCppContestant, "q8_0"),
        "infinity": InfinityContestant,
        "model2vec": Model2vecContestant,
        "text-embeddings-inference": TeiContestant,
    }
    return makers[name]()
