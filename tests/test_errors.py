"""Errors in other processes, and messages as one line."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from embedlib import errors
from embedlib.engines.precision import NeedsReportError
from embedlib.indexing import BadRow, SinkState, UnstorableRowsError
from embedlib.indexing.sinks.protocol import OtherModelError
from embedlib.indexing.sinks.replaceable import ReplacedError

ROOT = Path(__file__).parent.parent
STATE = SinkState(
    num_rows=1, dim=2, similarity="cosine", fingerprint="f", model="m", index="none, exact scan"
)
PLAN: Any = "a plan"
WITH_ARGUMENTS: dict[type[errors.EmbedlibError], Callable[[], errors.EmbedlibError]] = {
    errors.SequenceTooLongError: lambda: errors.SequenceTooLongError("too long", (0, 2), 512),
    NeedsReportError: lambda: NeedsReportError("no room", PLAN),
    OtherModelError: lambda: OtherModelError("another model", STATE),
    ReplacedError: lambda: ReplacedError("jsonl:out.jsonl", STATE, None),
    UnstorableRowsError: lambda: UnstorableRowsError(
        "the collection", [BadRow(place="row 1", reason="holds 2**70", id="a")]
    ),
}
"""Errors whose class takes more than a message."""
CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\):", re.MULTILINE)
"""A class's name, and its bases."""


def error_classes() -> Iterator[type[errors.EmbedlibError]]:
    """Yield every class of the package and the integrations that is an EmbedlibError."""
    names = {"EmbedlibError"}
    folders = (ROOT / "embedlib", ROOT / "integrations")
    files = [(file, base) for base in folders for file in sorted(base.rglob("*.py"))]
    classes = []
    for file, base in files:
        inside = file.relative_to(base.parent if base.name == "embedlib" else base)
        module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
        # Not by `ast`: each worker collects, and parsing all modules would take it two seconds.
        for name, bases in CLASS.findall(file.read_text(encoding="utf-8")):
            classes.append((module, name, set(re.findall(r"[\w.]+", bases))))
    while new := {name for _, name, bases in classes if bases & names} - names:
        names |= new
    found = {name: module for module, name, _ in classes if name in names}
    for name, module in sorted(found.items()):
        yield getattr(import_module(module), name)


@pytest.mark.parametrize("kind", list(error_classes()), ids=lambda kind: kind.__name__)
def test_an_error_reaches_another_process_with_its_attributes(
    kind: type[errors.EmbedlibError],
) -> None:
    error = WITH_ARGUMENTS.get(kind, lambda: kind("a message"))()
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)]
    for other in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert str(other) == str(error)
        assert other.args == error.args
        assert vars(other) == vars(error)


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


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "cannot read 'postgresql://u:secret@h/db': no",
            "cannot read 'postgresql://u:***@h/db': no",
        ),
        ("no 'postgresql:/u:a/secret@h'; b@c", "no 'postgresql:/u:***@h'; b@c"),  # as a Path
        ("x://u:1secret@h and y://:12@h", "x://u:***@h and y://:***@h"),
        ("http://h:80/a@b, s3://b/c:d@e, c:/a@b", "http://h:80/a@b, s3://b/c:d@e, c:/a@b"),
        ("qdrant://h:6334: said a@b", "qdrant://h:6334: said a@b"),
        ("no 'x://h/db?sslpassword=secret&a=b'", "no 'x://h/db?sslpassword=***&a=b'"),
    ],
)
def test_no_error_tells_the_password_of_a_url(message: str, told: str) -> None:
    assert str(errors.SourceError(message)) == told


def test_passwords_are_found_in_long_messages_too_and_at_once() -> None:
    for rest in ("b" * 2900, ":/" * 1_000_000):  # takes hours if all of it is searched
        told = str(errors.SourceError(f"a 'x://u:secret@h/' {rest}"))
        assert told.startswith(f"a 'x://u:***@h/' {rest[:9]}")
        assert len(told) < 2100
