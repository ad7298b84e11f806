"""Rows of lines, CSV and JSON lines, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import ConfigError, SourceError
from embedlib.indexing import SourceOptions, open_source
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources import file_formats
from embedlib.indexing.sources.file_bytes import BrokenFileError, open_bytes
from embedlib.indexing.sources.file_formats import read_rows, read_text
from embedlib.indexing.sources.opening import open_documents
from tests.indexing.sources.reading import Told, documents, not_utf8, read, refusal, summary, write


def test_lines_are_known_by_their_number(told: Told) -> None:
    write("a.txt", b"\xef\xbb\xbfone\r\n\n  \ntwo \xe2\x80\xa8 still\nb\xe4d\nnul\0\nlast \t")
    assert read("./a.txt", input_format="lines", told=told) == [
        Document(id="a.txt#1", text="one", place="line 1 of './a.txt'"),
        Document(id="a.txt#4", text="two \u2028 still", place="line 4 of './a.txt'"),
        BadRow(
            place="line 5 of './a.txt'",
            reason=not_utf8(2),
            id="a.txt#5",
        ),
        BadRow(
            place="line 6 of './a.txt'",
            reason="the field 'text' has NUL (U+0000) at character 3, which databases do not store",
            id="a.txt#6",
        ),
        Document(id="a.txt#7", text="last \t", place="line 7 of './a.txt'"),
    ]
    assert told == ["a.txt: every line is a document, with its number as id"]
    write("b.txt", "one\n\ufefftwo")
    assert [row.text for row in documents("b.txt", input_format="lines")] == ["one", "\ufefftwo"]


def test_what_can_be_read_only_once_is_not_looked_into() -> None:
    out, into = os.pipe()
    os.write(into, b'{"id": 1, "text": "a"}\n')
    os.close(into)
    assert [row.id for row in read(f"/dev/fd/{out}", input_format="jsonl")] == ["1"]
    os.close(out)
    terminal, follower = os.openpty()
    os.write(terminal, b"words\n\x04")
    assert [row.text for row in documents(os.ttyname(follower), input_format="lines")] == ["words"]
    os.close(follower)
    os.close(terminal)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'{"id": 7, "body": "one"}\n{"id": 8, "body": "two"}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    source = open_source(["-"], SourceOptions(input_format="jsonl"), told.append)
    assert told == []  # nothing was read yet
    assert list(source) == [
        Document(id="7", text="one", place="line 1 of standard input"),
        Document(id="8", text="two", place="line 2 of standard input"),
    ]
    assert told == [
        "-: text is the field 'body', id is the field 'id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]
    assert "cannot be read from standard input" in refusal("-", input_format="parquet")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 7, "n": 1}\n')))
    assert refusal("-", input_format="jsonl").startswith("-: no field has the name of a text")
    told.clear()
    assert read("-", input_format="jsonl", told=told) == told == []  # nothing is left
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 7, "n": "a"}\n')))
    named = {"id_field": "id", "text_field": "n"}
    assert [row.id for row in read("-", input_format="jsonl", told=told, **named)] == ["7"]
    assert told == []
    Path("other").mkdir()
    assert read("-", input_format="jsonl", id_root="other") == []
    assert list(open_documents("-", SourceOptions(input_format="jsonl"), print)) == []
    monkeypatch.setattr(sys, "stdin", None)
    assert refusal("-", input_format="lines").startswith("cannot read standard input: it is closed")


# --- csv ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("input_format", ["lines", "jsonl", "csv"])
def test_a_line_longer_than_any_text_ends_the_reading(
    input_format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_formats, "_MAX_LINE_BYTES", 12)
    write("rows", '{"text": 1}\n' + "x" * 13)
    with pytest.raises(BrokenFileError, match="line 2 has more than 12 bytes; a line holds one"):
        list(read_rows("rows", input_format))
    write("rows", '{"text": 1}\n' + "x" * 11)
    assert list(read_rows("rows", input_format))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_without_an_end_is_not_read(path: str) -> None:
    for look in (lambda: list(read_rows(path, "lines")), lambda: read_text(path)):
        with pytest.raises(BrokenFileError, match="it is a device, which may have no end"):
            look()
    assert list(read_rows("/dev/null", "lines")) == []


def test_csv(told: Told) -> None:
    write("a.csv", '\ufeffid,Text,n\r\n1,"one, ""two""\nthree",4\r\n\r\n2,é,\r\n')
    assert documents("a.csv", told=told) == [
        Document(id="1", text='one, "two"\nthree', metadata={"n": "4"}, place="line 2 of 'a.csv'"),
        Document(id="2", text="é", metadata={"n": ""}, place="line 5 of 'a.csv'"),
    ]
    assert told == [
        "a.csv: text is the field 'Text', id is the field 'id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tsv(name: str) -> None:
    write(name, "key\tbody\n1\ta, b\n")
    assert summary(read(name)) == [("1", "a, b")]


TWICE = '; a value that begins with " ends with one, write others twice'


def test_bad_rows_of_csv_do_not_end_it() -> None:
    content = b'id,text\n1,a,b\n2\n,no id\n4,\n5,b\xe4d\n6,"b"ad\n7,"line\nb\xe4d"\n8,good\n'
    write("a.csv", content)
    rows = read("a.csv")
    assert summary(rows) == [
        (None, "has 3 fields, and the header has 2"),
        (None, "has 1 fields, and the header has 2"),
        (None, "the field 'id' has no id"),
        ("4", "the text in the field 'text' is empty"),
        (None, not_utf8(4)),
        (None, f"is not CSV: ',' expected after '\"'{TWICE}"),
        (None, not_utf8(2)),
        ("8", "good"),
    ]
    assert [row.place for row in rows][-2:] == ["line 8 of 'a.csv'", "line 10 of 'a.csv'"]


def test_csv_with_the_line_ends_of_an_old_mac() -> None:
    write("a.csv", b"id,text\r1,a\r2,b\r")
    with pytest.raises(SourceError, match=r"a\.csv': its header has a CR without LF; .* '\\n'$"):
        read("a.csv")


def test_a_quote_that_is_never_closed() -> None:
    write("a.csv", 'id,text\n1,a\n2,"b\n3,c\n')
    assert summary(read("a.csv")) == [
        ("1", "a"),
        (
            None,
            f"is not CSV: unexpected end of data; because of a quote it goes on to line 4{TWICE}",
        ),
    ]
    write("b.csv", 'text\na\n"b\nc\n')
    assert [row.id for row in read("b.csv")] == ["b.csv#1", None]  # it may be #2 and others
    write("c.csv", 'text\na\n"b\nc\nd" x\ne\n')
    assert [row.id for row in read("c.csv")] == ["c.csv#1", None, "c.csv#5"]
    write("d.csv", 'text,n\n"b\nc",1,2\nd,3\n')  # CSV, but with too many fields
    assert [row.id for row in read("d.csv")] == [None, "d.csv#2"]
    write("a.tsv", 'id\ttext\n1\t"a\tb"\n2\t"c" d\n')
    assert summary(read("a.tsv")) == [
        ("1", "a\tb"),
        (None, f"is not CSV: '\t' expected after '\"'{TWICE}"),
    ]


def test_rows_of_csv_without_values_are_left_out() -> None:
    write("a.csv", "text,x\none,1\n,\n  ,\ntwo,2\n,,\n")
    assert summary(read("a.csv")) == [("a.csv#1", "one"), ("a.csv#4", "two")]
    write("b.csv", 'text\none\n""\n')
    assert summary(read("b.csv"))[1][1] == "the text in the field 'text' is empty"


def test_a_field_of_csv_may_be_long() -> None:
    write("a.csv", f"id,text\n1,{'x' * 200_000}\n")
    before = csv.field_size_limit(1 << 30)
    try:
        assert len(documents("a.csv")[0].text) == 200_000
        assert csv.field_size_limit() == 1 << 30  # of the whole process, which may need it
    finally:
        csv.field_size_limit(before)


def test_rows_without_an_id_are_known_by_their_number(told: Told) -> None:
    write("a.csv", "text,n\none,1\n\n,2\nthree,3\n")
    assert summary(read("a.csv", told=told)) == [
        ("a.csv#1", "one"),
        ("a.csv#2", "the text in the field 'text' is empty"),
        ("a.csv#3", "three"),
    ]
    assert told == [
        "a.csv: text is the field 'text', no field has the name of an id, so rows are identified "
        "by their number; set with text_field (--text-field) and id_field (--id-field)"
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,a\n1,2\n", "more than one column named 'a'"),
        (b"a,b\xe4d\n1,2\n", "its header is not UTF-8"),
        (b"id;body\n1;a\n", "separate fields by commas"),
        (b"id,text\n1\n", "none of the first 1 rows can be read"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(content: bytes, reason: str) -> None:
    write("a.csv", content)
    assert reason in refusal("a.csv")


def test_columns_at_the_end_without_name_and_values_are_left_out() -> None:
    write("a.csv", ",,,\nid,text,,\n1,one,,\n2,two\n3,three,,x\n4,four,\n")
    assert summary(read("a.csv")) == [
        ("1", "one"),
        ("2", "two"),
        (None, "has 4 fields, and the header has 2"),
        (None, "has 3 fields, and the header has 2"),
    ]
    write("a.csv", "id,,text,\n1,,one,\n2,,two,\n")
    assert "more than one column named ''" not in refusal("a.csv", text_field="body")
    write("a.csv", "id,,,text\n1,,,one\n")
    assert "more than one column named ''" in refusal("a.csv")


def test_a_table_with_other_separators_says_so_also_of_a_field_that_is_named() -> None:
    write("b.csv", "id;body;price\n1;a;1,50\n2;b;2,50\n")
    assert refusal("b.csv").endswith(
        "line 2 of 'b.csv': has 2 fields, and the header has 1; csv files separate fields by "
        "commas and tsv files by tabs: convert the file"
    )
    write("a.csv", "id;body;lang\n1;a;en\n")
    assert refusal("a.csv", text_field="body").endswith(
        "there is no field 'body'; the fields are 'id;body;lang'; csv files separate fields by "
        "commas and tsv files by tabs: convert the file"
    )


# --- which field is what --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "guessed"),
    [
        ("id,text", ("id", "text")),
        ("body,content", (None, "content")),  # the first in the list of names, not in the file
        ("_ID,Body", ("_ID", "Body")),
        ("uuid,key,title,abstract", ("uuid", "abstract")),
        ("id,question", ("id", "question")),  # the only one left
        ("question", (None, "question")),
        ("document,document_id", ("document_id", "document")),
        ("id,a;b", ("id", "a;b")),
    ],
)
def test_fields_are_guessed(header: str, guessed: tuple[str | None, str]) -> None:
    columns = header.split(",")
    write("a.csv", f"{header}\n{','.join(columns)}\n")
    [row] = documents("a.csv")
    assert (None if "#" in row.id else row.id, row.text) == guessed
    assert set(row.metadata) == {*columns} - {*guessed}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("id,title,question", "the fields are 'id', 'title', 'question'"),
        (
            "id,Text,text",
            "has the fields 'Text', 'text'; choose one with text_field (--text-field)",
        ),
        ("id,ID,text", "has the fields 'id', 'ID'; choose one with id_field (--id-field)"),
        ("id", "none of the others holds strings"),
    ],
)
def test_no_single_best_guess_is_refused(header: str, message: str) -> None:
    write("a.csv", f"{header}\n{header}\n")
    assert message in refusal("a.csv")


def test_fields_that_are_named_are_used(told: Told) -> None:
    write("a.csv", "id,text,title,n\n1,a,b,2\n")
    options = {"id_field": "n", "text_field": "title", "metadata_fields": ("id",)}
    assert documents("a.csv", told=told, **options) == [
        Document(id="2", text="b", metadata={"id": "1"}, place="line 2 of 'a.csv'")
    ]
    assert told == []
    assert documents("a.csv", metadata_fields=())[0].metadata == {}
    write("b.csv", "id,key\n1,k\n")
    assert documents("b.csv", text_field="id")[0].id == "k"
    documents("a.csv", text_field="title", told=told)
    assert told == ["a.csv: id is the field 'id'; set with id_field (--id-field)"]


@pytest.mark.parametrize(
    "options", [{"id_field": "x"}, {"text_field": "x"}, {"metadata_fields": ("id", "x")}]
)
def test_fields_that_do_not_exist_are_refused(options: dict[str, Any]) -> None:
    write("a.csv", "id,text\n1,a\n")
    assert refusal("a.csv", **options) == (
        "a.csv: there is no field 'x'; the fields are 'id', 'text'"
    )


# --- json lines -----------------------------------------------------------------------------------


def test_several_fields_are_one_text(told: Told) -> None:
    lines = [
        '{"id": 1, "subject": "s", "body": "b"}',
        '{"id": 2, "subject": null, "body": "b", "n": 1}',
        '{"id": 3, "subject": " ", "body": ""}',
        '{"id": 4, "subject": null}',
        '{"id": 5, "subject": 5, "body": "b"}',
    ]
    write("a.jsonl", "\n".join(lines))
    fields = ("subject", "body")
    assert summary(read("a.jsonl", text_field=fields, id_field="id", told=told)) == [
        ("1", "s\n\nb"),
        ("2", "b"),
        ("3", "the text in the fields 'subject', 'body' is empty"),
        ("4", "the fields 'subject', 'body' have no text"),
        ("5", "the field 'subject' has the type int; a string is needed for a text"),
    ]
    assert told == []
    assert summary(read("a.jsonl", text_field=["body", "subject"]))[0] == ("1", "b\n\ns")
    rows = read("a.jsonl", text_field=fields)
    assert [row.metadata for row in rows if isinstance(row, Document)] == [{}, {"n": 1}]
    assert "there is no field 'x'" in refusal("a.jsonl", text_field=("body", "x"))
    with pytest.raises(ConfigError, match="both 'body'"):
        SourceOptions(id_field="body", text_field=fields)
    with pytest.raises(ConfigError, match=r"text_field = \(\)"):
        SourceOptions(text_field=())


def test_jsonl(told: Told) -> None:
    write("a.jsonl", '{"n": {"a": [1, null, true]}, "body": "one", "_id": 3, "f": NaN}\n\n')
    assert documents("a.jsonl", told=told) == [
        Document(
            id="3",
            text="one",
            metadata={"n": {"a": [1, None, True]}, "f": None},
            place="line 1 of 'a.jsonl'",
        )
    ]
    assert told == [
        "a.jsonl: text is the field 'body', id is the field '_id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]


def test_a_long_line_of_json_is_hardly_copied() -> None:
    size = 4 << 20
    write("a.jsonl", json.dumps({"id": 1, "text": "word " * (size // 5)}) + "\r\n")
    tracemalloc.start()
    try:
        assert [row.id for row in read("a.jsonl")] == ["1"]
        assert tracemalloc.get_traced_memory()[1] < 3.5 * size  # the line, its text and the value
    finally:
        tracemalloc.stop()


def test_the_guess_looks_at_types_and_at_many_rows() -> None:
    write("a.ndjson", '{"content": {"a": 1}, "q": "one"}\nbroken\n{"q": "two", "k": "v"}\n')
    assert "hold strings" in refusal("a.ndjson")
    write("b.ndjson", '{"content": {"a": 1}, "q": "one"}\nbroken\n{"id": "x", "q": "two"}\n')
    assert [row.id for row in read("b.ndjson")] == [None, None, "x"]
    write("many.ndjson", '{"id": 1, "q": "one"}\n' * 100 + '{"id": 2, "text": "late"}\n')
    assert summary(read("many.ndjson"))[99:] == [
        *(("1", "one"), ("2", "the field 'q' has no text")),
    ]
    write("c.ndjson", '{"id": 1.5, "q": "one"}\n{"id": 2, "q": 5}\n')
    assert [row.id for row in read("c.ndjson")] == ["1.5", "2"]


def test_json_in_another_layout_is_told_how_to_convert() -> None:
    hint = "jq -c '.[]' converts an array"
    for content in ('[{"text": "a"}]', '{\n"text": "a"\n}'):
        write("a.jsonl", content)
        assert hint in refusal("a.jsonl")
    write("a.jsonl", '[\n{"text": "a"}\n{"text": "b"\n]')
    reasons = [row.reason for row in read("a.jsonl") if isinstance(row, BadRow)]
    assert [hint in reason for reason in reasons] == [True, False, False]
    write("a.jsonl", '{"text": "a"\n{"text": "b"}\n')  # a damaged row
    assert hint not in summary(read("a.jsonl"))[0][1]


@pytest.mark.parametrize(
    ("line", "document_id", "reason"),
    [
        ('{"id": "a"', None, "is not JSON: Expecting ',' delimiter at character 11"),
        ("[1]", None, "is a JSON list; an object is needed"),
        ("[" * 100_000, None, "nested too deeply"),
        ('{"id": "a"}', "a", "the field 'text' has no text"),
        ('{"id": "a", "text": null}', "a", "the field 'text' has no text"),
        ('{"id": "a", "text": "  "}', "a", "the text in the field 'text' is empty"),
        ('{"id": "a", "text": 5}', "a", "the field 'text' has the type int; a string is needed"),
        ('{"text": "b"}', None, "the field 'id' has no id"),
        ('{"id": null, "text": "b"}', None, "the field 'id' has no id"),
        ('{"id": "", "text": "b"}', None, "the field 'id' has no id"),
        ('{"id": true, "text": "b"}', None, "the id in the field 'id' has the type bool"),
        ('{"id": [1], "text": "b"}', None, "the id in the field 'id' has the type list"),
        ('{"id": "a\\u0000", "text": "b"}', None, "the field 'id' has NUL"),
        ('{"id": "a", "text": "b\\u0000"}', "a", "the field 'text' has NUL (U+0000)"),
        ('{"id": "a", "text": "b\\ud800"}', "a", "lone surrogate '\\ud800' at character 1, which"),
        ('{"id": "a", "text": "b", "m": ["\\ud800"]}', "a", "the field 'm' has the lone"),
        ('{"id": "a", "text": "b", "m": {"\\u0000": 1}}', "a", "the field 'm' has NUL"),
        ('{"id": "a", "text": "b", "\\u0000": 1}', "a", "has NUL"),
        ('{"id": "a", "text": "b", "m": 1' + "0" * 5000 + "}", None, "is not JSON: Exceeds"),
        ("b\udce4d", None, not_utf8(2)),
    ],
)
def test_bad_rows_of_jsonl(line: str, document_id: str | None, reason: str) -> None:
    good = b'{"id": "good", "text": "good"}'
    write("a.jsonl", b"\n".join([good, line.encode("utf-8", "surrogateescape"), good]))
    first, bad, last = read("a.jsonl")
    assert isinstance(bad, BadRow)
    assert reason in bad.reason
    assert "\n" not in bad.reason
    assert "line 1" not in bad.reason  # that is in its place
    assert (bad.id, bad.place) == (document_id, "line 2 of 'a.jsonl'")
    assert (first.id, last.id) == ("good", "good")


def test_a_rare_field_may_be_asked_for() -> None:
    write("a.jsonl", '{"id": 1, "text": "a"}\n')
    assert documents("a.jsonl", metadata_fields=("rare",))[0].metadata == {}


# --- gzip -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_broken_gzip_file_ends_with_a_bad_row(damage: str) -> None:
    # Numbers that do not repeat, so that the file has more than one block.
    rows = [{"id": number, "text": str(number**9)} for number in range(30_000)]
    data = bytearray(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    if damage == "cut":
        del data[len(data) * 3 // 4 :]
    else:
        data[len(data) * 3 // 4] ^= 255
    Path("a.jsonl.gz").write_bytes(data)
    write("b.jsonl", '{"id": "last", "text": "t"}')
    *good, bad, last = read("a.jsonl.gz", "b.jsonl")
    assert 1000 < len(good) < 30_000
    assert isinstance(bad, BadRow)
    assert bad.id is None
    assert bad.place.startswith("the rest of 'a.jsonl.gz', after line ")
    assert last.id == "last"


@pytest.mark.parametrize("is_text", [False, True])
def test_a_file_that_is_cut_while_it_is_read_has_no_end(is_text: bool) -> None:
    """Somebody writes it anew: rows that are not there yet are not removed ones."""
    path = write("a.txt" if is_text else "a.jsonl", '{"id": 1, "text": "words"}\n' * 5000)
    rows = iter(read_rows(path, "lines" if is_text else "jsonl"))
    next(rows)
    os.truncate(path, 100)
    with pytest.raises(BrokenFileError, match="was cut while it was read; load it again when"):
        list(rows)


def test_a_named_file_without_a_row_that_can_be_read_is_refused_before_the_load() -> None:
    Path("a.csv").write_text("id,text,text\n1,a,b\n")
    with pytest.raises(SourceError, match=r"^cannot read 'a.csv': has more than one column"):
        open_source(["a.csv"], SourceOptions(), print)


def test_a_file_that_is_emptied_before_it_is_read_is_not_empty() -> None:
    path = write("a.txt", "words")

    def read_emptied() -> bytes:
        with open_bytes(path) as file:
            os.truncate(path, 0)
            return file.read()

    with pytest.raises(BrokenFileError, match="was cut while it was read"):
        read_emptied()


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end() -> None:
    path = write("a.jsonl", '{"id": 1, "text": "words"}\n' * 5000)
    rows = iter(read_rows(path, "jsonl"))
    next(rows)
    with open(path, "a") as file:
        file.write('{"id": 2, "text": "words"}\n')
    assert [row.fields["id"] for row in rows][-1] == 2


def test_a_gzip_file_that_breaks_early() -> None:
    data = gzip.compress(b'{"id": 1, "text": "a"}\n' * 5)[:-4]
    Path("a.jsonl.gz").write_bytes(data)
    assert [row.id for row in read("a.jsonl.gz")] == ["1"] * 5 + [None]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.gz"])
def test_a_gzip_file_of_no_bytes_is_a_copy_that_has_just_begun(name: str) -> None:
    Path("docs").mkdir()
    Path("docs", name).write_bytes(b"")
    [bad] = read("docs", glob=("*.gz",))
    assert isinstance(bad, BadRow)
    assert bad.reason == "is empty; copy it again"
    assert refusal(f"docs/{name}") == f"cannot read 'docs/{name}': is empty; copy it again"


def test_a_gzip_file_with_a_broken_block() -> None:
    good = gzip.compress(b'{"id": 1, "text": "a"}\n')
    Path("a.jsonl.gz").write_bytes(good + good[:10] + b"\xff" * 20)  # a kind that does not exist
    assert [row.id for row in read("a.jsonl.gz")] == ["1", None]
