"""Names of errors that programs written for earlier versions use."""

from __future__ import annotations

from embedlib import errors


def test_the_former_name_of_closed_error_catches_it() -> None:
    assert errors.EmbedderClosedError is errors.ClosedError
