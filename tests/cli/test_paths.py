from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from embedlib.cli.paths import FilePath


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (FilePath(exists=True), None),
        (FilePath(exists=True, dir_okay=False), None),
        (FilePath(exists=True, file_okay=False), "; give a folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_no_reason_for_a_folder(
    kind: FilePath, advice: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a", encoding="utf-8")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(click.BadParameter) as told:
        kind.convert(str(path), None, None)
    assert told.value.message.endswith(advice or "is not readable.")
