"""Loads in real processes, killed twice and run again; `kills` has the long form."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from tests.integrations.killing import (
    Stored,
    read_edge,
    read_jsonl,
    read_postgres,
    run,
    run_until_killed,
)


def check_few(
    url: Callable[[str], str], read: Callable[[str], Stored], tmp_path: Path, *, is_sparse: bool
) -> None:
    """Load "whole" at one go and "killed" with kills; both must end alike.

    With `is_sparse` each row has a sparse vector beside the other one.
    """
    job = {"is_sparse": is_sparse, "num_documents": 400, "batch_rows": 50}
    run(url("whole"), tmp_path / "whole.log", **job)
    log = tmp_path / "killed.log"
    log.touch()
    dice = random.Random(1)
    for _ in range(2):
        run_until_killed(url("killed"), log, last_text=dice.randrange(1, 150), **job)
    run(url("killed"), log, **job)
    assert read("killed") == read("whole")
    assert len(read("whole")) == 400


def test_files_survive_kills(tmp_path: Path) -> None:
    check_few(
        lambda name: f"jsonl:{tmp_path / name}.jsonl",
        lambda name: read_jsonl(tmp_path / f"{name}.jsonl"),
        tmp_path,
        is_sparse=False,
    )


def test_both_vectors_of_a_row_survive_kills(tmp_path: Path) -> None:
    check_few(
        lambda name: f"edge:{tmp_path / name}",
        lambda name: read_edge(tmp_path / name),
        tmp_path,
        is_sparse=True,
    )


def test_both_vectors_in_postgres_survive_kills(pg: Any, tmp_path: Path) -> None:
    tables = {name: f"kill_{name}_{os.getpid()}" for name in ("whole", "killed")}
    given = {key: str(value) for key, value in conninfo_to_dict(pg.dsn).items()}
    database, options = given.pop("dbname", "postgres"), urlencode(given)

    def read(name: str) -> Stored:
        with pg.connect() as connection:
            return read_postgres(connection, tables[name], "embedlib_sparse::text")

    try:
        check_few(
            lambda name: f"postgresql:///{database}?{options}&table={tables[name]}",
            read,
            tmp_path,
            is_sparse=True,
        )
    finally:
        for table in tables.values():
            pg.fetch("DROP TABLE IF EXISTS {}", table)
