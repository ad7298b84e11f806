"""The import address of `embedlib.indexing`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import embedlib.indexing
from tests.waiting import WAIT_SECONDS


def printed_by(script: str) -> list[str]:
    """The words that a new process prints."""
    command = [sys.executable, "-c", script]
    return subprocess.check_output(command, text=True, timeout=WAIT_SECONDS).split()


@pytest.mark.parametrize("name", embedlib.indexing.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(embedlib.indexing, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'embedlib\.indexing' has no attribute 'x'"):
        embedlib.indexing.x  # noqa: B018


def test_importing_the_package_loads_none_of_its_modules() -> None:
    script = (
        "import sys, embedlib.indexing\n"
        "print(*(m for m in sys.modules if m.startswith('embedlib.indexing.') or m == 'numpy'))"
    )
    assert printed_by(script) == []


def test_a_sink_author_loads_no_engine_and_no_tokenizer() -> None:
    names = "Sink, SinkUrl, SinkState, Target, RowKey, Hit, Row, Vectors, FileLock, import_extra"
    script = (
        f"from embedlib.indexing import {names}, check_target, check_vectors, is_true, host_of\n"
        "import sys\nprint(*(m.partition('.')[0] for m in sys.modules))"
    )
    assert not {"tokenizers", "openvino", "torch", "tqdm"} & set(printed_by(script))
