"""Names of errors that programs written for earlier versions use, and messages as one line."""

from __future__ import annotations

from embedlib import errors


def test_the_former_name_of_closed_error_catches_it() -> None:
    assert errors.EmbedderClosedError is errors.ClosedError


def test_the_message_of_another_library_becomes_one_line() -> None:
    error = RuntimeError("\n the first line \nadvice\n")
    assert errors.first_line(error) == "the first line"
    assert errors.typed_line(error) == "RuntimeError: the first line"


def test_an_error_without_a_message_is_named_by_its_class() -> None:
    assert errors.first_line(MemoryError()) == errors.typed_line(MemoryError()) == "MemoryError"


class Table:
    def __repr__(self) -> str:
        return "shape: (2,)\n[\n  'one'\n]\n" + "x" * 100


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_a_value_in_a_message_is_one_line() -> None:
    assert errors.shown(Table()) == "shape: (2,) [ 'one' ] " + "x" * 38
    assert errors.shown("two\nlines, two  spaces") == r"'two\nlines, two  spaces'"
    assert errors.shown(Broken()) == "a Broken"


def test_a_message_that_quotes_a_long_value_keeps_its_start_and_its_end() -> None:
    message = str(errors.SinkError("cannot write " + "x" * 100_000 + "; name a shorter path"))
    assert message.startswith("cannot write xxx")
    assert message.endswith("xxx; name a shorter path")
    assert len(message) < 2100
    assert str(errors.ConfigError("x" * 2000)) == "x" * 2000
