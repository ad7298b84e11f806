from __future__ import annotations

import asyncio
import copy
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from pydantic import BaseModel, ConfigDict, ValidationError

from embedlib import Document, Search, index
from embedlib.errors import ConfigError
from embedlib.testing import FakeSink, FakeStore, fake_embedder
from langchain_embedlib import EmbedlibRetriever


@pytest.fixture(scope="module")
def search() -> Iterator[Search]:
    store = FakeStore()
    rows = [Document(id=f"d{n}", text=f"{n} text", metadata={"n": n}) for n in range(9)]
    with fake_embedder() as embedder:
        index(rows, FakeSink(store), embedder=embedder)
        with Search(FakeSink(store), embedder) as made:
            yield made


def test_documents_with_their_scores(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = EmbedlibRetriever(search=search, top_k=2, where="n != 3")
    found = retriever.invoke("3 text")
    assert [document.metadata["n"] for document in found] != [3]
    assert len(found) == 2
    again = search.search("3 text", 2, where="n != 3")
    assert [document.metadata["relevance_score"] for document in found] == [
        hit.score for hit in again
    ]
    assert [document.id for document in found] == [str(hit.id) for hit in again]
    (exact,) = retriever.invoke("3 text", where=None, top_k=1)
    assert exact.page_content == "3 text"
    least = EmbedlibRetriever(search=search, min_score=exact.metadata["relevance_score"])
    assert least.invoke("3 text") == [exact]
    monkeypatch.setattr(Search, "search", None)  # no thread that runs the other method
    assert asyncio.run(retriever.ainvoke("3 text")) == found


def test_the_number_may_have_the_name_that_vector_stores_give_it(search: Search) -> None:
    assert EmbedlibRetriever(search=search, k=3).top_k == 3
    with pytest.raises(ConfigError, match="pass one of them"):
        EmbedlibRetriever(search=search, k=3, top_k=3)
    retriever = EmbedlibRetriever(search=search)
    assert retriever.top_k == 10
    assert retriever.invoke("3 text", k=2) == retriever.invoke("3 text", top_k=2)
    with pytest.raises(ConfigError, match="pass one of them"):
        retriever.invoke("3 text", k=2, top_k=2)


def test_callbacks_see_the_documents(search: Search) -> None:
    seen: list[Any] = []

    class Handler(BaseCallbackHandler):
        def on_retriever_end(self, documents: Any, **_: Any) -> None:
            seen.append(documents)

    found = EmbedlibRetriever(search=search).invoke("3 text", config={"callbacks": [Handler()]})
    assert seen == [found]


def test_a_wrong_field_is_refused(search: Search) -> None:
    with pytest.raises(ValidationError, match="top_k"):
        EmbedlibRetriever(search=search, top_k=0)
    for name, hint in (
        ("wher", "did you mean 'where'?"),
        ("filter", "pass where="),
        ("fetch_k", "known: "),
    ):
        given: Any = {name: "n = 3"}
        message = f"EmbedlibRetriever has no field {name!r}; {hint}"
        with pytest.raises(ConfigError, match=re.escape(message)):
            EmbedlibRetriever(search=search, **given)


def test_what_is_no_search_is_refused() -> None:
    url: Any = "edge:docs"
    with pytest.raises(ConfigError, match=r"search is a str; it must be an embedlib\.Search"):
        EmbedlibRetriever(search=url)


def test_other_fields_of_retrievers_and_copies(search: Search) -> None:
    retriever = EmbedlibRetriever(search=search, k=2, tags=["docs"], metadata={"a": 1}, name="docs")
    assert (retriever.tags, retriever.get_name()) == (["docs"], "docs")
    found = retriever.invoke("3 text")
    assert len(found) == 2
    assert copy.copy(retriever).invoke("3 text") == found
    assert retriever.model_copy(update={"top_k": 1}).invoke("3 text") == found[:1]
    number = ConfigurableField(id="top_k")
    one = retriever.configurable_fields(top_k=number).with_config(configurable={"top_k": 1})
    assert one.invoke("3 text") == found[:1]


def test_a_deep_copy_asks_the_same_search(search: Search) -> None:
    retriever = EmbedlibRetriever(search=search, k=2, metadata={"a": [1]})
    copied = copy.deepcopy(retriever)
    assert copied.search is search
    assert copied.metadata is not retriever.metadata
    assert copied.invoke("3 text") == retriever.invoke("3 text")
    assert retriever.model_copy(deep=True).search is search

    class Answers(BaseModel):  # pydantic copies a default for each object
        model_config = ConfigDict(arbitrary_types_allowed=True)
        asked: BaseRetriever = retriever

    assert Answers().asked.invoke("3 text") == retriever.invoke("3 text")
    with pytest.raises(TypeError, match="a Search cannot be pickled or copied; share it"):
        pickle.dumps(retriever)


def test_a_class_made_from_it_may_have_fields_of_its_own(search: Search) -> None:
    class Named(EmbedlibRetriever):
        source: str = ""

    given: Any = {"source": "docs"}
    assert Named(search=search, **given).source == "docs"
