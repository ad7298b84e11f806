"""Makes a contestant by its name."""

from __future__ import annotations

from collections.abc import Callable

from embedlib.bench.contestants import (
    CROSS_ENCODER,
    EMBEDLIB,
    INT8_RERANKER,
    RERANKER,
    Contestant,
    EmbedlibContestant,
    EmbedlibInt8Contestant,
    SentenceTransformersContestant,
    SentenceTransformersOpenVINOContestant,
)
from embedlib.bench.options import INT8
from embedlib.bench.rerank_contestants import (
    CrossEncoderContestant,
    Int8RerankerContestant,
    RerankerContestant,
)


def make_contestant(name: str) -> Contestant:
    """Return a contestant by its name; it has loaded nothing yet."""
    makers: dict[str, Callable[[], Contestant]] = {
        EMBEDLIB: EmbedlibContestant,
        INT8: EmbedlibInt8Contestant,
        RERANKER: RerankerContestant,
        INT8_RERANKER: Int8RerankerContestant,
        CROSS_ENCODER: CrossEncoderContestant,
        "sentence-transformers": SentenceTransformersContestant,
        "sentence-transformers-openvino": SentenceTransformersOpenVINOContestant,
    }
    return makers[name]()
