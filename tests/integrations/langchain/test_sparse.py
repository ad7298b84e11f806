from __future__ import annotations

import asyncio
import builtins
import copy
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_qdrant import QdrantVectorStore, RetrievalMode, SparseEmbeddings
from langchain_qdrant.sparse_embeddings import SparseVector

from embedlib import Embedder
from embedlib.errors import ClosedError, ConfigError, InputError
from embedlib.testing import fake_embedder
from langchain_embedlib.sparse import EmbedlibSparse
from tests.tiny_models.sparse import SPARSE_VARIANTS, write_router, write_variant

TEXTS = ["the quick brown fox", "a river runs through the town", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_variant(
        tmp_path_factory.mktemp("sparse"), "bert-splade", SPARSE_VARIANTS["bert-splade"]
    )


@pytest.fixture
def sparse(
    folder: Path, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbedlibSparse]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(engine_cache))
    with EmbedlibSparse(model=folder) as made:
        yield made


def pairs(vector: SparseVector) -> dict[int, float]:
    return dict(zip(vector.indices, vector.values, strict=True))


def test_vectors_are_those_of_the_embedder(sparse: EmbedlibSparse) -> None:
    assert isinstance(sparse, SparseEmbeddings)
    expected = sparse.embedder.encode_document(TEXTS, output_value="sparse")
    assert [pairs(vector) for vector in sparse.embed_documents(TEXTS)] == expected
    assert pairs(sparse.embed_query(TEXTS[0])) == pytest.approx(expected[0], abs=1e-5)
    assert sparse.embed_documents([]) == []

    async def both() -> tuple[list[SparseVector], SparseVector]:
        return await sparse.aembed_documents(TEXTS), await sparse.aembed_query(TEXTS[0])

    documents, query = asyncio.run(both())
    assert [pairs(vector) for vector in documents] == expected
    assert pairs(query) == pytest.approx(expected[0], abs=1e-5)


def test_queries_have_the_table_of_an_inference_free_model(tmp_path: Path) -> None:
    with EmbedlibSparse(model=write_router(tmp_path)) as sparse:
        (expected,) = sparse.embedder.encode_query(TEXTS[:1], output_value="sparse")
        assert pairs(sparse.embed_query(TEXTS[0])) == expected
        assert pairs(sparse.embed_documents(TEXTS[:1])[0]) != expected


def test_the_greatest_weights_alone(sparse: EmbedlibSparse) -> None:
    with EmbedlibSparse(embedder=sparse.embedder, max_active_dims=3) as few:
        whole, kept = (pairs(each.embed_query(TEXTS[0])) for each in (sparse, few))
    assert sorted(kept.values()) == sorted(whole.values())[-3:]
    assert sparse.embed_query(TEXTS[0])  # of the caller's, which stays open


@pytest.mark.parametrize("mode", [RetrievalMode.SPARSE, RetrievalMode.HYBRID])
def test_a_vector_store_finds_what_it_was_given(
    sparse: EmbedlibSparse, mode: RetrievalMode
) -> None:
    store = QdrantVectorStore.from_documents(
        [Document(text) for text in TEXTS[:2]],
        DeterministicFakeEmbedding(size=4),
        sparse_embedding=sparse,
        retrieval_mode=mode,
        location=":memory:",
    )
    for text in TEXTS[:2]:
        assert store.similarity_search(text, k=1)[0].page_content == text
    store.client.close()


def test_a_str_is_no_list_of_documents(sparse: EmbedlibSparse) -> None:
    wrong: Any = "text"
    for call in (sparse.embed_documents, lambda text: asyncio.run(sparse.aembed_documents(text))):
        with pytest.raises(InputError, match="texts is one str"):
            call(wrong)
    wrong = ["text"]
    with pytest.raises(InputError, match=r"text 0 is .*a list"):
        sparse.embed_query(wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no model was given; pass model=, or embedder= to share one"),
        ({"model": "m", "batch_size": 8}, "has no field 'batch_size'; leave it out"),
        ({"model": "m", "max_length": 5}, "no field 'max_length'; pass model_kwargs="),
        ({"model": "m", "cache_dir": "c"}, "has no field 'cache_dir'; pass cache_folder="),
        ({"model": "m", "threads": 2}, "has no field 'threads'; pass model_kwargs={'threads'"),
        ({"model": "m", "embedder": 3}, "embedder is a int; it must be an embedlib.Embedder"),
    ],
)
def test_wrong_fields_are_refused_before_a_model_is_looked_for(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EmbedlibSparse(**fields)
    for value in (0, True):
        with pytest.raises(pydantic.ValidationError):
            EmbedlibSparse(model="m", max_active_dims=value)


def test_a_model_without_sparse_vectors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fake_embedder()
    monkeypatch.setattr(EmbedlibSparse, "_load", lambda self: made)
    with pytest.raises(ConfigError, match="needs a model that makes sparse vectors"):
        EmbedlibSparse(model="of its own")
    with pytest.raises(ClosedError):
        made.encode("text")


def test_an_embedder_of_the_caller_stays_open_when_it_is_refused() -> None:
    with fake_embedder() as given:
        with pytest.raises(ConfigError):
            EmbedlibSparse(embedder=given)
        assert len(given.encode("text"))


def test_copies_and_pickles(sparse: EmbedlibSparse) -> None:
    copied = copy.deepcopy(sparse)
    copied.close()
    expected = sparse.embed_query(TEXTS[0])
    with pickle.loads(pickle.dumps(sparse)) as again:
        assert again.embedder is not sparse.embedder
        assert pairs(again.embed_query(TEXTS[0])) == pairs(expected)
    with Embedder(str(sparse.model_name)) as embedder:
        EmbedlibSparse(embedder=embedder).close()
        assert embedder.encode(TEXTS[0], output_value="sparse")


def test_missing_langchain_qdrant_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("langchain_qdrant"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "langchain_embedlib.sparse")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"^langchain-qdrant is not installed; pip install lang"):
        importlib.import_module("langchain_embedlib.sparse")
