from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.vectorstores import InMemoryVectorStore

from embedlib import Embedder
from embedlib.engines.base import Lane
from embedlib.errors import (
    ClosedError,
    ConfigError,
    InputError,
    ModelNotFoundError,
)
from embedlib.packages.installing import install_line
from embedlib.testing import FakeEngine, fake_embedder, fake_spec, fake_vector
from langchain_embedlib import EmbedlibEmbeddings
from tests.tiny_models.sparse import write_router

PROMPTS = {"query": "Q: ", "passage": "P: ", "sts": "S: "}
SECRET = "hf_verysecret"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test loads or is given is closed when it ends."""
    yield
    assert embedder_threads() == []


@pytest.fixture(autouse=True)
def _keep_compiled_models_here(engine_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(engine_cache))


def embedder_threads() -> list[str]:
    names = ("embedlib-tokenizer", "embedlib-batches")  # an engine of another test may live on
    return [each.name for each in threading.enumerate() if each.name in names]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def embedder(engine: FakeEngine) -> Iterator[Embedder]:
    with fake_embedder(engine, fake_spec(prompts=PROMPTS)) as embedder:
        yield embedder


@pytest.fixture
def load(tiny_folder: Callable[[str], Path]) -> Iterator[Callable[..., EmbedlibEmbeddings]]:
    """Return a function that loads a tiny model as a user does."""
    loaded: list[EmbedlibEmbeddings] = []

    def load(variant: str = "bert", **fields: Any) -> EmbedlibEmbeddings:
        loaded.append(EmbedlibEmbeddings(model=str(tiny_folder(variant)), **fields))
        return loaded[-1]

    yield load
    for embeddings in loaded:
        embeddings.close()


def vector(text: str, prompt: str = "") -> list[float]:
    """What FakeEngine makes of a text."""
    floats: list[float] = fake_vector((prompt + text).encode()).tolist()
    return floats


# --- what a vector is -----------------------------------------------------------------------------


def test_the_fields_are_those_of_huggingface_embeddings() -> None:
    # Source: huggingface.py of langchain-huggingface 1.2.3. Its default model is named by the error
    # of a missing one: nobody downloads 400 MB unasked.
    fields = EmbedlibEmbeddings.model_fields
    assert {
        name: field.get_default(call_default_factory=True) for name, field in fields.items()
    } == {
        "model_name": None,
        "cache_folder": None,
        "model_kwargs": {},
        "encode_kwargs": {},
        "query_encode_kwargs": {},
        "multi_process": False,
        "show_progress": False,
    }
    assert fields["model_name"].alias == "model"


def test_a_model_without_one_vector_per_text_is_refused(
    load: Callable[..., EmbedlibEmbeddings], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="needs one vector per text, and this model is a late-in"):
        load("late-modernbert")
    with pytest.raises(ConfigError, match="needs one vector per text, and this model is sparse"):
        EmbedlibEmbeddings(model=str(write_router(tmp_path)))


def test_documents_and_queries_get_their_own_prompts(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    assert embeddings.embed_documents(["a", "b"]) == [vector("a", "P: "), vector("b", "P: ")]
    assert embeddings.embed_query("a") == vector("a", "Q: ")


def test_rows_come_in_order_as_lists_of_python_floats(embedder: Embedder) -> None:
    texts = [chr(97 + index % 26) * (1 + 7 * index % 20) for index in range(100)]
    rows = EmbedlibEmbeddings(embedder=embedder).embed_documents(texts)
    assert rows == [vector(text, "P: ") for text in texts]
    assert type(rows) is list
    assert {type(row) for row in rows} == {list}
    assert {type(value) for row in rows for value in row} == {float}


def test_a_query_is_a_list_of_python_floats(embedder: Embedder) -> None:
    row = EmbedlibEmbeddings(embedder=embedder).embed_query("a")
    assert type(row) is list
    assert {type(value) for value in row} == {float}


@pytest.mark.parametrize("text", ["a\nb", " a\t ", "a\r\n\r\nb"])
def test_texts_are_not_altered(embedder: Embedder, text: str) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    assert embeddings.embed_documents([text]) == [vector(text, "P: ")]
    assert embeddings.embed_query(text) == vector(text, "Q: ")


def test_no_documents_give_no_vectors(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    assert embeddings.embed_documents([]) == []
    assert asyncio.run(embeddings.aembed_documents([])) == []


def test_a_str_is_no_list_of_documents(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    with pytest.raises(InputError, match="texts is one str"):
        embeddings.embed_documents("abc")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="texts is one str"):
        asyncio.run(embeddings.aembed_documents("abc"))  # type: ignore[arg-type]


def test_a_list_is_no_query(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    with pytest.raises(InputError, match="it must be a str"):
        embeddings.embed_query(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it must be a str"):
        asyncio.run(embeddings.aembed_query(["a", "b"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "lane"),
    [
        (lambda embeddings: embeddings.embed_documents(["a"]), Lane.BULK),
        (lambda embeddings: embeddings.embed_query("a"), Lane.QUERY),
        (lambda embeddings: asyncio.run(embeddings.aembed_documents(["a"])), Lane.BULK),
        (lambda embeddings: asyncio.run(embeddings.aembed_query("a")), Lane.QUERY),
    ],
)
def test_queries_overtake_documents(
    engine: FakeEngine, embedder: Embedder, call: Callable[[EmbedlibEmbeddings], Any], lane: Lane
) -> None:
    call(EmbedlibEmbeddings(embedder=embedder))
    assert [batch.lane for batch in engine.batches] == [lane]


# --- asyncio --------------------------------------------------------------------------------------


def test_async_gives_what_sync_gives(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(
        embedder=embedder,
        encode_kwargs={"normalize_embeddings": True, "batch_size": 2},
        query_encode_kwargs={"prompt_name": "sts", "truncate_dim": 2},
    )
    texts = ["b", "a", "c\nd"]
    assert asyncio.run(embeddings.aembed_documents(texts)) == embeddings.embed_documents(texts)
    assert asyncio.run(embeddings.aembed_query("a")) == embeddings.embed_query("a")
    assert embeddings.embed_query("a") == vector("a", "S: ")[:2]


def test_many_tasks_get_their_own_vectors_without_a_thread_each(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("LangChain's default ran: a thread that blocks")

    monkeypatch.setattr("langchain_core.embeddings.embeddings.run_in_executor", refuse)
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    texts = [f"text {index}" for index in range(300)]
    jobs = [texts[start : start + 50] for start in range(0, 300, 50)]

    async def everything() -> tuple[list[Any], list[Any]]:
        queries = asyncio.gather(*(embeddings.aembed_query(text) for text in texts))
        documents = asyncio.gather(*(embeddings.aembed_documents(job) for job in jobs))
        return await queries, await documents

    queries, documents = asyncio.run(everything())
    assert queries == [vector(text, "Q: ") for text in texts]
    assert documents == [[vector(text, "P: ") for text in job] for job in jobs]


def test_the_event_loop_runs_while_vectors_are_computed(
    engine: FakeEngine, embedder: Embedder
) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)

    async def everything() -> list[Any]:
        engine.hold()
        waiting = [
            asyncio.create_task(embeddings.aembed_query("a")),
            asyncio.create_task(embeddings.aembed_documents(["b"])),
        ]
        await asyncio.to_thread(engine.wait_submitted, 2)
        assert not any(task.done() for task in waiting)
        engine.release()
        return await asyncio.gather(*waiting)

    assert asyncio.run(everything()) == [vector("a", "Q: "), [vector("b", "P: ")]]


def test_the_event_loop_runs_while_many_vectors_become_floats(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    texts = [f"text {index}" for index in range(10)]
    expected = embeddings.embed_documents(texts)
    turns: list[str] = []

    class Watched(np.ndarray[Any, Any]):
        def tolist(self) -> Any:
            turns.append(f"{len(self)} rows")
            return super().tolist()

    async def encode(*_: object, **__: object) -> Any:
        return np.array(expected, np.float32).view(Watched)

    async def everything() -> Any:
        embedding = asyncio.create_task(embeddings.aembed_documents(texts))
        while not embedding.done():
            turns.append("another task")
            await asyncio.sleep(0)
        return await embedding

    monkeypatch.setattr(Embedder, "aencode_document", encode)
    monkeypatch.setattr("langchain_embedlib.embeddings._LOOP_NUMBERS", 4 * len(expected[0]) + 1)
    assert asyncio.run(everything()) == expected
    others = "another task"
    assert turns == [others, "4 rows", others, "4 rows", others, "2 rows", others][: len(turns)]
    assert turns.count(others) >= 3


# --- arguments of encode --------------------------------------------------------------------------


def test_arguments_for_documents_and_queries(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(
        embedder=embedder,
        encode_kwargs={"prompt": "D: "},
        query_encode_kwargs={"prompt_name": "sts", "truncate_dim": 3},
    )
    assert embeddings.embed_documents(["a"]) == [vector("a", "D: ")]
    assert embeddings.embed_query("a") == vector("a", "S: ")[:3]


def test_arguments_for_documents_hold_for_queries_too_where_those_have_none(
    embedder: Embedder,
) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder, encode_kwargs={"normalize_embeddings": True})
    [document], query = embeddings.embed_documents(["a"]), embeddings.embed_query("a")
    for row, prompt in ((document, "P: "), (query, "Q: ")):
        expected = np.array(vector("a", prompt)) / np.linalg.norm(vector("a", prompt))
        np.testing.assert_allclose(row, expected, rtol=1e-6)


@pytest.mark.parametrize("kwargs", [{"prompt": "S: "}, {"prompt_name": "sts"}])
def test_a_prompt_for_documents_that_queries_get_too_is_told(
    embedder: Embedder, kwargs: dict[str, str]
) -> None:
    with pytest.warns(UserWarning, match="queries get the same prompt") as told:
        embeddings = EmbedlibEmbeddings(embedder=embedder, encode_kwargs=kwargs)
    assert [warning.filename for warning in told] == [__file__]
    assert embeddings.embed_query("a") == vector("a", "S: ")
    EmbedlibEmbeddings(embedder=embedder, encode_kwargs=kwargs, query_encode_kwargs=kwargs)


def test_no_prompt_at_all_can_be_asked_for(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder, encode_kwargs={"prompt": ""})
    assert embeddings.embed_documents(["a"]) == [vector("a")]
    assert embeddings.embed_query("a") == vector("a")


def test_arguments_that_change_no_vector_are_accepted(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(
        embedder=embedder,
        encode_kwargs={
            "batch_size": 128,
            "device": "cpu",
            "precision": "float32",
            "output_value": "sentence_embedding",
            "convert_to_numpy": True,
            "convert_to_tensor": True,
        },
    )
    assert embeddings.embed_documents(["a"]) == [vector("a", "P: ")]
    assert embeddings.embed_query("a") == vector("a", "Q: ")


@pytest.mark.parametrize("field", ["encode_kwargs", "query_encode_kwargs"])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"normalise_embeddings": True}, r"_kwargs .*'normalise_e.*mean 'normalize_embeddings'\?"),
        ({"pool": None}, r"_kwargs cannot hold 'pool'; known: prompt_name, prompt, task, normali"),
        ({"show_progress_bar": True}, r"_kwargs cannot hold 'show_progress_bar'; pass show_progre"),
        ({"role": "document"}, r"_kwargs cannot hold 'role'"),
        ({"task": "find"}, r"task = 'find'; this model's tasks are: "),
        ({"precision": "int8"}, r"precision = 'int8' is not supported"),
        ({"output_value": "token_embeddings"}, r"output_value = 'token_embeddings' is not supp"),
        ({"device": "cuda"}, r"device = 'cuda'; it must be None or 'cpu'; pass any"),
        ({"batch_size": 0}, r"batch_size = 0; it must be a whole number of at"),
        ({"truncate_dim": 0}, r"truncate_dim = 0; it must be a whole number of at least 1"),
        ({"prompt_name": "qeury"}, r"prompt_name = 'qeury'; this model's prompts are: 'query'"),
    ],
)
@pytest.mark.filterwarnings("ignore:encode_kwargs names a prompt")
def test_wrong_arguments_are_refused_at_once(
    embedder: Embedder, field: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        EmbedlibEmbeddings(embedder=embedder, **{field: kwargs})
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("terminal")
def test_documents_show_progress_where_asked(
    embedder: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    EmbedlibEmbeddings(embedder=embedder).embed_documents(["a"])
    embeddings = EmbedlibEmbeddings(embedder=embedder, show_progress=True)
    embeddings.embed_query("a")
    assert capsys.readouterr().err == ""
    embeddings.embed_documents(["a", "b"])
    assert "2/2" in capsys.readouterr().err


# --- the model ------------------------------------------------------------------------------------


def test_options_reach_the_embedder(
    load: Callable[..., EmbedlibEmbeddings], tmp_path: Path
) -> None:
    embeddings = load(
        cache_folder=str(tmp_path / "hub"),
        model_kwargs={"truncate_dim": 5, "device": "cpu", "prompts": PROMPTS},
    )
    assert len(embeddings.embed_query("a river")) == 5
    assert embeddings.embedder.config.cache_folder == str(tmp_path / "hub")
    assert embeddings.embedder.config.device == "cpu"
    assert embeddings.embedder.task_prompt_name("document") == "passage"


def test_trust_remote_code_is_accepted_and_told(load: Callable[..., EmbedlibEmbeddings]) -> None:
    with pytest.warns(UserWarning, match="never runs code"):
        load(model_kwargs={"trust_remote_code": True})


def test_a_model_has_two_names_and_may_be_a_path(tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder("bert")
    with (
        EmbedlibEmbeddings(model_name=folder) as by_field,
        EmbedlibEmbeddings(model=str(folder)) as by_alias,
    ):
        assert by_field.embed_query("a river") == by_alias.embed_query("a river")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no model was given; pass model=.* model='sentence-transformers/all-mpnet-base-v2'"),
        ({"model": "m", "model_name": "m"}, "are the same field"),
        ({"modle": "m"}, "no field 'modle'; did you mean 'model'?"),
        ({"model": "m", "truncate_dim": 5}, r"pass model_kwargs=\{'truncate_dim': ...\}"),
        ({"model": "m", "token": SECRET}, r"no field 'token'; pass model_kwargs="),
        ({"model": "m", "trust_remote_code": True}, r"pass model_kwargs="),
        ({"model": "m", "batch_size": 5}, r"pass encode_kwargs=\{'batch_size': ...\}"),
        ({"model": "m", "max_length": 5}, r"pass model_kwargs=\{'max_seq_tokens': ...\}"),
        ({"model": "m", "query_instruction": "q"}, r"pass query_encode_kwargs=\{'prompt': ...\}"),
        ({"model": "m", "xyz": 5}, "no field 'xyz'; known: embedder, model, model_name"),
        ({"model": "m", "multi_process": True}, "multi_process = True is not supported"),
        ({"model": "m", "embedder": "m"}, "embedder is a str; it must be an embedlib.Embedder"),
        (
            {"model": "m", "cache_folder": "a", "model_kwargs": {"cache_folder": "b"}},
            "cache_folder is given twice",
        ),
        ({"model": "m", "model_kwargs": {"config": None}}, "model_kwargs cannot hold a config"),
        ({"model": "m", "model_kwargs": {"revison": "x"}}, "did you mean 'revision'?"),
        ({"model": "m", "model_kwargs": {"backend": "onnx"}}, "'backend'; leave it out: a CPU t"),
        (
            {"model": "m", "model_kwargs": {"default_prompt_name": "web"}},
            r"default_prompt_name = 'web' .* pass encode_kwargs=\{'prompt_name': 'web'\}",
        ),
        ({"model": "m", "encode_kwargs": {"x": 1}}, "encode_kwargs cannot hold 'x'"),
    ],
)
def test_wrong_fields_are_refused_before_a_model_is_looked_for(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        EmbedlibEmbeddings(**fields)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "fields", [{"model": "m"}, {"cache_folder": "c"}, {"model_kwargs": {"device": "cpu"}}]
)
def test_an_embedder_has_a_model_already(embedder: Embedder, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="embedder is a loaded one; pass"):
        EmbedlibEmbeddings(embedder=embedder, **fields)


def test_a_missing_model_is_told_as_by_the_embedder() -> None:
    with pytest.raises(ModelNotFoundError, match="package:not-there"):
        EmbedlibEmbeddings(model="package:not-there")


def test_fields_cannot_be_changed(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        embeddings.show_progress = True


def test_a_class_made_from_this_one_may_have_fields_of_its_own(embedder: Embedder) -> None:
    class Labelled(EmbedlibEmbeddings):
        label: str = ""

    assert Labelled(embedder=embedder, label="mine").label == "mine"


# --- life cycle -----------------------------------------------------------------------------------


def test_an_embedder_of_the_caller_stays_open(engine: FakeEngine, embedder: Embedder) -> None:
    with EmbedlibEmbeddings(embedder=embedder) as embeddings:
        assert embeddings.embedder is embedder
    embeddings.close()
    del embeddings
    gc.collect()
    assert not engine.is_closed
    assert EmbedlibEmbeddings(embedder=embedder).embed_query("a") == vector("a", "Q: ")


def test_a_model_of_its_own_is_closed(load: Callable[..., EmbedlibEmbeddings]) -> None:
    with load() as embeddings:
        assert embedder_threads() != []
    assert embedder_threads() == []
    embeddings.close()
    with pytest.raises(ClosedError):
        embeddings.embed_query("a river")


def test_a_model_of_its_own_goes_with_the_object(tiny_folder: Callable[[str], Path]) -> None:
    embeddings = EmbedlibEmbeddings(model=tiny_folder("bert"))
    assert embedder_threads() != []
    del embeddings
    gc.collect()
    assert embedder_threads() == []


def test_a_model_is_closed_when_an_argument_does_not_fit_it(
    load: Callable[..., EmbedlibEmbeddings],
) -> None:
    with pytest.raises(ConfigError, match="truncate_dim = 0; it must be") as caught:
        load(encode_kwargs={"truncate_dim": 0})
    # The traceback still holds the object: it was closed, not collected.
    assert caught.tb is not None
    assert embedder_threads() == []


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda embeddings: embeddings.model_copy(),
        lambda embeddings: embeddings.model_copy(deep=True),
        lambda embeddings: embeddings.copy(),  # of pydantic 1
    ],
)
@pytest.mark.filterwarnings("ignore:The `copy` method is deprecated")
def test_a_copy_shares_the_model(
    load: Callable[..., EmbedlibEmbeddings],
    duplicate: Callable[[EmbedlibEmbeddings], EmbedlibEmbeddings],
) -> None:
    embeddings = load()
    copied = duplicate(embeddings)
    assert copied.embedder is embeddings.embedder
    copied.close()
    assert copied.embed_query("a river") == embeddings.embed_query("a river")
    embeddings.close()
    with pytest.raises(ClosedError):
        copied.embed_query("a river")


def test_what_loads_the_same_model_twice_is_not_equal(
    load: Callable[..., EmbedlibEmbeddings],
) -> None:
    first, second = load(), load()
    assert first != second
    assert first == first.model_copy()


def test_a_deep_copy_has_its_own_fields(embedder: Embedder) -> None:
    embeddings = EmbedlibEmbeddings(embedder=embedder, encode_kwargs={"prompt": ""})
    copied = copy.deepcopy(embeddings)
    copied.encode_kwargs["prompt"] = "x"
    assert embeddings.encode_kwargs == {"prompt": ""}


def test_a_pickle_loads_the_model_again(load: Callable[..., EmbedlibEmbeddings]) -> None:
    embeddings = load("bert-prompt", query_encode_kwargs={"normalize_embeddings": True})
    with pickle.loads(pickle.dumps(embeddings)) as again:
        assert again.embedder is not embeddings.embedder
        assert again.embed_query("a river") == embeddings.embed_query("a river")
        assert again.embed_documents(["a river"]) == embeddings.embed_documents(["a river"])


def test_what_cannot_be_pickled_says_so(
    embedder: Embedder, load: Callable[..., EmbedlibEmbeddings]
) -> None:
    with pytest.raises(TypeError, match="made with embedder= cannot be pickled; make it with mod"):
        pickle.dumps(EmbedlibEmbeddings(embedder=embedder))
    with pytest.raises(TypeError, match="made with a token cannot be pickled") as caught:
        pickle.dumps(load(model_kwargs={"token": SECRET}))
    assert SECRET not in str(caught.value)


def test_a_token_reaches_the_embedder_and_is_never_shown(
    load: Callable[..., EmbedlibEmbeddings],
) -> None:
    embeddings = load(model_kwargs={"token": SECRET})
    assert embeddings.embedder.config.token == SECRET
    for shown in (
        repr(embeddings),
        str(embeddings),
        repr(embeddings.model_dump()),
        embeddings.model_dump_json(),
        repr(dumpd(embeddings)),
        repr(vars(embeddings)),
        repr(copy.deepcopy(embeddings)),
    ):
        assert "model_kwargs" in shown
        assert SECRET not in shown


def test_the_callers_own_options_are_left_alone(load: Callable[..., EmbedlibEmbeddings]) -> None:
    options = {"token": SECRET, "device": "cpu"}
    folder = load().model_name
    EmbedlibEmbeddings(model=folder, model_kwargs=options).close()
    assert options == {"token": SECRET, "device": "cpu"}


@pytest.mark.parametrize("fields", [{"model_kwargs": SECRET}, {"model_name": [SECRET]}])
def test_a_field_of_the_wrong_type_is_not_shown(fields: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        EmbedlibEmbeddings(**fields)
    assert SECRET not in str(caught.value)


# --- in LangChain ---------------------------------------------------------------------------------


def test_a_vector_store_finds_what_it_was_given(load: Callable[..., EmbedlibEmbeddings]) -> None:
    texts = ["a river runs to the sea", "the city is loud", "a path\nreturns"]
    store = InMemoryVectorStore(load())
    store.add_documents([Document(text, metadata={"row": row}) for row, text in enumerate(texts)])
    for row, text in enumerate(texts):
        [(found, score)] = store.similarity_search_with_score(text, k=1)
        assert (found.page_content, found.metadata) == (text, {"row": row})
        assert score == pytest.approx(1.0, abs=1e-5)


def test_a_retriever_answers_many_questions_at_once(
    load: Callable[..., EmbedlibEmbeddings],
) -> None:
    texts = [f"document number {index}" for index in range(30)]
    store = InMemoryVectorStore(load())

    async def everything() -> list[list[Document]]:
        await store.aadd_texts(texts)
        return await store.as_retriever(search_kwargs={"k": 1}).abatch(list(texts))

    found = asyncio.run(everything())
    assert [document.page_content for [document] in found] == texts


def test_a_wrong_field_is_told_through_pydantic_too(embedder: Embedder) -> None:
    assert EmbedlibEmbeddings.model_validate({"embedder": embedder}).embedder is embedder
    with pytest.raises(ValueError, match=r"did you mean 'model'\?"):
        EmbedlibEmbeddings.model_validate({"modle": "m"})


def test_missing_langchain_core_is_told_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "langchain_embedlib")
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(ImportError, match=re.escape(install_line("langchain"))):
        importlib.import_module("langchain_embedlib")
