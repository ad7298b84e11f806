"""mteb's tasks with an EmbedlibEncoder: the scores of sentence-transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.testing import fake_embedder, fake_spec, fake_vector

mteb = pytest.importorskip("mteb")
mock_tasks = pytest.importorskip("mteb.mocks.mock_tasks")  # with data of their own
mteb_embedlib = pytest.importorskip("mteb_embedlib")


@pytest.fixture
def prompted(folder: str) -> Any:
    """Both models, with prompts by role, by type of task and by name of a task."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    prompts = {
        "query": "query: ",
        "document": "passage: ",
        "STS": "same meaning: ",
        "Classification": "class: ",
    }
    peer = sentence_transformers.SentenceTransformer(folder, device="cpu", prompts=prompts)
    with Embedder(folder, on_truncate="ignore", prompts=prompts) as embedder:
        yield embedder, peer


@pytest.mark.parametrize(
    "name", ["MockSTSTask", "MockRetrievalTask", "MockClassificationTask", "MockRerankingTask"]
)
def test_scores_are_the_same(prompted: tuple[Embedder, Any], name: str) -> None:
    embedder, peer = prompted
    ours, theirs = (
        mteb.evaluate(model, getattr(mock_tasks, name)(), cache=None, show_progress_bar=False)
        for model in (mteb_embedlib.EmbedlibEncoder(embedder), peer)
    )
    assert numbers(ours) == pytest.approx(numbers(theirs), abs=1e-4, nan_ok=True)


@pytest.mark.parametrize(
    ("task", "prompt_type", "prompt"),
    [
        ("MockSTSTask", None, "S: "),
        ("MockClassificationTask", None, ""),
        ("MockRetrievalTask", "query", "Q: "),
        ("MockRetrievalTask", "document", "P: "),
    ],
)
def test_the_prompt_is_that_of_the_task_or_of_the_role(
    task: str, prompt_type: str | None, prompt: str
) -> None:
    prompts = {"query": "Q: ", "passage": "P: ", "STS": "S: "}
    with fake_embedder(spec=fake_spec(prompts=prompts)) as embedder:
        vectors = mteb_embedlib.EmbedlibEncoder(embedder).encode(
            [{"text": ["a", "b"]}, {"text": ["c"]}],
            task_metadata=getattr(mock_tasks, task)().metadata,
            hf_split="test",
            hf_subset="default",
            prompt_type=None if prompt_type is None else mteb.types.PromptType(prompt_type),
            batch_size=2,
        )
    expected = [fake_vector(f"{prompt}{text}".encode()) for text in "abc"]
    np.testing.assert_array_equal(vectors, expected)


def numbers(result: Any) -> dict[str, float]:
    """Return every score of the only task of a result."""
    return {
        f"{split}.{row}.{name}": value
        for split, rows in result.task_results[0].scores.items()
        for row, scores in enumerate(rows)
        for name, value in scores.items()
        if isinstance(value, float)
    }


def test_results_are_named_by_model_and_fingerprint(embedder: Embedder) -> None:
    meta = mteb_embedlib.EmbedlibEncoder(embedder).mteb_model_meta
    assert meta.name.startswith("embedlib/")
    assert meta.name.count("/") == 1
    assert meta.revision == embedder.fingerprint


def test_results_of_another_precision_have_a_name_of_their_own() -> None:
    embedder: Any = SimpleNamespace(
        prompts={},
        model_name="/models/one/",
        fingerprint="f",
        precision="int8",
        similarity_fn_name="cosine",
        spec=SimpleNamespace(similarity="cosine"),
    )
    meta = mteb_embedlib.EmbedlibEncoder(embedder).mteb_model_meta
    assert (meta.name, meta.revision) == ("embedlib/models__one", "f in int8")


def test_results_of_another_similarity_have_a_name_of_their_own(
    folder: str, embedder: Embedder
) -> None:
    def revision(name: str) -> str:
        with Embedder(folder, similarity_fn_name=name) as other:
            return mteb_embedlib.EmbedlibEncoder(other).mteb_model_meta.revision

    assert revision("cosine") == embedder.fingerprint
    assert revision("manhattan") == f"{embedder.fingerprint} by manhattan"
