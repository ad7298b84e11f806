"""What calls on fake engines must return, computed from their texts without the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib import Classifier, Config, Embedder, Reranker
from embedlib.engines.base import Batch
from embedlib.models.spec import Head
from embedlib.testing import FakeEngine, byte_tokenizer, fake_embedder, fake_spec, fake_vector

MAX_TOKENS: Final = 32
PROMPTS: Final[Mapping[str, str]] = MappingProxyType(
    {"query": "q: ", "document": "d: ", "plain": ""}
)
NOT_COMPUTED_HERE: Final = ("chunks", "task", "examples", "output_value")
"""Arguments with which the vectors of a call are left unchecked."""

Arguments = Mapping[str, Any]
Complaint = Callable[[dict[str, Any], Any], str]


class ScoreEngine(FakeEngine):
    """One score of a pair, or three of a text, which tell which one it is."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.limits = replace(self.limits, embedding_dim=num_labels)

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        return scores_of(super()._compute(batch))[:, : self.limits.embedding_dim]


def scores_of(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    columns = (vectors[:, 4] / 1e5, vectors[:, 1] / 100, vectors[:, 2] / 10)
    return np.stack(columns, axis=1).astype(np.float32)


def make_session(kind: type[Any]) -> AbstractContextManager[Any]:
    """Return an Embedder, a Reranker or a Classifier on a fake engine."""
    if kind is Embedder:
        return fake_embedder(spec=fake_spec(MAX_TOKENS), prompts=dict(PROMPTS))
    is_reranker = kind is Reranker
    labels = ("score",) if is_reranker else ("no", "maybe", "yes")
    head = Head(
        labels=labels,
        activation="identity" if is_reranker else "softmax",
        reranker_activation="sigmoid",
    )
    config = Config(prompts={"query": "q: "}) if is_reranker else Config()
    spec = fake_spec(MAX_TOKENS, head=head)
    session: AbstractContextManager[Any] = kind.from_engine(
        ScoreEngine(len(labels)), spec, byte_tokenizer(), config
    )
    return session


def judge_of(kind: type[Any], method: str) -> Complaint:
    """Return the judge of the results of a method: it says what is wrong with one."""
    if kind is Embedder and ("encode" in method or method.startswith("submit")):
        if method.endswith(("query", "document")):
            fixed = {"role": method.rpartition("_")[2]}
            return lambda arguments, result: judge_vectors({**arguments, **fixed}, result)
        default = {"role": {"submit": "query", "submit_batch": "document"}.get(method)}
        return lambda arguments, result: judge_vectors({**default, **arguments}, result)
    if kind is Reranker and method.endswith("rank"):
        return judge_ranking
    if kind is Classifier and method.endswith("predict_scores"):
        return judge_scores
    return lambda _arguments, _result: ""


def texts_of(arguments: Arguments) -> tuple[list[str], bool] | None:
    """Return the texts of a call and whether it was one; None if they are used up."""
    given = next(
        (
            arguments[name]
            for name in ("inputs", "sentences", "texts", "text", "documents")
            if arguments.get(name) is not None
        ),
        None,
    )
    if isinstance(given, str):
        return [str.__str__(given)], True  # also of an Enum
    if given is None or hasattr(given, "__next__"):
        return None
    return [text for text in given], False  # noqa: C416 - list() calls a hostile __len__


def judge_vectors(arguments: dict[str, Any], result: Any) -> str:
    """Compare the vectors of a call with those of its texts and its prompt."""
    texts = texts_of(arguments)
    if texts is None or any(arguments.get(name) is not None for name in NOT_COMPUTED_HERE):
        return ""
    rows, is_single = texts
    vectors = [np.asarray(row) for row in ([result] if is_single else result)]
    if len(vectors) != len(rows):
        return f"{len(vectors)} vectors for {len(rows)} texts"
    for number, (text, vector) in enumerate(zip(rows, vectors, strict=True)):
        expected = expected_vector(text, arguments)
        if vector.shape != expected.shape or not np.allclose(vector, expected, rtol=1e-3):
            return f"row {number} is {vector.tolist()}, not {expected.tolist()}"
    return ""


def expected_vector(text: str, arguments: Arguments) -> NDArray[Any]:
    """Return the vector of a text by the definition of the fake engine."""
    vector = fake_vector(list(f"{_prompt_of(arguments)}{text}".encode())[:MAX_TOKENS])
    dim = arguments.get("truncate_dim")
    vector = vector[: int(dim)] if dim is not None else vector
    if arguments.get("normalize_embeddings"):
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    precision = arguments.get("precision") or "float32"
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vector > 0)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    return vector.astype(precision)


def _prompt_of(arguments: Arguments) -> str:
    if arguments.get("prompt") is not None:
        return str.__str__(arguments["prompt"])  # also of an Enum
    name = arguments.get("prompt_name") or arguments.get("role")
    return PROMPTS[str(name)] if name else ""


def judge_ranking(arguments: dict[str, Any], result: Any) -> str:
    """Compare the order and the scores of a ranking with those of its documents."""
    texts = texts_of(arguments)
    if texts is None or arguments.get("instruction") is not None:
        return ""
    prompt = _prompt_of(arguments)
    head = (prompt + arguments["query"]).encode()
    limit = len(texts[0]) if arguments.get("top_k") is None else int(arguments["top_k"])
    if len(result) != min(len(texts[0]), limit):
        return f"{len(result)} of {len(texts[0])} documents"
    is_raw = arguments.get("raw_scores") or arguments.get("activation_fn") == "identity"
    if not is_raw and arguments.get("activation_fn") not in (None, "sigmoid"):
        return ""
    for entry in result:
        ids = [*head, *texts[0][entry["corpus_id"]].encode()]
        if len(ids) > MAX_TOKENS:
            continue  # which of the two is cut is the tokenizer's rule
        raw = float(scores_of(fake_vector(ids)[None])[0, 0])
        expected = raw if is_raw else 1 / (1 + math.exp(-raw))
        if not math.isclose(entry["score"], expected, rel_tol=1e-3):
            return f"document {entry['corpus_id']} has {entry['score']}, not {expected}"
    scores = [entry["score"] for entry in result]
    return "" if scores == sorted(scores, reverse=True) else f"not in order: {scores}"


def judge_scores(arguments: dict[str, Any], result: Any) -> str:
    """Compare the scores of texts with the softmax of what the engine gave."""
    texts = texts_of(arguments)
    if texts is None:
        return ""
    rows = [fake_vector(list(text.encode())[:MAX_TOKENS]) for text in texts[0]]
    expected = scores_of(np.array(rows, np.float32).reshape(-1, 6))
    if not arguments.get("raw_scores"):
        powers = np.exp(expected - expected.max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True)
    got = np.atleast_2d(result) if texts[1] else np.asarray(result)
    return "" if np.allclose(got, expected, rtol=1e-3) else f"{got.tolist()} for {expected}"


def judge_index(arguments: dict[str, Any], result: Any) -> str:
    """Check that every row that was written has the vector of its text, and is counted."""
    report, store = result
    for row_id, row in store.rows.items():
        expected = expected_vector(row.text, {"role": "document"})
        if not np.allclose(store.vectors[row_id], expected, rtol=1e-3):
            return f"the row of {row.text!r:.60} has the vector of another text"
    if store.rows and len(store.rows) != report.num_embedded:
        return f"{len(store.rows)} rows, {report.num_embedded} embedded"
    return ""


def judge_search(arguments: dict[str, Any], result: Any) -> str:
    scores = [hit.score for hit in result]
    if len(scores) > int(arguments.get("top_k", 10)) or scores != sorted(scores, reverse=True):
        return f"scores {scores}"
    return ""
