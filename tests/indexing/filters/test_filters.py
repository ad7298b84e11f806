"""The language of filters: what is read, what it means, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.errors import ConfigError
from embedlib.indexing import AllOf, AnyOf, Exists, Filter, Not, OneOf, Order, matcher, open_sink
from embedlib.indexing.filters.parser import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_KEYS,
    MAX_VALUES,
    parse_filter,
)
from tests.indexing.filters.drawn import (
    FILTERS,
    HOSTILE,
    VALUES,
    as_text,
    check_filters,
    drawn_rows,
    load,
    pairs_of,
)

X, Y = ("x",), ("y",)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("x = 1", OneOf(X, (1,))),
        ("x=='a'", OneOf(X, ("a",))),
        ("x <> true", Not(OneOf(X, (True,)))),
        ("x NOT IN (1, 'a', false)", Not(OneOf(X, (1, "a", False)))),
        ("x.y.`a b` >= -1.5e3", Order(("x", "y", "a b"), ">=", -1500.0)),
        ("x is null", Not(Exists(X))),
        ("x IS NOT NULL", Exists(X)),
        ("exists (x) or exists y", AnyOf((Exists(X), Exists(Y)))),
        ("`null`.`in` = 1", OneOf(("null", "in"), (1,))),
        # `and` binds more tightly than `or`, and `not` than both.
        (
            "x=1 or x=2 and not y=3",
            AnyOf((OneOf(X, (1,)), AllOf((OneOf(X, (2,)), Not(OneOf(Y, (3,))))))),
        ),
        (
            "(x=1 or x=2) and y=3",
            AllOf((AnyOf((OneOf(X, (1,)), OneOf(X, (2,)))), OneOf(Y, (3,)))),
        ),
        (r'x = "\"\\\n\u00e4\ud83d\ude00/\/"', OneOf(X, ('"\\\nä😀//',))),
        (r"""x = 'it\'s "a"'""", OneOf(X, ('it\'s "a"',))),
        ("größe > .5", Order(("größe",), ">", 0.5)),
        ("\u3000x\xa0=\f1\xa0", OneOf(X, (1,))),  # as web pages and word processors have them
    ],
)
def test_a_filter_is_read(text: str, tree: Filter) -> None:
    assert repr(parse_filter(text)) == repr(tree)  # repr, since True == 1


@settings(max_examples=500, database=None)
@given(FILTERS, st.integers(0, 5))
def test_what_is_written_is_read(where: Filter, way: int) -> None:
    text = as_text(where, lambda *ways: ways[way % len(ways)])
    assert repr(parse_filter(text)) == repr(where)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("x = 1", [1, 1.0, [2, 1]]),
        ("x = true", [True]),
        ("x = '1'", ["1"]),
        ("x != 1", [None, True, "1", 2, "missing", [], [[1]], {"x": 1}]),
        ("x < 2", [1, 1.0, [2, 1]]),
        ("x >= '1'", ["1", "missing"]),
        ("x in ('1', 2)", ["1", 2, [2, 1]]),
        ("exists x", [1, 1.0, True, "1", 2, "missing", [2, 1], [[1]], {"x": 1}]),
        ("x is null", [None, []]),
        ("x.x = 1", [{"x": 1}]),
        ("not x < 2", [None, True, "1", 2, "missing", [], [[1]], {"x": 1}]),
    ],
)
def test_what_a_filter_means(text: str, accepted: list[Any]) -> None:
    values = [1, 1.0, None, True, "1", 2, "missing", [], [2, 1], [[1]], {"x": 1}]
    accepts = matcher(parse_filter(text))
    assert repr([value for value in values if accepts({"x": value})]) == repr(
        [value for value in values if repr(value) in map(repr, accepted)]
    )


def test_a_missing_field_is_like_null() -> None:
    for text in ("x = 1", "x < 1", "exists x", "x.y in (1)"):
        accepts = matcher(parse_filter(text))
        assert not accepts({})
        assert matcher(parse_filter(f"not {text}"))({})


def test_strings_are_compared_by_code_points() -> None:
    assert matcher(parse_filter('x < "\U0001f600"'))({"x": "\ufffd"})
    assert matcher(parse_filter('x >= "2024-05-01"'))({"x": "2024-05-01T10:00:00Z"})
    assert not matcher(parse_filter('x >= "2024-05-01"'))({"x": "2024-04-30"})


REFUSED = {
    "": "where is empty; leave it out, or write one",
    " \n": "where is empty",
    "x": "character 2, the end: a comparison must be here: = != < <= > >= in",
    "x = ": "character 5, the end: a value must be here: a string in quotes",
    "x = de": "character 5, 'de': a value must be here; put a string in quotes: \"de\"",
    "x = null": "'null': nothing equals null; write is null",
    "x = 2024-05-01": "character 5, '2024-05-01': it is not a number; put dates",
    "x > true": "character 5, 'true': true and false have no order; use = or !=",
    "x = 9007199254740992": "numbers go to 9007199254740991; longer ids are to be stored as str",
    "x = 1e999": "numbers go to",
    "x = 1_000": "'1_000': it is not a number",
    "2020 <= x": "character 1, '2020': a field must be here, and the value behind it",
    '"x" = 1': "a field must be here",
    "in = 1": "'in': a field must be here; one of this name is `in`",
    "x = 'a": "the string has no end; close it",
    'x = "a\\': "the string has no end; close it",
    r'x = "\x41"': "a string has the escapes of JSON",
    r'x = "\ud800"': "a string has the escapes of JSON",
    r'x = "\u0000"': "no metadata has NUL",
    'x = "\0"': "no metadata has NUL",
    'x = "\ud800"': "a string has the escapes of JSON",
    "x = 1 y = 2": "character 7, 'y': and, or, or the end must be here",
    "x = 1 && y = 2": "'&&': write and",
    "x = 1 || y = 2": "'||': write or",
    "!x": "'!x': write not, or !=",
    "x like 'a%'": "character 3, 'like': a comparison must be here",
    "x ~ 'a'": "there are no patterns",
    "x = “de”": "write straight quotes",
    "x in 1": "'1': in takes values in parentheses",
    "x in ()": "')': a value must be here",
    "x in (1, 2": "the end: close the list",
    "x in [1]": "'[1]': write a list in parentheses",
    "x is 1": "'1': write is null or is not null",
    "(x = 1": "the end: close the parenthesis",
    "x = 1)": "')': and, or, or the end",
    "content-type = 1": "put a name with a hyphen in backticks",
    "`a": "the name has no end",
    "`` = 1": "a name is not empty",
    '`a"b` = 1': "a name is not empty, is UTF-8, and has no",
    "x.`a\ud800` = 1": "a name is not empty, is UTF-8, and has no",
    "x. = 1": "'=': a field must be here, such as",
    "x = 1; DROP TABLE docs": "';': it is not understood",
    "x = 1 -- comment": "character 7, '--'",
    "exists x, y": "',': and, or, or the end",
    "(" * (MAX_DEPTH + 1): f"it is nested {MAX_DEPTH + 1} deep, the limit is {MAX_DEPTH}",
    "not " * 30_000: "characters, the limit is",
    "not " * 8_000: "it is nested",
    f"x in ({','.join(['1'] * (MAX_VALUES + 1))})": "it is value number 1,001, the limit is 1,000",
    ".".join("x" * 17) + " = 1": "has 17 names, the limit is 16",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_filter(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 1, b"x = 1", ["x = 1"], {"x": 1}])
def test_a_filter_is_a_text(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^filter = .*; it must be a str, such as"):
        parse_filter(value, "filter")


def read_or_refused(text: str) -> Filter | None:
    """Return the filter; None: it was refused, in one line."""
    try:
        return parse_filter(text)
    except ConfigError as error:
        lines = str(error).splitlines()
    assert len(lines) == 1
    return None


def test_hostile_filters_are_refused_or_harmless() -> None:
    """Each text alone, and every two of them, with and without a field before them."""
    texts = [*HOSTILE, *pairs_of(HOSTILE)]
    texts += [f"x = {text}" for text in texts] + [f"x = '{text}'" for text in texts]
    num_read = 0
    for text in texts:
        where = read_or_refused(text)
        if where is None:
            continue
        num_read += 1
        accepts = matcher(where)
        for value in VALUES:  # a string, whatever is in it, equals that string only
            assert accepts({"x": value}) is False
    assert 200 < num_read < len(texts) - 200


@settings(max_examples=500, database=None)
@given(st.text(st.sampled_from("xy=<>!()'\"`\\.,01eE-+ \nandortisul😀"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    where = read_or_refused(text)
    assert where is None or matcher(where)({"x": 1}) in (True, False)


def test_drawn_filters_of_a_file(tmp_path: Path) -> None:
    rows = drawn_rows()
    sink = load(open_sink(f"jsonl:{tmp_path / 'rows.jsonl'}"), rows)
    check_filters(sink, rows, 60)
    sink.close()


@pytest.mark.parametrize(("length", "shown"), [(40, "x" * 40), (41, "x" * 37 + "...")])
def test_a_long_piece_is_cut_where_it_is_told(length: int, shown: str) -> None:
    with pytest.raises(ConfigError, match=f"^where: character 3, '{re.escape(shown)}': a compar"):
        parse_filter(f"a {'x' * length}")


def test_the_limits_themselves_are_accepted() -> None:
    keys = ".".join(["x"] * MAX_KEYS)
    assert parse_filter(f"exists {keys}") == Exists(("x",) * MAX_KEYS)
    blanks = " " * (MAX_CHARACTERS - len("exists x"))
    assert parse_filter(f"exists x{blanks}") == Exists(X)


@pytest.mark.parametrize("number", ["-9007199254740992", "9" * 5000])
def test_numbers_beyond_the_largest_are_refused_on_both_sides(number: str) -> None:
    with pytest.raises(ConfigError, match="numbers go to 9007199254740991"):
        parse_filter(f"x = {number}")


def test_no_name_has_a_control_character() -> None:
    with pytest.raises(ConfigError, match="control characters"):
        parse_filter("exists `a\x7f`")
