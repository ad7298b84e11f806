from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pydantic
import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from numpy.typing import NDArray

from embedlib import Reranker
from embedlib.engines.base import Batch
from embedlib.errors import ClosedError, ConfigError, InputError, ModelNotFoundError
from embedlib.models.spec import Head
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec
from langchain_embedlib import EmbedlibRerank

HEAD = Head(labels=("score",), activation="identity", reranker_activation="identity")
TEXTS = ["bb", "d", "a", "ccc"]
BEST_FIRST = ["d", "ccc", "bb", "a"]


class LastByte(FakeEngine):
    """A pair's score is its last byte: the last of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = replace(self.limits, embedding_dim=1)

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        return batch.token_ids[batch.cu_seqlens[1:] - 1, None].astype(np.float32)


@pytest.fixture
def engine() -> FakeEngine:
    return LastByte()


@pytest.fixture
def reranker(engine: FakeEngine) -> Iterator[Reranker]:
    spec = fake_spec(head=HEAD, prompts={"web": "W: "})
    with Reranker.from_engine(engine, spec, byte_tokenizer()) as reranker:
        yield reranker


@pytest.fixture
def documents() -> list[Document]:
    return [Document(text, id=f"id-{text}", metadata={"page": text}) for text in TEXTS]


def texts(documents: Any) -> list[str]:
    return [document.page_content for document in documents]


def test_the_best_come_first(reranker: Reranker, documents: list[Document]) -> None:
    compressor = EmbedlibRerank(reranker=reranker)
    assert isinstance(compressor, BaseDocumentCompressor)
    found = compressor.compress_documents(documents, "q")
    assert texts(found) == BEST_FIRST[:3]
    assert found[0] == Document(
        "d", id="id-d", metadata={"page": "d", "relevance_score": float(ord("d"))}
    )
    assert all("relevance_score" not in document.metadata for document in documents)


async def test_async_is_native(
    reranker: Reranker, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    compressor = EmbedlibRerank(reranker=reranker, top_n=None)
    squashing = EmbedlibRerank(reranker=reranker, rank_kwargs={"activation_fn": "sigmoid"})
    expected = compressor.compress_documents(documents, "q")
    squashed = squashing.compress_documents(documents, "q")
    monkeypatch.setattr(Reranker, "rank", None)  # no thread that runs the other method
    assert await compressor.acompress_documents(documents, "q") == expected
    assert await squashing.acompress_documents(documents, "q") == squashed
    assert texts(expected) == BEST_FIRST
    assert squashed[0].metadata["relevance_score"] != expected[0].metadata["relevance_score"]


def test_nothing_retrieved(reranker: Reranker) -> None:
    assert EmbedlibRerank(reranker=reranker).compress_documents([], "q") == []


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (["text"], "document 0 is 'text', a str; it must be a langchain_core Document"),
        ([Document("a"), None], "document 1 is None, a NoneType"),
        (Document("a"), "pass a list of Documents"),
        (None, "documents = None; pass a list of Documents"),
    ],
)
async def test_what_is_no_document(reranker: Reranker, documents: Any, message: str) -> None:
    compressor = EmbedlibRerank(reranker=reranker)
    with pytest.raises(InputError, match=message):
        compressor.compress_documents(documents, "q")
    with pytest.raises(InputError, match=message):
        await compressor.acompress_documents(documents, "q")


def test_behind_a_retriever(reranker: Reranker, documents: list[Document]) -> None:
    class All(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun
        ) -> list[Document]:
            return documents

    compressor = EmbedlibRerank(reranker=reranker, top_n=2)
    chain = RunnablePassthrough.assign(documents=lambda asked: All().invoke(asked["query"]))
    found = (chain | RunnableLambda(lambda x: compressor.compress_documents(**x))).invoke(
        {"query": "q"}
    )
    assert texts(found) == BEST_FIRST[:2]


def test_arguments_of_rank(
    reranker: Reranker, engine: FakeEngine, documents: list[Document]
) -> None:
    compressor = EmbedlibRerank(
        reranker=reranker, rank_kwargs={"prompt_name": "web", "activation_fn": "sigmoid"}
    )
    found = compressor.compress_documents(documents[:1], "q")
    assert bytes(engine.batches[-1].token_ids.tolist()) == b"W: qbb"
    assert found[0].metadata["relevance_score"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_k": 5}, "has no field 'top_k'; did you mean 'top_n'"),
        ({"threads": 2}, r"has no field 'threads'; pass model_kwargs=\{'threads'"),
        ({"max_length": 9}, r"has no field 'max_length'; pass model_kwargs=\{'max_seq_tokens'"),
        ({"instruction": "find"}, r"has no field 'instruction'; pass rank_kwargs="),
        ({"model": "a"}, "and reranker is a loaded one; pass"),
        ({"model": "a", "model_name": "a"}, "are the same field"),
        ({"rank_kwargs": {"top_k": 5}}, "rank_kwargs cannot hold 'top_k'; known: prompt_name"),
        ({"rank_kwargs": {"instruction": "find"}}, "this model has no template"),
        ({"rank_kwargs": {"prompt_name": "wbe"}}, "prompt_name = 'wbe'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    fields: dict[str, Any], message: str, reranker: Reranker
) -> None:
    with pytest.raises(ConfigError, match=message):
        EmbedlibRerank(reranker=reranker, **fields)


def test_a_model_is_needed_and_it_must_exist(tmp_path: Path, reranker: Reranker) -> None:
    with pytest.raises(ConfigError, match="no model was given; pass model=, or reranker= to"):
        EmbedlibRerank()
    for name in ("model", "model_name"):
        with pytest.raises(
            ConfigError, match=r"^model = Reranker\(.*\) is loaded.*; pass reranker="
        ):
            EmbedlibRerank(**{name: reranker})
    with pytest.raises(ConfigError, match=r"reranker is a int; it must be an embedlib\.Reranker"):
        EmbedlibRerank(reranker=5)  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError):
        EmbedlibRerank(model=tmp_path / "nothing")
    with pytest.raises(pydantic.ValidationError, match="top_n"):
        EmbedlibRerank(model="a", top_n=0)


def test_a_reranker_of_its_own(
    tiny_folder: Callable[[str], Path], engine_cache: Path, documents: list[Document]
) -> None:
    options: dict[str, Any] = {"engine_cache_dir": engine_cache}
    folder = tiny_folder("bert-cross-encoder")
    with EmbedlibRerank(model=folder, model_kwargs=options, top_n=2) as compressor:
        found = compressor.compress_documents(documents, "a")
        shared = copy.deepcopy(compressor)
        assert shared.reranker is compressor.reranker
        shared.close()
        assert compressor.compress_documents(documents, "a") == found
        again = pickle.loads(pickle.dumps(compressor))
    with again:
        assert again.compress_documents(documents, "a") == found
    with pytest.raises(ClosedError):
        compressor.compress_documents(documents, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reranker, "close", closed := Mock())
        with pytest.raises(ConfigError, match="prompt_name = 'wbe'"):
            EmbedlibRerank(model=folder, model_kwargs=options, rank_kwargs={"prompt_name": "wbe"})
        assert closed.called


def test_one_that_is_shared_stays_open(reranker: Reranker) -> None:
    compressor = EmbedlibRerank(reranker=reranker)
    with compressor, pytest.raises(TypeError, match="made with reranker= cannot be pickled"):
        pickle.dumps(compressor)
    assert len(reranker.rank("q", TEXTS)) == 4
