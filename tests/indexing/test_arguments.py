"""Arguments of `index`, and sources that it takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib.embedder import Embedder
from embedlib.errors import (
    ConfigError,
    SourceError,
)
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.pipeline import index
from embedlib.indexing.rows import Document
from embedlib.indexing.searches.searching import search
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.testing import FakeSink, FakeStore
from tests.indexing.loading import documents, expect, numbered, run


@dataclass
class Frame:
    """A table of which no way to its rows is known; it iterates over the names of its columns."""

    dtypes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter(["id", "text"])


def test_switches_of_numpy_are_taken() -> None:
    options = IndexOptions(chunk=np.False_, dry_run=np.True_)
    assert (options.chunk, options.dry_run) == (False, True)
    assert type(options.chunk) is bool


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedder": "name"}, "embedder = 'name'; it must be an Embedder, which is made with Emb"),
        ({"sink": None}, "sink = None; it must be a URL, such as 'edge:PATH' or 'jsonl:FILE', or"),
        ({"source": np.array("a")}, "source = array('a', dtype='<U1'); it must be a path, a list"),
        ({"source": None}, "source = None; it must be a path, a list of paths, a table, or an it"),
        ({"source": Document(id="a", text="b")}, "source = Document(id='a'"),
        ({"source": {"a": "b"}}, "source = {'a': 'b'}, a dict; pass a list of embedlib.Document("),
        ({"source": b"abc"}, "source = b'abc', a bytes; pass a list of embedlib.Document("),
        (
            {"source": Frame()},
            "source is a Frame, which has no rows to read; pass a data frame, an Arrow table or a",
        ),
        ({"source": [".", 5]}, "source has 5 among its paths; a path must be a str or a Path"),
        (
            {"id_field": "x"},
            "unknown option 'id_field'; it says how sources are read: pass source_op",
        ),
        ({"max_delete": "0.5"}, "max_delete = '0.5'; it must be a share, from 0 to 1"),
        ({"chunk_overlap": -1}, "chunk_overlap = -1; it must be a whole number of at least 0"),
        ({"shard": 3}, "shard = 3; it must be I/N"),
        ({"ray": ""}, "ray = ''; it must be auto, local or HOST:PORT"),
        ({"ray_workers": 0}, "ray_workers = 0; it must be"),
        ({"ray_workers": 2}, "ray_workers = 2 needs ray='auto' or another address"),
        ({"errors_file": 5}, "errors_file = 5; it must be a path"),
    ],
)
def test_an_argument_of_a_wrong_type_is_one_line(
    arguments: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    given = {"source": documents({"a": "b"}), "sink": FakeSink(store), "embedder": embedder}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
        index(**{**given, **arguments})
    assert "\n" not in str(caught.value)
    assert store.calls == []


@pytest.mark.parametrize("option", [field.name for field in fields(IndexOptions)])
@pytest.mark.parametrize("value", [object(), ["false"], "false\nno"])
def test_every_option_has_a_check_of_its_type(option: str, value: Any) -> None:
    """A new option without one fails here."""
    if option == "errors_file" and isinstance(value, str):
        return  # a file may have this name
    with pytest.raises(ConfigError, match=f"^{option} = ") as caught:
        IndexOptions(**{option: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", [field.name for field in fields(SourceOptions)])
def test_every_option_of_a_source_has_a_check_of_its_type(option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option} (=|is) "):
        SourceOptions(**{option: object()})


@pytest.mark.parametrize("function", [index, search])
def test_every_argument_has_a_check_of_its_type(
    function: Callable[..., Any], store: FakeStore, embedder: Embedder
) -> None:
    right = {"sink": FakeSink(store), "embedder": embedder}
    right |= {"source": documents({"a": "b"})} if function is index else {"question": "a"}
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    assert set(right) < set(names)
    for name in names:
        with pytest.raises(ConfigError, match=f"^{name} = <object object"):
            function(**{**right, name: object()})
    assert store.calls == []


@pytest.mark.parametrize("value", ["false", "no", "", 0, 1, None])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^recreate = {value!r}; it must be True or False$"):
        IndexOptions(recreate=value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedder": "name"}, "embedder = 'name'; it must be an Embedder"),
        ({"sink": Path("a.jsonl")}, "sink = PosixPath('a.jsonl'); it must be a URL"),
        ({"question": ["a"]}, "question = ['a']; it must be a str"),
        ({"question": " \n"}, "question = ' \\n'; it is empty"),
        ({"top_k": "5"}, "top_k = '5'; it must be a whole number of at least 1"),
        ({"top_k": 0}, "top_k = 0; it must be a whole number of at least 1"),
        ({"where": 3}, "where = 3; it must be a str, such as"),
        ({"where": "year ="}, "where: character 7, the end: a value must be here"),
    ],
)
def test_a_search_with_a_wrong_argument_is_one_line(
    arguments: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    given = {"question": "a", "sink": FakeSink(store), "embedder": embedder}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        search(**{**given, **arguments})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            "a text",
            "the source gave 'a text', a str; it must give documents: embedlib.Document(id=..., te",
        ),
        (np.zeros((2, 2)), "ndarray; it must give documents: embedlib.Document(id=..., text=...,"),
        (
            Path("a.md"),
            # Python 3.13 has it in pathlib._local.
            f"gave PosixPath('a.md'), a {type(Path()).__module__}.PosixPath; pass paths as a list",
        ),
    ],
)
def test_what_is_no_document_is_refused_with_the_way_to_make_one(
    item: Any, message: str, store: FakeStore, embedder: Embedder
) -> None:
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        run((item for _ in range(2)), store, embedder)
    assert "\n" not in str(caught.value)


def test_dicts_are_loaded_and_known_again(store: FakeStore, embedder: Embedder) -> None:
    rows = [{"key": n, "subject": f"s {n}", "body": f"b {n}"} for n in range(3)]
    options = SourceOptions(text_field=("subject", "body"))
    assert run(rows, store, embedder, source_options=options).num_embedded == 3
    expect(store, {f"{n}": f"s {n}\n\nb {n}" for n in range(3)}, embedder)
    rows[1]["body"] = "changed"
    report = run(iter(rows), store, embedder, source_options=options)
    assert (report.num_embedded, report.num_unchanged) == (1, 2)


def test_a_text_among_paths_is_refused_with_the_way_to_pass_it(
    store: FakeStore, embedder: Embedder
) -> None:
    for source in ("hello world", ["hello world"]):
        with pytest.raises(SourceError, match=r"folder; .* in Python a text is embedlib\.Document"):
            index(source, FakeSink(store), embedder=embedder)
    with pytest.raises(SourceError, match=r"folder; a pattern is .* SourceOptions\(glob="):
        index("docs/*.md", FakeSink(store), embedder=embedder)


def test_numbers_of_numpy_are_those_of_python() -> None:
    given = {"chunk_tokens": np.int64(8), "max_delete": np.float64(0.5)}
    options = IndexOptions(**given, batch_rows=np.int32(4))
    assert (options.chunk_tokens, options.max_delete, options.batch_rows) == (8, 0.5, 4)
    assert {type(options.chunk_tokens), type(options.batch_rows)} == {int}
    assert IndexOptions(max_delete=0).max_delete == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_row": 1}, "did you mean 'batch_rows'"),
        ({"chunk_size": 100}, "unknown option 'chunk_size'; pass chunk_tokens=$"),
        ({"batch_rows": 0}, "batch_rows = 0"),
        ({"max_delete": 30}, "max_delete = 30"),
        ({"max_delete": 1.01}, "max_delete = 1.01"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"delete_missing": True, "limit": 1}, "whole source"),
        ({"recreate": True, "shard": "1/2"}, "other shards"),
        ({"shard": "0/2"}, "shard = '0/2'"),
        ({"shard": "3/2"}, "shard = '3/2'"),
        ({"shard": "a"}, "shard = 'a'"),
        ({"shard": Path("1/2")}, "shard = PosixPath"),
        ({"shard": "1/" + "2" * 5000}, "shard = '1/222"),
        ({"on_error": np.ones(2)}, "on_error = array"),
    ],
)
def test_a_wrong_option_is_refused(
    options: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(numbered(1), store, embedder, **options)
    assert store.calls == []
