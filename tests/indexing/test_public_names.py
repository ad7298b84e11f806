"""The import address of `embedlib.indexing`, and the paths that sinks of others import from."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import embedlib.indexing

# What sinks, sources and tests of others could import before `embedlib.indexing` had names.
OLD_PATHS = {
    "embedlib.indexing.sinks": (
        *("ENTRY_POINT_GROUP", "Hit", "OtherModelError", "RowKey", "Sink", "SinkState", "SinkUrl"),
        *("Target", "Tell", "Vectors", "check_target", "check_vectors", "host_of", "is_true"),
        *("open_sink", "parse_url", "without_password"),
    ),
    "embedlib.indexing.sources": (
        *("InputFormat", "Source", "SourceOptions", "open_source", "open_sql_source"),
    ),
    "embedlib.indexing.rows": (
        *("BadRow", "Chunk", "CONTENT_BYTES", "Document", "METADATA_BYTES", "ROW_NAMESPACE"),
        *("Row", "has_same_content", "model_digest", "row_digest", "row_id"),
    ),
    "embedlib.indexing.lock": ("FileLock",),
    "embedlib.indexing.extras": ("import_extra",),
    "embedlib.indexing.sql_source": (
        *("CONNECT_SECONDS", "NO_ANSWER", "open_sql_source", "with_timeout"),
    ),
}
NEW_NAMES = {"NO_ANSWER": "POSTGRES_NO_ANSWER", "with_timeout": "with_connect_timeout"}


@pytest.mark.parametrize("name", embedlib.indexing.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(embedlib.indexing, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'embedlib\.indexing' has no attribute 'x'"):
        embedlib.indexing.x  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in OLD_PATHS.items() for name in names]
)
def test_an_old_import_path_gives_the_same_object(module: str, name: str) -> None:
    old = getattr(import_module(module), name)
    public = NEW_NAMES.get(name, name)
    if public in embedlib.indexing.__all__:
        assert old is getattr(embedlib.indexing, public)


def test_importing_the_package_loads_none_of_its_modules() -> None:
    script = (
        "import sys, embedlib.indexing\n"
        "print(*(m for m in sys.modules if m.startswith('embedlib.indexing.') or m == 'numpy'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


def test_a_sink_author_loads_no_engine_and_no_tokenizer() -> None:
    names = "Sink, SinkUrl, SinkState, Target, RowKey, Hit, Row, Vectors, FileLock, import_extra"
    script = (
        f"from embedlib.indexing import {names}, check_target, check_vectors, is_true, host_of\n"
        "import sys\nprint(*(m.partition('.')[0] for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"tokenizers", "openvino", "torch", "tqdm"} & set(done.stdout.split())
