from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, as_completed, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing.managers import public_methods  # type: ignore[attr-defined] # typeshed lacks it
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import embedlib
from embedlib import Embedder
from embedlib.batching import pipeline as pipeline_module
from embedlib.batching.callers import Callers
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.policy import DEFAULT_POLICY
from embedlib.batching.sequence import Job
from embedlib.batching.usage import Usage
from embedlib.config import Config
from embedlib.engines.base import Batch, Lane
from embedlib.errors import (
    ClosedError,
    ConfigError,
    EmbedlibError,
    EngineRunError,
    InputError,
    ModelNotFoundError,
    PromptWarning,
    QueueFullError,
    SequenceTooLongError,
    TruncationWarning,
)
from embedlib.models.known_models import KnownModel, Truncation
from embedlib.models.spec import Dense, Normalize, Pooling
from embedlib.packages.foreign_options import FOREIGN_CLASSES
from embedlib.session.call import EmbeddingCall
from embedlib.session.ending import Ending
from embedlib.session.foreign_names import FOREIGN_NAMES, SET_ELSEWHERE, instead_of_argument
from embedlib.session.running import ASYNC_ROWS, aconvert
from embedlib.session.streaming import STREAM_JOB_TEXTS, STREAM_JOBS
from embedlib.testing import (
    FAKE_DIM,
    FakeEngine,
    FakeSink,
    FakeStore,
    byte_tokenizer,
    fake_embedder,
    fake_spec,
    fake_vector,
    write_tiny_model,
)
from embedlib.threads.closing import WorkerThread
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


PROMPTS = {"query": "Q: ", "passage": "P: ", "sts": "S: "}
NORMALIZED = (Pooling(modes=("mean",)), Normalize())


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    with fake_embedder() as embedder:
        yield embedder


@contextmanager
def around(engine: FakeEngine, **options: Any) -> Iterator[Embedder]:
    """An Embedder around an engine that may hold batches: a test that fails must not hang."""
    embedder = fake_embedder(engine, **options)
    try:
        yield embedder
    finally:
        engine.release()
        embedder.close()


def vector(text: str) -> NDArray[np.float32]:
    return fake_vector(text.encode())


def vectors(texts: Iterable[str]) -> NDArray[np.float32]:
    return np.array([vector(text) for text in texts])


def unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def texts_of(engine: FakeEngine) -> list[str]:
    """Every text that was submitted, as the byte tokenizer's ids tell it."""
    return [
        bytes(part.tolist()).decode()
        for batch in engine.batches
        for part in np.split(batch.token_ids, batch.cu_seqlens[1:-1])
    ]


# What goes in and what comes out.


def test_one_text_is_one_vector(embedder: Embedder) -> None:
    result = embedder.encode("hello")
    assert result.shape == (FAKE_DIM,)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, vector("hello"))


TEXTS = ["hello", "a", "wor" * 9, "b", "€ä"]


@pytest.mark.parametrize(
    "inputs",
    [
        TEXTS,
        tuple(TEXTS),
        (text for text in TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        dict.fromkeys(TEXTS).keys(),
    ],
    ids=["list", "tuple", "generator", "array of str", "array of objects", "keys"],
)
def test_many_texts_are_rows_in_their_order(embedder: Embedder, inputs: Any) -> None:
    np.testing.assert_array_equal(embedder.encode(inputs), vectors(TEXTS))


def test_hundreds_of_texts(embedder: Embedder) -> None:
    texts = [f"{row} {'x' * (row * 7 % 23)}" for row in range(700)]
    np.testing.assert_array_equal(embedder.encode(texts), vectors(texts))


@pytest.mark.parametrize("name", ["encode", "encode_query", "encode_document"])
def test_no_texts_are_no_rows(embedder: Embedder, name: str) -> None:
    result = getattr(embedder, name)([])
    assert result.shape == (0, FAKE_DIM)
    assert result.dtype == np.float32
    assert embedder.encode([], truncate_dim=2).shape == (0, 2)


def test_inputs_under_either_name(embedder: Embedder) -> None:
    for result in (embedder.encode(inputs=["a"]), embedder.encode(sentences=["a"])):
        np.testing.assert_array_equal(result, vectors(["a"]))
    np.testing.assert_array_equal(embedder.encode_query(sentences="a"), vector("a"))


@pytest.mark.parametrize("name", ["encode", "encode_stream", "submit_batch", "calibrate"])
@pytest.mark.parametrize("inputs", [None, 5])
def test_inputs_that_are_no_texts(embedder: Embedder, name: str, inputs: Any) -> None:
    parameter = "texts" if name in ("submit_batch", "calibrate") else "inputs"
    wanted = "a text or a list of texts" if name == "encode" else "a list of texts"
    with pytest.raises(InputError, match=f"^{parameter} = {inputs}; pass {wanted}$"):
        getattr(embedder, name)(inputs)


@pytest.mark.parametrize("name", ["encode_stream", "submit_batch", "calibrate"])
def test_one_text_where_many_are_needed(embedder: Embedder, name: str) -> None:
    with pytest.raises(InputError, match=f"puts is one str; {name} |texts is one str; {name} "):
        getattr(embedder, name)("a")
    with pytest.raises(InputError, match=r"^(inputs|texts) = array"):
        getattr(embedder, name)(np.array("a"))


def test_arrays_of_other_shapes(embedder: Embedder) -> None:
    np.testing.assert_array_equal(embedder.encode(np.array("a")), vector("a"))
    with pytest.raises(InputError, match=r"text 0 is \['a', 'b'\], a list; it must be a str"):
        embedder.encode(np.array([["a", "b"]]))
    with pytest.raises(InputError, match=r"text 0 is 1\.5, a float; it must be a str"):
        embedder.encode(np.array([1.5]))


@pytest.mark.parametrize("inputs", [{"id": "1", "text": "hello"}, {"a", "b"}])
def test_what_has_no_order_is_refused(inputs: Any, embedder: Embedder) -> None:
    with pytest.raises(InputError, match=r"inputs = \{.*; pass a text or a list of texts"):
        embedder.encode(inputs)


class DataFrame:
    """Of pandas: iterating over it gives the names of its columns."""

    columns = ("title", "text")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class Series:
    """Of pandas: what is looked up on the object may be a row."""

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.columns = texts, "a row named columns"

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


@pytest.mark.parametrize("name", ["encode", "encode_stream", "submit_batch", "calibrate"])
def test_a_table_is_refused_with_the_way_to_pass_a_column(embedder: Embedder, name: str) -> None:
    with pytest.raises(InputError, match=r"^(\w+) is a DataFrame, a table, .* \1\['text'\]$"):
        getattr(embedder, name)(DataFrame())


def test_a_column_of_a_table_is_a_list_of_texts(embedder: Embedder) -> None:
    np.testing.assert_array_equal(embedder.encode(Series(TEXTS)), vectors(TEXTS))


def test_a_column_of_arrow_is_a_list_of_texts(embedder: Embedder) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    table = pa.table({"text": TEXTS})
    for column in (table["text"], pa.array(TEXTS)):
        np.testing.assert_array_equal(embedder.encode(column), vectors(TEXTS))
        assert len(list(embedder.encode_stream(column))) == len(TEXTS)
        np.testing.assert_array_equal(embedder.submit_batch(column).result(), vectors(TEXTS))
    varied = ["hello", "a", "wor" * 9, "b", "zzzz" * 8]
    with fake_embedder(truncate_dim=3) as short:
        np.testing.assert_array_equal(short.calibrate(pa.array(varied)), short.calibrate(varied))
    with pytest.raises(InputError, match=r"^inputs is a Table, a table, .* inputs\['text'\]$"):
        embedder.encode(table)


@pytest.mark.parametrize("pair", [("a", "b"), ["a", "b"]])
def test_pairs_are_refused_with_what_scores_them(embedder: Embedder, pair: Any) -> None:
    with pytest.raises(
        InputError, match=r"^text 0 is .* it must be a str: score pairs with Rera.*prompt=$"
    ):
        embedder.encode([pair])


def test_of_a_dict_the_text_is_to_be_passed(embedder: Embedder) -> None:
    said = r"^text 0 is {'text': 'a'}, a dict; it must be a str: pass each\['text'\] of the dicts$"
    with pytest.raises(InputError, match=said):
        embedder.encode([{"text": "a"}])  # type: ignore[list-item]


def test_a_list_that_is_no_pair_is_not_called_one(embedder: Embedder) -> None:
    with pytest.raises(InputError, match=r"^text 0 is \['a'\], a list; it must be a str$"):
        embedder.encode([["a"]])


def test_a_precision_of_none_is_float32(embedder: Embedder) -> None:
    result = embedder.encode("a", precision=None)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, vector("a"))


def test_bytes_are_no_text(embedder: Embedder) -> None:
    # Iterated over, they would be called a list of numbers.
    with pytest.raises(
        InputError, match=r"inputs = b'abc'; pass a text or .* makes a text of bytes$"
    ):
        embedder.encode(b"abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, "", 5])
def test_a_model_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match=f"model = {name!r}; it must be a folder, a hub name"):
        Embedder(name)


@pytest.mark.parametrize("bad", [None, 3, b"a", ("a", "b"), ["a", "b"], "\udc00"])
def test_a_bad_text_is_named(embedder: Embedder, bad: Any) -> None:
    with pytest.raises(InputError, match=r"^text 70 "):
        embedder.encode([*["a"] * 70, bad, "b"])
    with pytest.raises(InputError, match=r"^text 1 "):
        embedder.encode_query(["a", bad])
    np.testing.assert_array_equal(embedder.encode("a"), vector("a"))


@pytest.mark.parametrize("name", ["encode", "encode_document", "calibrate"])
@pytest.mark.parametrize("bad", [None, float("nan"), "\ud800"])
def test_a_bad_text_is_found_before_the_first_is_computed(
    embedder: Embedder, name: str, bad: Any
) -> None:
    with pytest.raises(InputError, match=r"^text 1000 (is|has)"):
        getattr(embedder, name)([*map(str, range(1000)), bad])
    assert embedder.stats().tokenize_ms == 0


def test_the_order_of_arguments_is_that_of_sentence_transformers() -> None:
    names = [
        *("inputs", "prompt_name", "prompt", "batch_size", "show_progress_bar", "output_value"),
        *("precision", "convert_to_numpy", "convert_to_tensor", "device", "normalize_embeddings"),
        *("truncate_dim", "pool", "chunk_size"),
    ]
    for method in (Embedder.encode, Embedder.encode_query, Embedder.encode_document):
        parameters = list(inspect.signature(method).parameters.values())[1:]
        positional = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
        assert positional == names


def test_arguments_by_position() -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS)) as embedder:
        arguments = ("a", "sts", None, 32, False, "sentence_embedding", "float32", True, False)
        result = embedder.encode(*arguments, None, True, 2)
        np.testing.assert_allclose(result, unit(vector("S: a")[:2]), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0; it must be a whole number of at least 1"),
        ({"batch_size": -1}, "batch_size = -1"),
        ({"batch_size": "8"}, "batch_size = '8'; it must be a whole number of at least 1"),
        ({"prompt_name": ["a"]}, r"prompt_name = \['a'\]"),
        ({"output_value": "tokens"}, "output_value = 'tokens'; it must be one of sentence_emb"),
        ({"output_value": None}, "output_value = None; it must be one of sentence_embedding, "),
        ({"precision": "int4"}, "precision = 'int4'; it must be one of float32, float16, int8, "),
        ({"precision": "int8"}, "precision = 'int8' needs the range of every dimension; call emb"),
        ({"device": "cuda"}, "device = 'cuda'; it must be None or 'cpu'; pass any other to the "),
        ({"pool": {}}, "pool = {}; it must be None; one process uses all cores, and several dev"),
        ({"chunk_size": 10}, "chunk_size = 10; it must be None; batches are made by token budget"),
        ({"truncate_dim": 0}, "truncate_dim = 0; it must be a whole number of at least 1"),
        ({"truncate_dim": 2.0}, "truncate_dim = 2.0; it must be a whole number"),
        ({"truncate_dim": "2"}, "truncate_dim = '2'; it must be a whole number"),
        ({"truncate_dim": True}, "truncate_dim = True; it must be a whole number"),
        ({"prompt_name": "nope"}, "prompt_name = 'nope'; this model's prompts are: 'query', 'docu"),
        ({"prompt": 3}, "prompt = 3; it must be a str"),
    ],
)
def test_arguments_out_of_range(embedder: Embedder, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        embedder.encode(["a"], **options)


def test_a_future_keeps_no_other_vectors_than_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[weakref.ref[Job]] = []
    open_job = Pipeline.open_job

    def open_noted(*args: Any) -> Job:
        job = open_job(*args)
        jobs.append(weakref.ref(job))
        return job

    monkeypatch.setattr(Pipeline, "open_job", open_noted)
    with fake_embedder(truncate_dim=2) as embedder:
        future = embedder.submit_batch(TEXTS)
        assert future.result().shape == (len(TEXTS), 2)
    gc.collect()  # of the threads, which have ended
    assert [job() for job in jobs] == [None]
    assert future.done()


def test_batch_size_is_a_hint(embedder: Embedder) -> None:
    np.testing.assert_array_equal(embedder.encode(TEXTS, batch_size=1), vectors(TEXTS))


@pytest.mark.parametrize("device", ["cpu", ["cpu", "cpu"]])
def test_the_device_may_be_named(embedder: Embedder, device: Any) -> None:
    np.testing.assert_array_equal(embedder.encode("a", device=device), vector("a"))


def test_the_device_may_be_an_object_of_torch(embedder: Embedder) -> None:
    torch = pytest.importorskip("torch")
    result = embedder.encode("a", device=torch.device("cpu"), processing_kwargs=None)
    np.testing.assert_array_equal(result, vector("a"))
    with pytest.raises(ConfigError, match=r"device = device.*; it must be None or 'cpu'; pass any"):
        embedder.encode("a", device=torch.device("cuda"))


# Prompts.


@pytest.mark.parametrize(
    ("name", "options", "front"),
    [
        ("encode", {"role": "query"}, "Q: "),
        ("encode", {"task": "query"}, "Q: "),  # as sentence-transformers calls it
        ("encode", {"task": "document"}, "P: "),
        ("encode", {"task": "sts"}, "S: "),
        ("encode_document", {"task": "sts"}, "S: "),
        ("encode", {"prompt_name": "sts"}, "S: "),
        ("encode", {"prompt_name": "sts", "prompt": "mine: "}, "mine: "),
        ("encode", {"prompt": ""}, ""),
        ("encode_query", {}, "Q: "),
        ("encode_query", {"prompt_name": "sts"}, "S: "),
        ("encode_query", {"prompt": "mine: "}, "mine: "),
        ("encode_document", {}, "P: "),
    ],
)
def test_prompts(name: str, options: dict[str, Any], front: str) -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS)) as embedder:
        for inputs in ("a", ["a", "b"]):
            result = getattr(embedder, name)(inputs, **options)
            expected = vector(front + "a") if inputs == "a" else vectors([front + "a", front + "b"])
            np.testing.assert_array_equal(result, expected)
            asynchronous = getattr(embedder, f"a{name}")(inputs, **options)
            np.testing.assert_array_equal(asyncio.run(asynchronous), expected)


def test_the_default_prompt_is_put_in_front_everywhere() -> None:
    spec = fake_spec(prompts=PROMPTS, default_prompt_name="sts")
    with fake_embedder(spec=spec) as embedder:
        expected = vector("S: a")
        np.testing.assert_array_equal(embedder.encode("a"), expected)
        np.testing.assert_array_equal(next(embedder.encode_stream(["a"])), expected)
        futures = [embedder.submit("a", role=None), embedder.submit_batch(["a"], role=None)]
        for future in futures:
            np.testing.assert_array_equal(np.ravel(future.result(WAIT_SECONDS)), expected)


def test_streams_and_futures_know_roles_and_tasks() -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS)) as embedder:
        stream, submit, batch = embedder.encode_stream, embedder.submit, embedder.submit_batch
        found = {
            "Q: a": [next(stream(["a"], role="query")), submit("a").result(WAIT_SECONDS)],
            "P: a": [next(stream(["a"], role="document")), batch(["a"]).result(WAIT_SECONDS)[0]],
            "S: a": [
                next(stream(["a"], task="sts")),
                submit("a", task="sts").result(WAIT_SECONDS),
                batch(["a"], task="sts").result(WAIT_SECONDS)[0],
            ],
        }
        for text, results in found.items():
            for result in results:
                np.testing.assert_array_equal(result, vector(text))


TEMPLATE = "<{task}>{text}|"
EXAMPLES = [{"instruct": "i", "query": "q", "response": "r"}]


def test_tasks_in_words_and_examples() -> None:
    with fake_embedder(prompts={"query": TEMPLATE}, examples=EXAMPLES) as embedder:
        for options, expected in (
            ({}, "<i>q|r\n\n<t>a|"),
            ({"examples": [*EXAMPLES, *EXAMPLES]}, "<i>q|r\n\n<i>q|r\n\n<t>a|"),
            ({"examples": []}, "<t>a|"),
        ):
            calls: list[Any] = [
                embedder.encode_query("a", task="t", **options),
                embedder.encode_query(["a"], task="t", **options)[0],
                asyncio.run(embedder.aencode_query("a", task="t", **options)),
                next(embedder.encode_stream(["a"], role="query", task="t", **options)),
                embedder.submit("a", task="t", **options).result(WAIT_SECONDS),
            ]
            for result in calls:
                np.testing.assert_array_equal(result, vector(expected))
        np.testing.assert_array_equal(embedder.encode_document("a", task="t"), vector("a"))


def test_the_room_of_a_role_that_is_called_a_task() -> None:
    with fake_embedder(prompts={"query": "q: "}) as embedder:
        assert embedder.count_room(task="query") == embedder.count_room("query") == 32 - len("q: ")


def test_a_query_is_cut_and_its_frame_is_not() -> None:
    with fake_embedder(prompts={"query": TEMPLATE}, on_truncate="error") as embedder:
        room = embedder.count_room("query", task="t")
        assert room == 32 - len("<t>|")
        np.testing.assert_array_equal(
            embedder.encode_query("x" * room, task="t"), vector(f"<t>{'x' * room}|")
        )
        with pytest.raises(SequenceTooLongError, match="row 0: 33 tokens"):
            embedder.encode_query("x" * (room + 1), task="t")
    with fake_embedder(
        prompts={"query": TEMPLATE}, examples=EXAMPLES, on_truncate="ignore"
    ) as embedder:
        # Learned positions go on behind the limit of this model, so examples take no room.
        assert embedder.count_room("query", task="t") == room
        np.testing.assert_array_equal(
            embedder.encode_query("x" * 40, task="t"), vector(f"<i>q|r\n\n<t>{'x' * room}|")
        )


@pytest.mark.parametrize("role", ["search", "", 3])
def test_a_role_is_one_of_two(embedder: Embedder, role: Any) -> None:
    with pytest.raises(ConfigError, match=f"role = {role!r}; it must be 'query' or 'document'"):
        embedder.encode("a", role=role)
    for method in (embedder.count_room, embedder.task_prompt_name):
        with pytest.raises(ConfigError, match=f"role = {role!r}; it must be"):
            method(role)


def test_the_prompts_are_a_mapping() -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS), prompts={"x": "X: "}) as embedder:
        assert embedder.prompts == {**PROMPTS, "x": "X: "}


def test_plain_encode_warns_once_where_queries_and_documents_differ() -> None:
    spec = fake_spec(prompts=PROMPTS)

    async def wait(embedder: Embedder) -> Any:
        return await embedder.aencode("a")

    calls: list[Callable[[Embedder], Any]] = [
        lambda embedder: embedder.encode("a"),
        lambda embedder: embedder.encode(["a"])[0],
        lambda embedder: asyncio.run(wait(embedder)),
        lambda embedder: next(embedder.encode_stream(["a"])),
    ]
    for call in calls:
        with fake_embedder(spec=spec) as embedder:
            with pytest.warns(
                PromptWarning, match='use encode_query and encode_document.* \\(--prompt ""\\)'
            ) as caught:
                result = call(embedder)
            assert [warning.filename for warning in caught] == [__file__]
            np.testing.assert_array_equal(result, vector("a"))  # what sentence-transformers gives
            for again in calls:  # warnings are errors: a second one would fail
                again(embedder)


def test_no_warning_where_it_is_said_what_is_meant() -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS)) as embedder:
        for options in ({"prompt": ""}, {"prompt_name": "sts"}, {"task": "sts"}, {"role": "query"}):
            embedder.encode("a", **options)
        embedder.encode_query("a")
        embedder.encode_document("a")
        embedder.submit("a").result(WAIT_SECONDS)
    for spec in (fake_spec(), fake_spec(prompts={"query": "", "document": ""})):
        with fake_embedder(spec=spec) as embedder:
            embedder.encode("a")
    with fake_embedder(spec=fake_spec(prompts=PROMPTS), default_prompt_name="sts") as embedder:
        embedder.encode("a")


@pytest.mark.parametrize("text", ["Q: a", "Q:a", "P: a"])
def test_no_warning_where_the_first_text_has_a_prompt_by_hand(text: str) -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS)) as embedder:
        embedder.encode([text, "b"])
        embedder.encode("b")  # who knows of prompts needs no warning later either


@pytest.mark.parametrize("text", ["S: a", " Q: a", "q: a"])
def test_a_prompt_of_neither_queries_nor_documents_is_none(text: str) -> None:
    with fake_embedder(spec=fake_spec(prompts=PROMPTS)) as embedder, pytest.warns(PromptWarning):
        embedder.encode(text)


def test_of_a_template_only_the_words_before_the_task_are_looked_for() -> None:
    prompts = {"query": "Instruct: {task}\nQuery: "}
    with fake_embedder(prompts=prompts) as embedder:
        embedder.encode(["Instruct: Find it\nQuery: a"])
    with fake_embedder(prompts=prompts) as embedder, pytest.warns(PromptWarning):
        embedder.encode([])


def test_prompts_are_known_of_a_hub_model_and_not_of_its_folder(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "models--BAAI--bge-small-en-v1.5"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    folder = write_tiny_model(root / "snapshots" / commit, "bert")
    sentence = "Represent this sentence for searching relevant passages: "
    with (
        Embedder("BAAI/bge-small-en-v1.5", cache_folder=tmp_path, local_files_only=True) as by_name,
        Embedder(folder) as by_folder,
    ):
        assert by_name.prompts == {"query": sentence}
        assert by_folder.prompts == {}
        np.testing.assert_allclose(
            by_name.encode_query("fox"), by_folder.encode(f"{sentence}fox"), atol=1e-6
        )
        np.testing.assert_allclose(
            by_name.encode_document("fox"), by_folder.encode("fox"), atol=1e-6
        )
        with pytest.warns(PromptWarning):
            np.testing.assert_allclose(by_name.encode("fox"), by_folder.encode("fox"), atol=1e-6)
        assert by_name.fingerprint != by_folder.fingerprint
        assert (
            by_name.count_room("query") < by_name.count_room("document") == by_folder.count_room()
        )


def test_prompts_of_the_constructor_replace_those_of_the_model() -> None:
    with fake_embedder(
        spec=fake_spec(prompts=PROMPTS), prompts={"query": "mine: "}, default_prompt_name="query"
    ) as embedder:
        np.testing.assert_array_equal(embedder.encode("a"), vector("mine: a"))
        np.testing.assert_array_equal(embedder.encode_document("a"), vector("P: a"))
        assert embedder.task_prompt_name("query") == "query"


# Dimensions and length.


def test_truncate_dim_keeps_the_first_dimensions(embedder: Embedder) -> None:
    np.testing.assert_array_equal(embedder.encode(TEXTS, truncate_dim=2), vectors(TEXTS)[:, :2])
    np.testing.assert_array_equal(embedder.encode("a", truncate_dim=2), vector("a")[:2])
    assert embedder.get_embedding_dimension() == FAKE_DIM


def test_vectors_that_were_cut_have_unit_length_where_the_model_gives_it() -> None:
    # FakeEngine does not normalise, so that the whole vector shows what is not touched.
    with fake_embedder(spec=fake_spec(modules=NORMALIZED)) as embedder:
        np.testing.assert_array_equal(embedder.encode(TEXTS), vectors(TEXTS))
        expected = unit(vectors(TEXTS)[:, :2])
        np.testing.assert_allclose(embedder.encode(TEXTS, truncate_dim=2), expected, rtol=1e-6)


def test_only_a_normalize_at_the_end_gives_unit_length() -> None:
    dense = Dense(
        in_features=FAKE_DIM, out_features=FAKE_DIM, has_bias=False, activation="identity"
    )
    with fake_embedder(spec=fake_spec(modules=(*NORMALIZED, dense))) as embedder:
        result = embedder.encode(TEXTS, truncate_dim=2)
        np.testing.assert_array_equal(result, vectors(TEXTS)[:, :2])


def test_normalize_embeddings(embedder: Embedder) -> None:
    for dim in (None, 3):
        expected = unit(vectors(TEXTS)[:, :dim])
        result = embedder.encode(TEXTS, normalize_embeddings=True, truncate_dim=dim)
        np.testing.assert_allclose(result, expected, rtol=1e-6)
        stream = embedder.encode_stream(TEXTS, normalize_embeddings=True, truncate_dim=dim)
        np.testing.assert_allclose(list(stream), expected, rtol=1e-6)
        waiting = embedder.aencode(TEXTS, normalize_embeddings=True, truncate_dim=dim)
        np.testing.assert_allclose(asyncio.run(waiting), expected, rtol=1e-6)


def test_truncate_dim_of_model_constructor_and_call() -> None:
    spec = fake_spec(truncate_dim=4)
    with fake_embedder(spec=spec) as embedder:
        assert embedder.get_embedding_dimension() == 4
        assert embedder.get_sentence_embedding_dimension() == 4
        np.testing.assert_array_equal(embedder.encode("a"), vector("a")[:4])
        np.testing.assert_array_equal(embedder.submit("a").result(WAIT_SECONDS), vector("a")[:4])
    with fake_embedder(spec=spec, truncate_dim=3) as embedder:
        assert embedder.get_embedding_dimension() == 3
        np.testing.assert_array_equal(embedder.encode("a"), vector("a")[:3])
        np.testing.assert_array_equal(embedder.encode("a", truncate_dim=5), vector("a")[:5])


@pytest.mark.parametrize("dim", [FAKE_DIM, 7])
@pytest.mark.parametrize("truncation", ["slice", "layer_norm"])
def test_a_truncate_dim_that_keeps_all_dimensions_does_nothing(
    dim: int, truncation: Truncation
) -> None:
    # sentence-transformers takes a slice, which may be too long.
    plain, other = (
        Embedder.from_engine(
            FakeEngine(),
            fake_spec(modules=NORMALIZED),
            byte_tokenizer(),
            config,
            known=KnownModel(truncation=truncation),
        )
        for config in (Config(), Config(truncate_dim=dim))
    )
    with plain, other:
        expected = plain.encode(["a"])
        for result in (plain.encode(["a"], truncate_dim=dim), other.encode(["a"])):
            np.testing.assert_array_equal(result, expected)
        assert other._calls.settings() == plain._calls.settings()  # and so the fingerprint
        assert (other.truncate_dim, other.get_embedding_dimension()) == (None, FAKE_DIM)
        assert other.encode(["a"], truncate_dim=2).shape == (1, 2)


def test_max_seq_length(embedder: Embedder) -> None:
    assert embedder.max_seq_length == 32
    embedder.max_seq_length = 3
    assert embedder.max_seq_length == 3
    with pytest.warns(TruncationWarning, match=r"row 0: 5 tokens\), truncated to 3 tokens"):
        np.testing.assert_array_equal(embedder.encode("abcde"), vector("abc"))
    for length in (0, -1, (1 << 20) + 1, True):
        with pytest.raises(ConfigError, match=f"max_seq_length = {length}; this model allows 1 to"):
            embedder.max_seq_length = length
    assert embedder.max_seq_length == 3


def test_a_call_keeps_the_limit_it_began_with() -> None:
    texts = ["abcd"] * (STREAM_JOB_TEXTS * STREAM_JOBS + 1)
    with fake_embedder(max_seq_tokens=3) as embedder:
        stream = embedder.encode_stream(texts)
        found = [next(stream)]
        embedder.max_seq_length = 2
        with pytest.warns(TruncationWarning, match="truncated to 3 tokens"):
            found += stream
        np.testing.assert_array_equal(found, vectors(["abc"] * len(texts)))
        with pytest.warns(TruncationWarning, match="truncated to 2 tokens"):
            np.testing.assert_array_equal(embedder.encode("abcd"), vector("ab"))


def test_max_seq_length_leaves_room_for_a_text(tiny_folder: Callable[[str], Path]) -> None:
    with Embedder(tiny_folder("bert"), on_truncate="ignore") as embedder:  # [CLS] and [SEP]
        for length in (2, 49):
            with pytest.raises(ConfigError, match=f"{length}; this model allows 3 to 48"):
                embedder.max_seq_length = length
        embedder.max_seq_length = 3
        np.testing.assert_allclose(
            embedder.encode("hello world"), embedder.encode("hello"), atol=1e-6
        )
        embedder.max_seq_length = 48  # longer than the model's own setting: it has positions
        assert not np.allclose(
            embedder.encode("river " * 44), embedder.encode("river " * 30), atol=1e-6
        )
    for length in (2, 49):
        with pytest.raises(ConfigError, match=f"{length}; this model allows 3 to 48"):
            Embedder(tiny_folder("bert"), max_seq_tokens=length)
    with Embedder(tiny_folder("bert"), max_seq_tokens=7) as embedder:
        assert embedder.max_seq_length == 7


def test_max_seq_length_of_a_rotary_model_stays_within_what_was_built(
    tiny_folder: Callable[[str], Path],
) -> None:
    with Embedder(tiny_folder("qwen3")) as embedder:
        with pytest.raises(ConfigError, match="51; this model allows 2 to 50"):
            embedder.max_seq_length = 51
        embedder.max_seq_length = 2


def test_the_option_max_seq_tokens_holds_for_an_engine_of_ones_own() -> None:
    with fake_embedder(max_seq_tokens=3, on_truncate="ignore") as embedder:
        np.testing.assert_array_equal(embedder.encode("abcde"), vector("abc"))


def test_on_truncate_warns_where_the_caller_is() -> None:
    texts = ["a"] * 100
    texts[7] = texts[90] = "x" * 33
    cut = [text[:32] for text in texts]
    with fake_embedder() as embedder:
        calls: list[Callable[[], Any]] = [
            lambda: embedder.encode(texts),
            lambda: embedder.encode_document(texts),
            lambda: embedder.encode(texts, role="document"),
            lambda: list(embedder.encode_stream(texts)),
        ]
        for call in calls:
            with pytest.warns(TruncationWarning) as caught:
                np.testing.assert_array_equal(call(), vectors(cut))
            assert len(caught) == 1
            assert caught[0].filename == __file__
            assert caught[0].lineno == call.__code__.co_firstlineno
            assert str(caught[0].message).startswith(
                "2 texts are too long (row 7: 33 tokens, row 90: 33 tokens), truncated to 32 "
                "tokens; "
                'split long texts, or pass on_truncate="chunk" (for the vector of a whole text), '
                '"ignore" or "error" to the Embedder'
            )
        with pytest.warns(TruncationWarning, match='row 90: .* on_truncate="chunk"'):
            asyncio.run(embedder.aencode(texts))
        assert embedder.stats().num_truncated == 2 * (len(calls) + 1)


def test_no_warning_names_a_remedy_that_is_none() -> None:
    with (
        fake_embedder(prompts={"query": TEMPLATE}) as embedder,
        pytest.warns(TruncationWarning, match='pass on_truncate="ignore" or "error" to'),
    ):
        embedder.encode_query("x" * 40, task="t")  # what goes on behind a text has no windows


def test_on_truncate_error_and_ignore() -> None:
    texts = ["a"] * 70 + ["x" * 33]
    with fake_embedder(on_truncate="error") as embedder:
        for call in (embedder.encode, lambda texts: list(embedder.encode_stream(texts))):
            with pytest.raises(SequenceTooLongError, match="1 text is too long") as caught:
                call(texts)
            assert caught.value.rows == (70,)
        with pytest.raises(SequenceTooLongError):
            embedder.submit("x" * 33)
    with fake_embedder(on_truncate="ignore") as embedder:
        assert len(embedder.encode(texts)) == 71
        assert len(list(embedder.encode_stream(texts))) == 71


# Tensors, progress, similarity, options.


def test_tensors(embedder: Embedder) -> None:
    torch = pytest.importorskip("torch", reason="torch is optional and not installed")
    result = embedder.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_array_equal(result.numpy(), vectors(TEXTS))
    result = embedder.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(result, list)
    np.testing.assert_array_equal(torch.stack(result).numpy(), vectors(TEXTS))
    for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
        result = embedder.encode("a", **options)
        assert isinstance(result, torch.Tensor)
        np.testing.assert_array_equal(result.numpy(), vector("a"))
    assert embedder.encode([], convert_to_tensor=True).shape == (0, FAKE_DIM)


@pytest.mark.parametrize("options", [{"convert_to_tensor": True}, {"convert_to_numpy": False}])
def test_tensors_without_torch(options: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    engine = FakeEngine()
    with around(engine) as embedder:
        with pytest.raises(ConfigError, match="pip install torch"):
            embedder.encode(TEXTS, **options)
        assert engine.batches == []  # told before the work


@pytest.mark.usefixtures("terminal")
def test_a_progress_bar(embedder: Embedder, capsys: pytest.CaptureFixture[str]) -> None:
    np.testing.assert_array_equal(
        embedder.encode(TEXTS * 40, show_progress_bar=True), vectors(TEXTS * 40)
    )
    assert "200/200" in capsys.readouterr().err
    assert embedder.encode("a", show_progress_bar=True).shape == (FAKE_DIM,)
    assert "1/1" in capsys.readouterr().err


@pytest.mark.parametrize("show", [None, False])
def test_no_progress_bar(
    embedder: Embedder, capsys: pytest.CaptureFixture[str], show: bool | None
) -> None:
    embedder.encode(TEXTS, show_progress_bar=show)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("terminal")
def test_a_quick_call_shows_a_bar_only_if_asked(
    embedder: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    embedder.encode(TEXTS)
    assert capsys.readouterr().err == ""


def test_a_failure_takes_the_progress_bar_away() -> None:
    engine = FakeEngine()
    engine.fail_next(ValueError("broken"))
    with around(engine) as embedder, pytest.raises(EngineRunError, match="broken"):
        embedder.encode(TEXTS, show_progress_bar=True)


def test_similarity_is_that_of_the_model_or_the_option() -> None:
    a, b = [[3.0, 4.0]], [[1.0, 0.0]]
    with fake_embedder(spec=fake_spec(similarity="dot")) as embedder:
        assert embedder.similarity_fn_name == "dot"
        assert embedder.similarity(a, b) == pytest.approx(3.0)
    with fake_embedder(similarity_fn_name="manhattan") as embedder:
        assert embedder.similarity_fn_name == "manhattan"
        assert embedder.similarity(a, b) == pytest.approx(-6.0)
        assert embedder.similarity(a[0], b[0]).shape == (1, 1)
        assert embedder.similarity_pairwise(a, b).tolist() == pytest.approx([-6.0])


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.usefixtures("no_torch")
def test_similarity_is_an_array_where_torch_is_not_imported(embedder: Embedder) -> None:
    a = embedder.encode(["a", "b"])
    for method in (embedder.similarity, embedder.similarity_pairwise):
        assert type(method(a, a)) is np.ndarray
    assert "torch" not in sys.modules


def test_similarity_is_a_tensor_where_torch_is_imported(embedder: Embedder) -> None:
    torch = pytest.importorskip("torch")
    a, b = embedder.encode(["a", "b"]), embedder.encode(["b", "c", "a"])
    scores = embedder.similarity(a, b)
    best = torch.topk(scores[0], k=1).indices  # as its manual goes on
    assert best.tolist() == [np.asarray(scores)[0].argmax()]
    assert embedder.similarity_pairwise(a, b[:2]).shape == (2,)
    for other in (torch.tensor(b, requires_grad=True), list(torch.tensor(b)), torch.tensor(b)):
        assert torch.allclose(embedder.similarity(a, other), scores)
    halves = embedder.similarity(torch.tensor(a).bfloat16(), b)
    assert torch.allclose(halves, scores, atol=0.01)
    for none in ([torch.zeros(2), torch.zeros(3)], torch.zeros(2, 2, device="meta")):
        with pytest.raises(InputError, match="similarity compares vectors; encode texts first"):
            embedder.similarity(none, b)


@pytest.mark.parametrize(
    "value", ["x" * 100_000, 10**5000, [[10**400]]], ids=["str", "int", "list"]
)
def test_what_is_no_vector_is_refused_in_a_short_line(embedder: Embedder, value: Any) -> None:
    for compare in (embedder.similarity, embedder.similarity_pairwise):
        with pytest.raises(InputError, match="similarity compares vectors; encode") as caught:
            compare(value, value)
        assert len(str(caught.value)) < 2100


def test_an_evaluator_can_report_its_metrics(embedder: Embedder) -> None:
    embedder.model_card_data.set_evaluation_metrics(object(), {"accuracy": 1.0}, 0, 0)
    assert embedder.model_card_data.model_name == "fake"
    assert embedder.eval() is embedder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prompts", "Embedder.prompts is read only; pass prompts= to the constructor"),
        ("truncate_dim", "Embedder.truncate_dim is read only; pass truncate_dim= to the constr"),
        ("similarity_fn_name", "is read only; pass similarity_fn_name= to the constructor"),
        ("fingerprint", "Embedder.fingerprint is read only; leave it"),
        ("max_length", "'Embedder' object has no attribute 'max_length'; use max_seq_length"),
    ],
)
def test_what_cannot_be_set_says_what_to_do(embedder: Embedder, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        setattr(embedder, name, None)
    embedder.note = "mine"  # type: ignore[attr-defined]


def test_it_is_closed_at_the_end_of_an_asynchronous_block() -> None:
    async def use() -> Embedder:
        async with fake_embedder() as embedder:
            np.testing.assert_array_equal(await embedder.aencode("a"), vector("a"))
        return embedder

    with pytest.raises(ClosedError):
        asyncio.run(use()).encode("a")


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_seq_token'; did you mean 'max_seq_"):
        Embedder("nowhere", max_seq_token=3)
    with pytest.raises(ConfigError, match="pass threads inside config"):
        Embedder("nowhere", config=Config(), threads=3)
    with pytest.raises(ConfigError, match=r"config = \{'threads': 1\}; it must be a Config, or"):
        Embedder("nowhere", config={"threads": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\('cpu',\) behind the model; pass options by name"):
        Embedder("nowhere", "cpu")  # type: ignore[arg-type]


def test_imports_of_other_libraries_say_what_to_import() -> None:
    with pytest.raises(ImportError, match=r"'SentenceTransformer' from 'embedlib'; use Embedder$"):
        from embedlib import SentenceTransformer  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match="'nope' from 'embedlib' "):
        from embedlib import nope  # type: ignore[attr-defined] # noqa: F401
    assert not hasattr(embedlib, "nope")
    with pytest.raises(AttributeError, match=r"no attribute 'SentenceTransformer'; use Embedder$"):
        _ = embedlib.SentenceTransformer  # type: ignore[attr-defined]
    for name in FOREIGN_CLASSES:
        assert not hasattr(embedlib, name)
        assert find_spec(f"embedlib.{name}") is None
        assert name not in embedlib.__all__


def test_a_function_of_a_foreign_name_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipeline() -> None:
        pass

    # Pickle looks in each module for a function that does not say where it is.
    module = ModuleType("its_module")
    vars(module)["pipeline"] = pipeline
    pipeline.__module__ = None  # type: ignore[assignment]
    pipeline.__qualname__ = "pipeline"
    monkeypatch.setitem(sys.modules, "its_module", module)
    assert pickle.loads(pickle.dumps(pipeline)) is pipeline


def test_classes_too_say_what_takes_the_place_of_names_of_other_libraries() -> None:
    with pytest.raises(AttributeError, match=r"^type object 'Embedder' has no .*folder to the con"):
        Embedder.from_pretrained("m")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'load'; pass the model's name or fol"):
        Embedder.load("m")  # type: ignore[attr-defined]
    assert not hasattr(Embedder, "list_supported_models")

    class Abstract(Embedder, ABC):
        pass

    with pytest.raises(
        AttributeError, match=r"^type object 'Abstract' has no attribute 'from_args'; pass"
    ):
        Abstract.from_args()  # type: ignore[attr-defined]


def test_every_name_that_dir_gives_is_there(embedder: Embedder) -> None:
    assert [name for name in dir(embedder) if not hasattr(embedder, name)] == []
    # It goes through them all, to find the methods that its proxies pass on.
    assert "encode_query" in public_methods(embedder)


def test_names_of_other_libraries_say_what_takes_their_place(embedder: Embedder) -> None:
    for name in FOREIGN_NAMES:
        assert not hasattr(embedder, name)
    for name in SET_ELSEWHERE:
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; "):
            setattr(embedder, name, "x")
    embedder.model = "of a subclass"  # type: ignore[attr-defined]
    assert embedder.model == "of a subclass"  # type: ignore[attr-defined]
    del embedder.model  # type: ignore[attr-defined]
    for name in (
        "modules",
        "evaluate",
        "search",
        "truncate_sentence_embeddings",
        "dtype",
        "parameters",
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; "):
            getattr(embedder, name)
    with pytest.raises(
        AttributeError, match="'Embedder' object has no attribute 'to'; pass device="
    ):
        embedder.to("cpu")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'Embedder' object has no attribute 'nope'$"):
        embedder.nope  # type: ignore[attr-defined] # noqa: B018


def test_a_model_has_no_modules_and_is_not_called(embedder: Embedder) -> None:
    """Not even to be told so: frameworks take what is callable for a function."""
    model: Any = embedder
    for use in (lambda: model[0], lambda: list(model)):
        with pytest.raises(TypeError, match=r"^'Embedder' object is not subscriptable; there is n"):
            use()
    assert not callable(model)


@pytest.mark.parametrize(
    ("method", "option", "remedy"),
    [
        ("encode", "max_length", "pass max_seq_tokens= to the constructor"),
        ("encode", "on_truncate", "pass on_truncate= to the constructor"),
        ("encode_query", "is_query", "call encode_query or encode_document"),
        ("encode_document", "documents", "pass it as the first argument, without a name"),
        ("aencode", "batch_size", "one process uses all cores, and batches are made by token bu"),
        ("submit_batch", "precision", "pass it to the constructor for what is computed, or to en"),
    ],
)
def test_an_argument_that_a_method_lacks_names_what_takes_its_place(
    embedder: Embedder, method: str, option: str, remedy: str
) -> None:
    async def call() -> None:
        found = getattr(embedder, method)(["a"], **{option: True})
        await found

    said = rf"\(\) got an unexpected keyword argument '{option}'; {remedy}"
    with pytest.raises(TypeError, match=said):
        asyncio.run(call())


@pytest.mark.parametrize("option", ["corpus", "texts"])
def test_the_texts_that_are_sorted_are_no_first_argument(option: str) -> None:
    assert "documents=" in str(instead_of_argument(option))


def test_a_misspelt_argument_of_a_method_names_the_nearest(embedder: Embedder) -> None:
    with pytest.raises(TypeError, match=r"'normalise_em'; did you mean 'normalize_embeddings'\?"):
        embedder.encode(["a"], normalise_em=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"'zz'; known: texts, prompt_name, prompt, role, task,"):
        embedder.submit_batch(["a"], zz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"^Embedder\(\) lacks a model; pass a folder, a pack, a hub name or package:NAME as"),
        ({"threads": 1}, r"^Embedder\(\) lacks a model; "),
        ({"model": "m"}, "^unknown option 'model'; pass the model as the first argument$"),
        ({"modules": []}, "^unknown option 'modules'; give a model folder or a hub name$"),
    ],
)
def test_a_model_is_needed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Embedder(**options)
    with pytest.raises(ModelNotFoundError):
        Embedder(model_name_or_path="./nowhere")


def test_what_sentence_transformers_says_of_a_model() -> None:
    spec = fake_spec(prompts=PROMPTS)
    with fake_embedder(spec=spec, default_prompt_name="sts", truncate_dim=4) as embedder:
        assert embedder.default_prompt_name == "sts"
        assert embedder.truncate_dim == 4
        assert embedder.get_max_seq_length() == embedder.max_seq_length == 32
    with fake_embedder() as embedder:
        assert embedder.default_prompt_name is None
        assert embedder.truncate_dim is None


def test_trust_remote_code_is_answered_with_a_warning(tiny_folder: Callable[[str], Path]) -> None:
    with (
        pytest.warns(UserWarning, match="never runs code from a model folder"),
        Embedder(tiny_folder("bert"), trust_remote_code=True),
    ):
        pass


def test_its_repr_names_the_model(embedder: Embedder) -> None:
    assert repr(embedder) == "Embedder('fake')"


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_cannot_be_pickled(embedder: Embedder, take: Callable[[Embedder], object]) -> None:
    with pytest.raises(TypeError, match="send the model's name and a Config to another process"):
        take(embedder)


def test_the_fingerprint_follows_what_decides_the_vectors(
    tiny_folder: Callable[[str], Path],
) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"truncate_dim": 8},
        {"max_seq_tokens": 9},
        {"prompts": {"query": "x"}},
        {"default_prompt_name": "query"},
        {"prompts": {"query": "{task} {text} x"}},
        {"prompts": {"query": "{task} {text} x"}, "examples": EXAMPLES},
    ]
    found = []
    for given in options:
        with Embedder(tiny_folder("bert-cls-dense"), **given) as embedder:
            found.append(embedder.fingerprint)
            found.append(embedder.fingerprint)
    assert len(set(found)) == len(options)
    with Embedder(tiny_folder("bert-cls-dense"), threads=1, on_truncate="ignore") as embedder:
        assert embedder.fingerprint == found[0]
        embedder.max_seq_length = 9
        assert embedder.fingerprint != found[0]


def test_a_truncation_warning_points_at_the_caller(embedder: Embedder) -> None:
    async def everything() -> None:
        embedder.encode("a" * 40)
        embedder.encode_query("a" * 40)
        await embedder.aencode("a" * 40)
        await embedder.aencode_document("a" * 40)

    with pytest.warns(TruncationWarning) as caught:
        asyncio.run(everything())
    assert [warning.filename for warning in caught] == [__file__] * 4


def test_submit_takes_one_text(embedder: Embedder) -> None:
    with pytest.raises(InputError, match="submit takes one str"):
        embedder.submit(["a", "b"])  # type: ignore[arg-type]


def test_two_names_of_one_argument_are_refused(embedder: Embedder) -> None:
    with pytest.raises(ConfigError, match="two names of one argument"):
        embedder.encode(["a"], sentences=["b"])


# Streams.


def test_a_stream_gives_vectors_in_their_order(embedder: Embedder) -> None:
    texts = [f"{row} {'x' * (row * 7 % 23)}" for row in range(3 * STREAM_JOB_TEXTS + 5)]
    result = list(embedder.encode_stream(iter(texts)))
    assert result[0].shape == (FAKE_DIM,)
    np.testing.assert_array_equal(result, vectors(texts))
    assert list(embedder.encode_stream([])) == []


def test_arguments_of_a_stream_are_checked_at_the_call(embedder: Embedder) -> None:
    with pytest.raises(ConfigError):
        embedder.encode_stream([], prompt_name="nope")


def test_a_stream_of_20_000_texts_is_read_a_bounded_number_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs: weakref.WeakSet[Job] = weakref.WeakSet()

    class Counted(Job):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            jobs.add(self)

    monkeypatch.setattr(pipeline_module, "Job", Counted)
    engine = FakeEngine(max_batch_tokens=4096)
    engine.batches = _Forgetful()
    num_texts, num_read, num_given, most_jobs, furthest = 20_000, 0, 0, 0, 0

    def read() -> Iterator[str]:
        nonlocal num_read
        for row in range(num_texts):
            num_read = row + 1
            yield chr(97 + row % 26)

    expected = vectors(chr(97 + row) for row in range(26))
    with around(engine) as embedder:
        for result in embedder.encode_stream(read()):
            assert result[0] == expected[num_given % 26, 0]
            num_given += 1
            furthest = max(furthest, num_read - num_given)
            most_jobs = max(most_jobs, len(jobs))
    assert num_given == num_texts
    assert furthest < STREAM_JOBS * STREAM_JOB_TEXTS
    # A few more may be in the hands of a thread that has just answered them.
    assert most_jobs <= 2 * STREAM_JOBS


@pytest.mark.parametrize("is_real", [False, True])
def test_a_job_and_its_vectors_do_not_outlive_the_call(
    is_real: bool, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[weakref.ref[Job]] = []

    class Noted(Job):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            jobs.append(weakref.ref(self))

    monkeypatch.setattr(pipeline_module, "Job", Noted)
    with Embedder(tiny_folder("bert")) if is_real else fake_embedder() as embedder:
        embedder.encode(["a", "bc"] * 100)
        embedder.encode("a")
        # The threads let go once they are back where they wait for more.
        pause = threading.Event()
        for _ in range(1000):
            if not any(job() for job in jobs):
                break
            pause.wait(0.01)
        assert [job() for job in jobs] == [None, None]


class _Forgetful(list):  # type: ignore[type-arg]
    """What FakeEngine notes down, forgotten."""

    def append(self, _: object) -> None:
        pass


def test_leaving_a_stream_early_drops_what_was_read_ahead() -> None:
    engine = FakeEngine()
    with around(engine, max_queued_texts=100_000) as embedder:
        # The first job is answered, then the engine holds what comes.
        stream = embedder.encode_stream("a" * 30 for _ in range(10**9))
        next(stream)
        engine.hold()
        stream.close()
        num_batches = len(engine.batches)
        engine.release()
        embedder.encode("end")
        assert texts_of(engine)[-1] == "end"
        # What was in flight at the close, and the end.
        assert len(engine.batches) <= num_batches + 4
        assert embedder._pipeline._meter._num_jobs == 0


async def test_an_async_stream_gives_the_same(embedder: Embedder) -> None:
    texts = [f"{row} {'x' * (row * 7 % 23)}" for row in range(3 * STREAM_JOB_TEXTS + 5)]
    usage = Usage()
    stream = embedder.aencode_stream(iter(texts), normalize_embeddings=True, usage=usage)
    result = [vector async for vector in stream]
    expected = list(embedder.encode_stream(texts, normalize_embeddings=True))
    np.testing.assert_array_equal(result, expected)
    assert usage.num_texts == len(texts)
    assert [vector async for vector in embedder.aencode_stream([])] == []
    with pytest.raises(InputError, match="inputs is one str; aencode_stream takes"):
        embedder.aencode_stream("hello")
    with pytest.raises(ConfigError, match="prompt_name = 'nope'"):
        embedder.aencode_stream([], prompt_name="nope")


@pytest.mark.parametrize(("num_characters", "is_beside"), [(1 << 16, False), ((1 << 16) + 1, True)])
async def test_long_queries_are_tokenized_beside_the_event_loop(
    num_characters: int, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    feed = Pipeline.feed_queries

    def spy(pipeline: Pipeline, *args: Any) -> None:
        threads.append(threading.current_thread())
        feed(pipeline, *args)

    monkeypatch.setattr(Pipeline, "feed_queries", spy)
    with fake_embedder(on_truncate="ignore") as embedder:
        await embedder.aencode_query(["a", "b" * (num_characters - 1)])
    assert [thread is not threading.main_thread() for thread in threads] == [is_beside]


async def test_many_vectors_are_converted_beside_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    def convert(rows: Any) -> int:
        threads.append(threading.current_thread())
        return len(rows)

    for num_rows in (ASYNC_ROWS, ASYNC_ROWS + 1):
        assert await aconvert(convert, np.zeros((num_rows, 1), np.float32)) == num_rows
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_an_async_stream_lets_other_tasks_run_and_costs_nothing_once_cancelled() -> None:
    engine = FakeEngine()
    # The queue is full: `feed` blocks.
    with around(engine, max_queued_texts=200) as embedder:
        engine.hold()

        async def read() -> None:
            async for _ in embedder.aencode_stream("a" * 30 for _ in range(10**9)):
                pass

        task = asyncio.create_task(read())
        while not engine.batches:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        num_batches = len(engine.batches)
        engine.release()
        await embedder.aencode("end")
        assert texts_of(engine)[-1] == "end"
        assert len(engine.batches) <= num_batches + 4  # what was in flight, and the end
        assert embedder._pipeline._meter._num_jobs == 0


async def test_leaving_an_async_stream_early_drops_what_was_read_ahead() -> None:
    engine = FakeEngine()
    with around(engine, max_queued_texts=100_000) as embedder:
        stream = embedder.aencode_stream("a" * 30 for _ in range(10**9))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined] # what the event loop does later
        assert embedder._pipeline._meter._num_jobs == 0


async def test_an_error_of_the_source_ends_an_async_stream() -> None:
    def read() -> Iterator[str]:
        yield from ["a"] * (STREAM_JOB_TEXTS + 3)
        raise OSError("the disk is gone")

    with fake_embedder() as embedder:
        with pytest.raises(OSError, match="the disk is gone"):
            [vector async for vector in embedder.aencode_stream(read())]
        assert embedder._pipeline._meter._num_jobs == 0


def test_an_error_of_the_source_ends_the_stream_and_drops_what_was_read() -> None:
    def read() -> Iterator[str]:
        yield from ["a"] * (STREAM_JOB_TEXTS + 3)
        raise OSError("the disk is gone")

    with fake_embedder() as embedder:
        with pytest.raises(OSError, match="the disk is gone"):
            list(embedder.encode_stream(read()))
        assert embedder._pipeline._meter._num_jobs == 0
        np.testing.assert_array_equal(embedder.encode("a"), vector("a"))


def test_a_bad_text_in_a_stream_is_named_from_its_start() -> None:
    row = 2 * STREAM_JOB_TEXTS + 100
    texts: list[Any] = ["a"] * (4 * STREAM_JOB_TEXTS)
    texts[row] = None
    with fake_embedder() as embedder:
        stream = embedder.encode_stream(texts)
        for _ in range(2 * STREAM_JOB_TEXTS):  # what came before it is given
            next(stream)
        with pytest.raises(InputError, match=f"^text {row} is None"):
            next(stream)
        assert embedder._pipeline._meter._num_jobs == 0


def test_truncated_rows_of_a_stream_count_from_its_start_and_are_told_once() -> None:
    texts = ["a"] * (5 * STREAM_JOB_TEXTS)
    rows = [3, STREAM_JOB_TEXTS - 1, STREAM_JOB_TEXTS, *range(1030, 1050)]
    for row in rows:
        texts[row] = "x" * 40
    with fake_embedder() as embedder:
        with pytest.warns(TruncationWarning) as caught:
            list(embedder.encode_stream(texts))
        assert len(caught) == 1
        message = str(caught[0].message)
        assert message.startswith("23 texts are too long (row 3: 40 tokens, row 255: 40 tokens, ")
        assert "row 256: 40 tokens, row 1030: 40 tokens" in message
        assert "row 1036: 40 tokens and 13 more)" in message
    with fake_embedder(on_truncate="error") as embedder:
        with pytest.raises(SequenceTooLongError) as error:
            list(embedder.encode_stream(texts[10:]))
        assert error.value.rows == (STREAM_JOB_TEXTS - 11, STREAM_JOB_TEXTS - 10)


def test_a_bad_row_in_a_stream_is_named_from_its_start() -> None:
    engine = FakeEngine()
    engine.poison(ord("!"))
    texts = ["a"] * (2 * STREAM_JOB_TEXTS)
    texts[306] = "!"
    with (
        fake_embedder(engine) as embedder,
        pytest.raises(EngineRunError, match="result of row 306 "),
    ):
        list(embedder.encode_stream(texts))


# Lanes, cancelling, many callers.


def test_who_is_a_query() -> None:
    engine = FakeEngine()
    with around(engine) as embedder:
        few, many = (
            ["a"] * DEFAULT_POLICY.max_query_texts,
            ["a"] * (DEFAULT_POLICY.max_query_texts + 1),
        )
        calls: list[tuple[Callable[[], object], Lane]] = [
            (lambda: embedder.encode("a"), Lane.QUERY),
            (lambda: embedder.encode(["a"]), Lane.QUERY),
            (lambda: embedder.encode(["a", "b"]), Lane.BULK),
            (lambda: embedder.encode_document(["a"]), Lane.BULK),
            (lambda: embedder.encode_query("a"), Lane.QUERY),
            (lambda: embedder.encode_query(few), Lane.QUERY),
            (lambda: embedder.encode_query(many), Lane.BULK),
            (lambda: embedder.encode_document("a"), Lane.BULK),
            (lambda: embedder.submit("a").result(WAIT_SECONDS), Lane.QUERY),
            (lambda: asyncio.run(embedder.aencode("a")), Lane.QUERY),
            (lambda: asyncio.run(embedder.aencode_query(few)), Lane.QUERY),
            (lambda: asyncio.run(embedder.aencode_document("a")), Lane.BULK),
            (lambda: list(embedder.encode_stream(["a"])), Lane.BULK),
        ]
        for call, lane in calls:
            before = len(engine.batches)
            call()
            assert {batch.lane for batch in engine.batches[before:]} == {lane}


def test_a_query_is_answered_while_bulk_work_is_stuck() -> None:
    engine = FakeEngine()
    engine.hold()
    with around(engine) as embedder:
        answers: list[Any] = []
        bulk = threading.Thread(target=lambda: answers.append(embedder.encode(["b" * 30] * 100)))
        bulk.start()
        engine.wait_submitted(2)
        query = embedder.submit("q")
        engine.wait_submitted(3)
        assert engine.batches[2].lane is Lane.QUERY
        engine.release()
        np.testing.assert_array_equal(query.result(WAIT_SECONDS), vector("q"))
        bulk.join(WAIT_SECONDS)
        np.testing.assert_array_equal(answers[0], vectors(["b" * 30] * 100))


def test_submit_never_blocks_and_says_when_it_is_full() -> None:
    engine = FakeEngine()
    engine.hold()
    with around(engine, max_queued_texts=1) as embedder:
        # One goes to the engine and the second waits. Until the manager has looked, there may seem
        # to be no room for it.
        futures: list[Future[Any]] = []
        while len(futures) < 2:
            with suppress(QueueFullError):
                futures.append(embedder.submit("a"))
        with pytest.raises(QueueFullError, match="1 queries wait already"):
            embedder.submit("a")
        engine.release()
        for future in futures:
            np.testing.assert_array_equal(future.result(WAIT_SECONDS), vector("a"))


def test_submit_leaves_computing_to_others() -> None:
    class CallersEngine(FakeEngine):
        def compute(self, batch: Batch) -> NDArray[np.float32]:
            raise AssertionError("computed on the thread that submits")

    with fake_embedder(CallersEngine()) as embedder:
        vector = embedder.submit("hello").result(WAIT_SECONDS)
        np.testing.assert_array_equal(vector, fake_vector(b"hello"))


def test_a_callback_that_leaves_the_program_fails_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine()
    engine.hold()
    with fake_embedder(engine) as embedder:
        futures = [embedder.submit("a"), embedder.submit_batch(["b", None])]
        for future in futures:
            future.add_done_callback(lambda _: sys.exit("I leave"))
        other = embedder.submit("c")
        engine.release()
        np.testing.assert_array_equal(other.result(WAIT_SECONDS), fake_vector(b"c"))
        np.testing.assert_array_equal(embedder.encode(["d", "e"])[0], fake_vector(b"d"))
        assert isinstance(futures[1].exception(WAIT_SECONDS), InputError)
    assert caplog.text.count("a callback of a future failed") == 2


def test_a_submitted_text_that_cannot_be_finished_tells_its_future(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(call: EmbeddingCall, rows: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(EmbeddingCall, "finish", finish)
    with pytest.raises(MemoryError, match="no room"):
        embedder.submit("a").result(WAIT_SECONDS)


def test_bulk_work_submitted_in_a_callback_is_taken_although_the_queue_is_full() -> None:
    engine = FakeEngine()
    engine.hold()
    more: Future[Future[Any]] = Future()
    with fake_embedder(engine, max_queued_texts=64) as embedder:
        first = embedder.submit("a")
        texts = ["b"] * 1000
        first.add_done_callback(lambda _: more.set_result(embedder.submit_batch(texts)))
        engine.release()
        assert more.result(WAIT_SECONDS).result(WAIT_SECONDS).shape == (1000, FAKE_DIM)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_model_that_one_of_our_threads_collects_is_closed_by_another(is_ours: bool) -> None:
    closed: Future[threading.Thread] = Future()
    ending = Ending(Callers())
    ending.add(lambda _: closed.set_result(threading.current_thread()))
    collect = partial(ending.close_collected, 1.0)
    collector = (
        WorkerThread(collect, "x")
        if is_ours
        else threading.Thread(target=collect, name="embedlib-x")  # a name decides nothing
    )
    collector.start()
    collector.join(WAIT_SECONDS)
    assert (closed.result(WAIT_SECONDS) is collector) == (not is_ours)


def test_a_submitted_text_that_was_cancelled_is_dropped() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    with around(engine) as embedder:
        first = embedder.submit("first")
        engine.wait_submitted(1)
        second, third = embedder.submit("second"), embedder.submit("third")
        assert second.cancel()
        engine.release()
        np.testing.assert_array_equal(third.result(WAIT_SECONDS), vector("third"))
        first.result(WAIT_SECONDS)
        with pytest.raises(CancelledError):
            second.result(0)
        assert texts_of(engine) == ["first", "third"]


def test_a_failed_submit_tells_its_future() -> None:
    engine = FakeEngine()
    engine.fail_next(ValueError("broken"))
    with around(engine) as embedder, pytest.raises(EngineRunError, match="broken"):
        embedder.submit("a").result(WAIT_SECONDS)


@pytest.mark.parametrize("inputs", ["second", ["second"]], ids=["query", "bulk"])
def test_a_cancelled_task_is_dropped_before_compute(inputs: Any) -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()

    async def main(embedder: Embedder) -> None:
        first = asyncio.create_task(embedder.aencode("first"))
        await asyncio.to_thread(engine.wait_submitted, 1)
        second = asyncio.create_task(embedder.aencode(inputs))
        await asyncio.sleep(0)  # lets it begin
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        engine.release()
        np.testing.assert_array_equal(await first, vector("first"))
        np.testing.assert_array_equal(await embedder.aencode("third"), vector("third"))

    with around(engine) as embedder:
        asyncio.run(main(embedder))
        assert texts_of(engine) == ["first", "third"]
        assert embedder._pipeline._meter._num_jobs == 0


def test_an_error_reaches_the_task() -> None:
    engine = FakeEngine()
    engine.fail_next(ValueError("broken"))
    with around(engine) as embedder:
        with pytest.raises(EngineRunError, match="broken"):
            asyncio.run(embedder.aencode(["a"]))
        with pytest.raises(InputError, match="text 0 is None"):
            asyncio.run(embedder.aencode([None]))  # type: ignore[list-item]


def test_32_threads_get_their_own_rows() -> None:
    engine = FakeEngine()
    wrong: list[str] = []

    def work(embedder: Embedder, number: int) -> None:
        for turn in range(12):
            texts = [f"{number} {turn} {'x' * (row % 9)}{row}" for row in range(1 + turn * 7)]
            first, expected = texts[0], vectors(texts)
            match (number + turn) % 5:
                case 0:
                    result = embedder.encode(texts)
                case 1:
                    result, expected = embedder.encode_query(first), expected[0]
                case 2:
                    result = asyncio.run(embedder.aencode(texts))
                case 3:
                    futures = [embedder.submit(text) for text in texts]
                    result = np.array([future.result(WAIT_SECONDS) for future in futures])
                case _:
                    result = np.array(list(embedder.encode_stream(texts)))
            if not np.array_equal(result, expected):
                wrong.append(f"{number} {turn}")

    with around(engine) as embedder:
        threads = [threading.Thread(target=work, args=(embedder, n)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        stats = embedder.stats()
        assert stats.num_texts == len(texts_of(engine))
        assert stats.num_tokens == sum(len(batch.token_ids) for batch in engine.batches)
        assert stats.num_batches == len(engine.batches)
        queries = [batch for batch in engine.batches if batch.lane is Lane.QUERY]
        assert stats.num_query_batches == len(queries)
        assert embedder._pipeline._meter._num_jobs == 0


def test_32_threads_get_their_own_rows_of_a_real_model(
    tiny_folder: Callable[[str], Path],
) -> None:
    texts = [f"river {'city ' * (row % 7)}{row}" for row in range(64)]
    with Embedder(tiny_folder("bert"), on_truncate="ignore") as embedder:
        expected = np.array([embedder.encode(text) for text in texts])
        worst: list[float] = []

        def work(number: int) -> None:
            for turn in range(4):
                rows = np.random.default_rng((number, turn)).permutation(64)[: 1 + 5 * turn]
                some = [texts[row] for row in rows]
                match (number + turn) % 3:
                    case 0:
                        result = embedder.encode(some)
                    case 1:
                        result = embedder.encode_query(some)
                    case _:
                        result = asyncio.run(embedder.aencode(some))
                worst.append(float(np.abs(result - expected[rows]).max()))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(worst) == 32 * 4
        assert max(worst) < 1e-5


# Closing.


def test_use_after_close() -> None:
    embedder = fake_embedder()
    embedder.close()
    embedder.close()
    calls: list[Callable[[], object]] = [
        lambda: embedder.encode("a"),
        lambda: embedder.encode(["a"]),
        lambda: embedder.encode([]),
        lambda: embedder.submit("a"),
        lambda: list(embedder.encode_stream(["a"])),
        lambda: asyncio.run(embedder.aencode("a")),
        lambda: asyncio.run(embedder.aencode(["a"])),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="closed; load it again"):
            call()


def test_closing_answers_or_fails_everybody() -> None:
    engine = FakeEngine()
    engine.hold()
    embedder = fake_embedder(engine, max_queued_texts=64)
    outcomes: dict[str, object] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        try:
            outcomes[name] = call()
        except Exception as error:
            outcomes[name] = error

    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: embedder.encode(["a" * 30] * 1000),
        "stream": lambda: list(embedder.encode_stream(["b" * 30] * 1000)),
        "aencode": lambda: asyncio.run(embedder.aencode(["c" * 30] * 1000)),
    }
    threads = [threading.Thread(target=note, args=item) for item in calls.items()]
    for thread in threads:
        thread.start()
    engine.wait_submitted(2)
    inflight = embedder.submit("q")
    engine.wait_submitted(3)
    waiting = embedder.submit("r")
    closer = threading.Thread(target=embedder.close)
    closer.start()
    for thread in threads:  # let go although the engine has not answered
        thread.join(WAIT_SECONDS)
    engine.release()
    closer.join(WAIT_SECONDS)
    assert not closer.is_alive()
    assert set(outcomes) == set(calls)
    for outcome in outcomes.values():
        assert isinstance(outcome, ClosedError)
    np.testing.assert_array_equal(inflight.result(WAIT_SECONDS), vector("q"))
    assert isinstance(waiting.exception(WAIT_SECONDS), ClosedError)
    assert engine.is_closed


def test_closing_from_the_callback_of_a_future() -> None:
    engine = FakeEngine()
    embedder = fake_embedder(engine)
    closed = threading.Event()

    def close(_: object) -> None:
        embedder.close()
        closed.set()

    embedder.submit("a").add_done_callback(close)
    assert closed.wait(WAIT_SECONDS)
    for thread in threading.enumerate():
        if thread.name.startswith("embedlib-"):
            thread.join(WAIT_SECONDS)
    assert engine.is_closed


@pytest.mark.parametrize(
    "call",
    [
        lambda embedder: embedder.encode("b"),
        lambda embedder: embedder.encode(["b"] * 100),
        lambda embedder: list(embedder.encode_stream(["b"])),
        lambda embedder: asyncio.run(embedder.aencode("b")),
        lambda embedder: embedder.submit("b").result(),
        lambda embedder: embedder.submit("b").result(timeout=WAIT_SECONDS),
        lambda embedder: embedder.submit("b").exception(),
        lambda embedder: embedder.submit_batch(["b"] * 100).result(),
        lambda embedder: wait([embedder.submit("b")]),
        lambda embedder: list(as_completed([embedder.submit("b")])),
        lambda embedder: embedlib.index(
            [embedlib.Document(id="1", text="b")], FakeSink(FakeStore()), embedder=embedder
        ),
    ],
)
@pytest.mark.parametrize("first", ["a", None])
def test_waiting_in_the_callback_of_a_future_is_refused(
    call: Callable[..., Any], first: str | None
) -> None:
    # It runs on a thread that would have to work on what is waited for: that of the batches, or
    # for a text that cannot be tokenized that of the tokenizer.
    engine = FakeEngine()
    engine.hold()
    with around(engine) as embedder:
        outcome = outcome_of_callback(embedder.submit_batch([first]), lambda: call(embedder))
        if first is not None:
            engine.release()
        with pytest.raises(EmbedlibError, match=r"callback of a future.* do not wait for it there"):
            outcome.result(WAIT_SECONDS)
        engine.release()
        np.testing.assert_array_equal(embedder.encode("c"), vector("c"))


def outcome_of_callback(future: Future[Any], call: Callable[[], Any]) -> Future[Any]:
    """The outcome of a call in the callback of a future."""
    outcome: Future[Any] = Future()

    def callback(_: object) -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    future.add_done_callback(callback)
    return outcome


@pytest.mark.parametrize(
    "read",
    [
        lambda done, _: done.result(),
        lambda done, _: done.exception(),
        lambda done, _: wait([done]),
        lambda done, _: list(as_completed([done])),
        lambda _, waiting: suppressed(waiting.result, timeout=0),
    ],
)
def test_what_does_not_wait_is_allowed_in_the_callback_of_a_future(
    read: Callable[..., Any],
) -> None:
    engine = FakeEngine()
    engine.hold()
    with around(engine) as embedder:
        future = embedder.submit("a")
        outcome = outcome_of_callback(future, lambda: read(future, embedder.submit("b")))
        engine.release()
        outcome.result(WAIT_SECONDS)


def suppressed(read: Callable[..., Any], timeout: float) -> None:
    with suppress(TimeoutError, FutureTimeoutError):
        read(timeout=timeout)


def test_an_embedder_that_is_forgotten_frees_its_engine() -> None:
    engine = FakeEngine()
    embedder = fake_embedder(engine)
    embedder.encode("a")
    del embedder
    assert engine.is_closed  # and the fixture sees that the threads have ended


def test_what_was_submitted_is_answered_although_its_embedder_is_forgotten() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    embedder = fake_embedder(engine)
    inflight = embedder.submit("a")
    engine.wait_submitted(1)
    waiting = embedder.submit("b")
    waiting.add_done_callback(lambda _: engine.release())  # closing fails it, then waits for "a"
    del embedder
    np.testing.assert_array_equal(inflight.result(WAIT_SECONDS), vector("a"))
    assert isinstance(waiting.exception(WAIT_SECONDS), ClosedError)
    assert engine.is_closed
