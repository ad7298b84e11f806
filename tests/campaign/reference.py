"""sentence-transformers as the reference, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def is_installed() -> bool:
    return find_spec("sentence_transformers") is not None and find_spec("torch") is not None


def prepare() -> None:
    """Import the reference: on a busy machine that takes as long as a case may take."""
    if is_installed():
        for name in ("sentence_transformers", "transformers", "transformers.pipelines"):
            import_module(name)


def open_reference(folder: Path, *, is_scorer: bool = False) -> Any:
    """Return a SentenceTransformer or CrossEncoder that computes in float32.

    Attention is the plain one: torch's own leaves out Gemma 2's cap of the scores. Texts are cut to
    the positions that the model has, as docs/models.md says; the reference lets rotary ones pass.
    """
    import sentence_transformers

    kind = "CrossEncoder" if is_scorer else "SentenceTransformer"
    model = getattr(sentence_transformers, kind)(
        str(folder),
        device="cpu",
        local_files_only=True,
        model_kwargs={"torch_dtype": "float32", "attn_implementation": "eager"},
    )
    positions = getattr(model[0].model.config, "max_position_embeddings", None)
    padding_id = getattr(getattr(model[0].model, "embeddings", None), "padding_idx", None)
    if isinstance(positions, int) and isinstance(padding_id, int):
        positions -= padding_id + 1  # RoBERTa counts from behind that id
    if isinstance(positions, int) and model.max_seq_length is not None:
        model.max_seq_length = min(model.max_seq_length, positions)
    return model


def class_scores(
    folder: Path, texts: Sequence[str], labels: Sequence[str], max_tokens: int
) -> NDArray[np.float32]:
    """Return float32[N, num_labels]: what the pipeline of transformers says, text by text."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, dtype="float32", attn_implementation="eager"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    classify = transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, top_k=None
    )
    rows = []
    for text in texts:
        entries = classify([text], truncation=True, max_length=max_tokens)[0]
        found = {entry["label"]: entry["score"] for entry in entries}
        rows.append([found[label] for label in labels])
    return np.array(rows, np.float32)


def error_of(vectors: Any, expected: Any) -> float:
    """Return the largest difference of an element, relative to the largest number of its row.

    A row counts as no smaller than a hundredth of the largest one: a ReLU may leave the rounding of
    much larger numbers.
    """
    got = np.atleast_2d(np.asarray(vectors, np.float64))
    wanted: NDArray[np.float64] = np.atleast_2d(np.asarray(expected, np.float64))
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return float("inf")
    scale = np.abs(wanted).max(axis=1, keepdims=True)
    scale = np.maximum(scale, max(scale.max(initial=0) / 100, 1e-9))
    return float((np.abs(got - wanted) / scale).max(initial=0))
