"""Values that a parameter takes, by its name; with them the odd ones come to be looked at."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from embedlib import Config, Document, Usage
from embedlib.indexing import SourceOptions
from tests.campaign.odd_values import draw_odd
from tests.campaign.verdict import CallersError

TEXTS: Final = (
    "a",
    "one text",
    "ünïcödé 漢字 🙂",
    "x" * 30,
    " spaces ",
    "line\nbreak",
    "\x00",
    "end",
)
FAKE_SINK: Final = "the fake sink"
"""Stands for a `FakeSink`, made anew for each call."""

Draw = Callable[[random.Random], Any]


def draw_texts(rng: random.Random) -> Any:
    """Return a text or several, in one of the containers that calls take."""
    texts = rng.choices(TEXTS, k=rng.randrange(6))
    forms: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(TEXTS),
        lambda: texts,
        lambda: tuple(texts),
        lambda: iter(texts),
        lambda: np.array(texts, object),
        lambda: dict.fromkeys(texts).keys(),
    )
    return rng.choice(forms)()


def draw_documents(rng: random.Random) -> Any:
    """Return documents, of which some have a field of another type."""
    documents = []
    for number in range(rng.randrange(8)):
        fields: dict[str, Any] = {"id": f"d{number}", "text": rng.choice(TEXTS)}
        if rng.random() < 0.2:
            name = rng.choice(("id", "text", "metadata", "place", "is_markdown"))
            fields[name] = draw_odd(rng)[1]
        documents.append(Document(**fields))
    return rng.choice((documents, iter(documents), tuple(documents)))


def _pairs(rng: random.Random) -> list[tuple[str, str]]:
    return [(rng.choice(TEXTS), rng.choice(TEXTS)) for _ in range(rng.randrange(5))]


def _vectors(rng: random.Random) -> Any:
    shape = rng.choice(((3, 6), (6,), (0, 6), (2, 4)))
    return np.random.default_rng(rng.randrange(1000)).normal(size=shape).astype("f4")


def _count(rng: random.Random) -> Any:
    return rng.choice((1, 2, 3, 6, 30))


def _switch(rng: random.Random) -> Any:
    return rng.random() < 0.5


def _one_of(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


_BY_NAME: Final[Mapping[str, Draw]] = MappingProxyType(
    {
        **dict.fromkeys(("inputs", "sentences", "texts", "documents"), draw_texts),
        **dict.fromkeys(("text", "query", "question"), _one_of(*TEXTS)),
        **dict.fromkeys(("embeddings1", "embeddings2"), _vectors),
        **dict.fromkeys(
            (
                *("batch_size", "top_k", "truncate_dim", "max_seq_tokens", "threads", "limit"),
                *("max_batch_tokens", "max_inflight_batches", "max_queued_texts", "value"),
                "prepare_seconds",
                *("chunk_tokens", "batch_rows"),
            ),
            _count,
        ),
        **dict.fromkeys(
            (
                *("convert_to_numpy", "convert_to_tensor", "normalize_embeddings", "raw_scores"),
                *("return_documents", "apply_softmax", "local_files_only", "chunk", "dry_run"),
                *("delete_missing", "recreate", "show_progress_bar", "with_headings"),
            ),
            _switch,
        ),
        "pairs": _pairs,
        "prompt_name": _one_of(None, "query", "document", "plain"),
        "prompt": _one_of(None, "", "p: "),
        "prompts": _one_of(None, {}, {"query": "q "}),
        "default_prompt_name": _one_of(None, "query"),
        "output_value": _one_of("sentence_embedding"),
        "precision": _one_of("float32", "float16", "binary", "ubinary"),
        "role": _one_of(None, "query", "document"),
        "device": _one_of(None, "cpu"),
        "similarity_fn_name": _one_of(None, "cosine", "dot"),
        "on_truncate": _one_of("warn", "ignore", "error", "chunk"),
        "on_error": _one_of("skip", "stop"),
        "shard": _one_of(None, "1/2"),
        "chunk_overlap": _one_of(0, 1, 2),
        "max_delete": _one_of(0, 0.5, 1),
        "gpu_memory_fraction": _one_of(0.5, 1),
        "timeout": _one_of(None, 1, 0.5),
        "input_format": _one_of("auto", "csv", "jsonl"),
        "glob": _one_of((), ("*.md",)),
        "engine": _one_of("auto", "openvino"),
        "activation_fn": _one_of(None, "sigmoid", "identity"),
        "usage": lambda rng: Usage(),
        "config": lambda rng: Config(),
        "source": draw_documents,
        "sink": _one_of(FAKE_SINK),
        "source_options": lambda rng: SourceOptions(),
        "tell": _one_of(None, lambda line: None),
        "on_progress": _one_of(lambda progress: None),
    }
)


def draw_right(rng: random.Random, name: str, of: str = "") -> tuple[str, Any]:
    """Return a value for a parameter and what to call it; None for one that is not known here.

    Args:
        rng: draws it.
        name: of the parameter.
        of: the callable, where a name has another meaning there.
    """
    if of.startswith("Reranker") and name in ("inputs", "sentences"):
        name = "pairs"
    if of == "Config" and name == "precision":
        return "'int8'", "int8"
    value = _BY_NAME[name](rng) if name in _BY_NAME else None
    try:
        return ascii(value).replace("\n", " ")[:80], value
    except (RecursionError, ValueError, CallersError):  # a document with a field of another type
        return f"a {type(value).__name__} that cannot be printed", value
