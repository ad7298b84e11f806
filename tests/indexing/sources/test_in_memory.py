"""Dicts, tables and documents of other libraries as the source of `embedlib.index`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.errors import ConfigError, SourceError
from embedlib.indexing import SourceOptions
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources.opening import open_documents

ROWS = [
    {"id": n, "text": f"text {n}", "year": 2000 + n, "lang": "de" if n % 3 else None}
    for n in range(1, 51)
]


def read(source: Any, told: list[str] | None = None, **options: Any) -> list[Document | BadRow]:
    tell = [].append if told is None else told.append
    return list(open_documents(source, SourceOptions(**options), tell))


def summary(source: Any, **options: Any) -> list[tuple[str | None, str]]:
    """Id and text, or id and reason."""
    rows = read(source, **options)
    return [(row.id, row.text if isinstance(row, Document) else row.reason) for row in rows]


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises((SourceError, ConfigError)) as caught:
        read(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(rows: list[Document | BadRow]) -> list[tuple[str, str, dict[str, Any]]]:
    """What of documents is stored; none of them is a bad row."""
    assert [row for row in rows if isinstance(row, BadRow)] == []
    return [(row.id, row.text, dict(row.metadata)) for row in rows if isinstance(row, Document)]


class Index:
    def __init__(self, names: list[str | None]) -> None:
        self.names = names


@dataclass
class PandasLike:
    """The part of a pandas DataFrame that is used; missing values are NaN."""

    rows: list[dict[Any, Any]]
    index: Index = field(default_factory=lambda: Index([None]))
    index_values: list[Any] = field(default_factory=list)

    @property
    def columns(self) -> list[Any]:
        return list(self.rows[0]) if self.rows else []

    @property
    def iloc(self) -> Any:
        return self

    def __getitem__(self, part: slice) -> PandasLike:
        return PandasLike(self.rows[part], self.index, self.index_values[part])

    def __len__(self) -> int:
        return len(self.rows)

    def reset_index(self) -> PandasLike:
        (name,) = self.index.names
        values = zip(self.index_values, self.rows, strict=True)
        return PandasLike([{name: value, **row} for value, row in values])

    def astype(self, _: type) -> PandasLike:
        return self

    def notna(self) -> None:
        pass

    def where(self, _: None, other: None) -> PandasLike:
        return PandasLike([{k: other if v != v else v for k, v in r.items()} for r in self.rows])

    def to_dict(self, orient: str) -> list[dict[Any, Any]]:
        assert orient == "records"
        return self.rows


@dataclass
class PolarsLike:
    rows: list[dict[str, Any]]

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])

    def iter_slices(self, num_rows: int) -> Iterator[PolarsLike]:
        for start in range(0, len(self.rows), num_rows):
            yield PolarsLike(self.rows[start : start + num_rows])

    def to_dicts(self) -> list[dict[str, Any]]:
        return self.rows


def arrow(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


class Batch:
    """A batch as libraries have it that do not give it as a stream."""

    def __init__(self, batch: Any) -> None:
        self.__arrow_c_array__ = batch.__arrow_c_array__


def as_sources(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same rows in every form that a program may hold them in."""
    table = arrow(rows)
    return {
        "dicts": rows,
        "a generator": (dict(row) for row in rows),
        "pandas": PandasLike(
            [{k: math.nan if v is None else v for k, v in r.items()} for r in rows]
        ),
        "polars": PolarsLike(rows),
        "an Arrow table": table,
        "a reader of batches": table.to_reader(max_chunksize=7),
        "a list of batches": table.to_batches(max_chunksize=7),
        "a batch": table.combine_chunks().to_batches()[0],
        "a batch of others": Batch(table.combine_chunks().to_batches()[0]),
        "tables": [arrow(rows[:1]), *rows[1:2], *([PolarsLike(rows[2:])] if rows[2:] else [])],
    }


def test_the_same_rows_are_the_same_documents_in_every_form(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = [
        (str(row["id"]), row["text"], {"year": row["year"], "lang": row["lang"]}) for row in ROWS
    ]
    for form, source in as_sources(ROWS).items():
        assert contents(read(source)) == expected, form

    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    parquet.write_table(arrow(ROWS), tmp_path / "rows.parquet")
    names = list(ROWS[0])
    table = [",".join(names), *(",".join(str(row[n] or "") for n in names) for row in ROWS)]
    (tmp_path / "rows.csv").write_text("\n".join(table))
    assert contents(read(lines)) == expected
    assert contents(read(tmp_path / "rows.parquet")) == expected
    # CSV has strings only.
    assert [row[:2] for row in contents(read(tmp_path / "rows.csv"))] == [r[:2] for r in expected]


@settings(max_examples=30)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.none() | st.text(max_size=3),
                "text": st.none() | st.sampled_from(["", " ", "a text", "\0"]),
                "more": st.none() | st.text("a\0é😀", max_size=5),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_drawn_rows_are_the_same_in_every_form(rows: list[dict[str, Any]]) -> None:
    """Bad rows too: their ids and reasons."""
    expected = read(rows)
    for form, source in as_sources(rows).items():
        assert read(source) == expected, form


def test_fields_may_be_named_and_guesses_are_told() -> None:
    rows = [{"key": "a", "title": "x", "n": 1}, {"key": "b", "title": "y", "n": 2}]
    told: list[str] = []
    assert contents(read(rows, told)) == [("a", "x", {"n": 1}), ("b", "y", {"n": 2})]
    assert told == [
        "the source: text is the field 'title', id is the field 'key'; set with text_field "
        "(--text-field) and id_field (--id-field)"
    ]
    options = {"id_field": "n", "text_field": "key", "metadata_fields": ("title",)}
    assert contents(read(rows, **options))[0] == ("1", "a", {"title": "x"})


def test_a_missing_value_is_a_bad_row() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    rows: list[dict[Any, Any]] = [
        {"id": "a", "text": "a"},
        {"id": "b", "text": math.nan},
        {"id": None, "text": "c"},
        {"id": "d", "text": 5},
        {"id": "e", 5: "e"},
        {"id": "f", "text": "f", "more": {1}},
        {"id": "g", "text": "g", "deep": deep},
    ]
    assert summary(rows) == [
        ("a", "a"),
        ("b", "the field 'text' has no text"),
        (None, "the field 'id' has no id"),
        ("d", "the field 'text' has the type int; a string is needed for a text"),
        (None, "has the key 5, but the names of fields must be strings"),
        ("f", "the field 'more' holds set, which JSON cannot represent"),
        ("g", "the field 'deep' is nested too deeply"),
    ]


def test_rows_without_an_id_are_refused_with_the_way() -> None:
    for source in ([{"text": "a"}], PandasLike([{"text": "a"}]), arrow([{"text": "a"}])):
        assert refusal(source) == (
            "the source: no field has the name of an id, and its rows have no name that lasts; "
            "add a field 'id', or name one with source_options="
            "embedlib.SourceOptions(id_field=...)"
        )
    assert "there is no field 'x'" in refusal(ROWS, id_field="x")
    assert refusal(ROWS, id_prefix="file").startswith("id_prefix = 'file' puts the name of a file")


def test_a_generator_may_fill_the_same_dict_again() -> None:
    def rows() -> Iterator[dict[str, str]]:
        row: dict[str, str] = {}
        for name in "abc":
            row |= {"id": name, "text": name}
            yield row

    assert summary(rows()) == [("a", "a"), ("b", "b"), ("c", "c")]


def test_a_generator_may_fill_the_same_nested_values_again() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"nested": {"of": [0]}}
        for number in range(3):
            row |= {"id": str(number), "text": "t"}
            row["nested"]["of"][0] = number
            yield row

    read_rows = [row for row in read(rows()) if isinstance(row, Document)]
    assert [row.metadata for row in read_rows] == [{"nested": {"of": [n]}} for n in range(3)]


def test_a_data_frame_may_have_columns_named_as_attributes_of_a_column() -> None:
    frame = PandasLike([{"id": "a", "text": "x", "name": "n", "dtype": "f4"}])
    frame.name = frame.dtype = "a column"  # type: ignore[attr-defined]
    assert summary(frame) == [("a", "x")]


def test_documents_may_stand_among_rows() -> None:
    own = Document(id="own", text="x")
    assert summary([own, {"id": "a", "text": "b"}, own]) == [("own", "x"), ("a", "b"), ("own", "x")]


def test_the_named_index_of_a_data_frame_is_a_column() -> None:
    frame = PandasLike([{"text": "a"}, {"text": "b"}], Index(["key"]), ["x", "y"])
    assert summary(frame) == [("x", "a"), ("y", "b")]
    half = PandasLike([{"id": "x", "text": "a"}], Index(["n", None]), [(0, 0)])
    assert summary(half) == [("x", "a")]
    assert "more than one column named 'text'" in refusal(
        PandasLike([{"text": "a"}], Index(["text"]), ["x"])
    )


def test_columns_that_are_no_fields_are_refused() -> None:
    assert refusal(PandasLike([{0: "a"}])).startswith("the PandasLike has a column named 0; names")
    assert "has a column named 0" in refusal(PolarsLike([{0: "a"}]))  # type: ignore[dict-item]
    pyarrow = pytest.importorskip("pyarrow")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text", "text"])
    assert refusal(twice) == ("the Table has more than one column named 'text'; rename all but one")
    assert "cannot be read as an Arrow table" in refusal(pyarrow.chunked_array([[1, 2]]))

    class Column:
        dtype, name = "int", "a column"
        __arrow_c_stream__ = None  # as a column of polars has

    assert "has no rows to read" in refusal(Column())


def test_a_list_with_a_name_and_an_array_of_dicts_are_no_columns() -> None:
    class Named(list[Any]):
        name = "rows"

    rows = [{"id": "a", "text": "x"}]
    assert summary(Named(rows)) == summary(np.array(rows, object)) == [("a", "x")]


def test_nanoseconds_of_dictionaries_and_extensions_are_cut_to_microseconds() -> None:
    pyarrow = pytest.importorskip("pyarrow")

    class Instant(pyarrow.ExtensionType):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(pyarrow.timestamp("ns"), "test.instant")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Instant:
            return cls()

    times = pyarrow.array([1_700_000_000_123_456_789, None], pyarrow.timestamp("ns"))
    pyarrow.register_extension_type(Instant())  # else it is told as what it stores
    encoded = times.dictionary_encode()
    instants = pyarrow.ExtensionArray.from_storage(Instant(), times)
    columns = {
        "category": encoded,
        "struct": pyarrow.StructArray.from_arrays([encoded], ["a"]),
        "list": pyarrow.ListArray.from_arrays([0, 1, 2], encoded),
        "extension": instants,
        "both": pyarrow.DictionaryArray.from_arrays([0, 1], instants),
        "words": pyarrow.array(["a", None]).dictionary_encode(),
    }
    table = pyarrow.table({"id": ["a", "b"], "text": ["a", "b"], **columns})
    at = "2023-11-14T22:13:20.123456"
    (first, second) = (row.metadata for row in read(table) if isinstance(row, Document))
    pyarrow.unregister_extension_type("test.instant")
    assert first == dict(zip(columns, [at, {"a": at}, [at], at, at, "a"], strict=True))
    assert second == dict(zip(columns, [None, {"a": None}, [None], None, None, None], strict=True))


@pytest.mark.parametrize("kind", ["timestamp", "zone", "duration"])
def test_a_value_that_python_has_not_is_one_bad_row(kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    types = {"timestamp": pyarrow.timestamp("s"), "duration": pyarrow.duration("s")}
    of_kind = types.get(kind, pyarrow.timestamp("s", "UTC"))
    values = pyarrow.array([0, 2**60], pyarrow.int64()).cast(of_kind)
    table = pyarrow.table({"id": ["a", "b"], "text": ["a", "b"], "at": values})
    good, (name, reason) = summary(table)
    assert (good, name) == (("a", "a"), "b")
    assert reason.startswith("the field 'at' cannot be read: ")
    assert "time zone" not in reason


class NoTime(date):
    """As the NaT of pandas: a date that is equal to nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = date.__hash__


def test_a_missing_date_is_null() -> None:
    rows = [{"id": "a", "text": "a", "at": NoTime(2000, 1, 1), "on": date(2000, 1, 1)}]
    assert contents(read(rows)) == [("a", "a", {"at": None, "on": "2000-01-01"})]


@dataclass
class LangChainLike:
    page_content: Any
    id: str | None = None
    metadata: Any = field(default_factory=dict)


def test_documents_of_langchain() -> None:
    source = [
        LangChainLike("text a", "a", {"id": "other", "text": "t"}),
        LangChainLike("text b", None),
        LangChainLike(None, "c"),
        LangChainLike("text d", "d", ["no mapping"]),
        LangChainLike("text e", "e", {5: 1}),
    ]
    first, *others = read(source)
    assert contents([first]) == [("a", "text a", {"id": "other", "text": "t"})]
    assert [row.reason for row in others if isinstance(row, BadRow)] == [
        "the field 'id' has no id",
        "the field 'page_content' has no text",
        "has the metadata ['no mapping'], which must be a mapping",
        "has the key 5, but the names of fields must be strings",
    ]


def test_the_id_of_a_document_may_be_in_its_metadata() -> None:
    source = [LangChainLike("text", None, {"path": "a.txt", "page": 1})]
    assert "have no 'id' that lasts until the next run; set it, or name" in refusal(source)
    assert contents(read(source, id_field="path")) == [("a.txt", "text", {"page": 1})]
    unnamed = [LangChainLike("text", None, {"id": 7}), LangChainLike("other", "own", {"id": 8})]
    assert contents(read(unnamed, id_field="id")) == [("7", "text", {}), ("own", "other", {})]
    assert "have no 'id' that lasts" in refusal(unnamed[:1])
    stored = read(source, id_field="path", metadata_fields=("path",))
    assert contents(stored) == [("a.txt", "text", {"path": "a.txt"})]


class LlamaIndexLike(SimpleNamespace):
    model_fields = {"id_": None}  # noqa: RUF012 - as pydantic's

    @property
    def node_id(self) -> str:
        return str(self.id_)


def test_documents_of_langchain_among_rows() -> None:
    source = [{"key": 1, "body": "x"}, LangChainLike("y", "a"), LangChainLike("z", "b", None)]
    assert contents(read(source)) == [("1", "x", {}), ("a", "y", {}), ("b", "z", {})]
    titled = [LangChainLike("text", "a", {"title": "T", "n": 1})]
    assert contents(read(titled, text_field="title")) == [("a", "T", {"n": 1})]


def test_fields_of_a_table_must_exist() -> None:
    assert "there is no field 'x'" in refusal(arrow(ROWS), metadata_fields=("x",))
    assert contents(read(ROWS[:1], metadata_fields=("x",)))[0][2] == {}


@pytest.mark.parametrize("name", ["id_", "node_id"])
def test_an_object_with_an_id_and_a_text_is_a_node(name: str) -> None:
    node = SimpleNamespace(**{name: "a", "text": "text", "metadata": {}})
    assert contents(read([node])) == [("a", "text", {})]


def test_documents_of_llama_index() -> None:
    named = LlamaIndexLike(id_="a", text="text", metadata={"n": 1}, model_fields_set={"id_"})
    assert contents(read([named])) == [("a", "text", {"n": 1})]
    made_up = LlamaIndexLike(id_="3f2c", text="text", metadata={"n": 1}, model_fields_set={"text"})
    assert "have no 'id' that lasts until the next run" in refusal([made_up])


def test_a_source_in_memory_knows_its_length_where_that_is_cheap() -> None:
    def hint(source: Any) -> int:
        return length_hint(open_documents(source, SourceOptions(), print), -1)

    assert hint(ROWS) == hint(arrow(ROWS)) == hint(PandasLike(ROWS)) == 50
    assert hint(iter([*ROWS])) == 50
    assert hint(row for row in ROWS) == hint(arrow(ROWS).to_reader()) == -1
