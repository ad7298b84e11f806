"""A table that takes the place of another one belongs to the same role, with the same rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from embedlib import Search, index
from embedlib.errors import SinkError
from tests.indexing.two_models import Model, documents, is_of

NUM = 8


@pytest.fixture
def roles(pg: Any, table: str) -> Iterator[tuple[str, str]]:
    """A role that may make tables, and a member of it that may, too."""
    both = f"app_{table[:20]}", f"job_{table[:20]}"
    pg.fetch("CREATE EXTENSION IF NOT EXISTS vector")
    for name in both:
        pg.fetch("CREATE ROLE {} LOGIN", name)
        pg.fetch("GRANT CREATE ON SCHEMA public TO {}", name)
    pg.fetch("GRANT {} TO {}", *both)
    yield both
    for sink in pg.sinks:
        sink.close()
    for name in both:
        pg.fetch("DROP OWNED BY {} CASCADE", name)
    for name in both:
        pg.fetch("DROP ROLE {}", name)


@pytest.fixture
def role(roles: tuple[str, str]) -> str:
    """The first of them."""
    return roles[0]


def load(pg: Any, table: str, model: str, role: str | None = None, **options: Any) -> None:
    dsn = pg.dsn if role is None else psycopg.conninfo.make_conninfo(pg.dsn, user=role)
    sink = pg.sink(table, conninfo=dsn, index=None)
    index(documents(NUM), sink, embedder=Model(model), chunk=False, **options)


def finds(pg: Any, table: str, model: str, role: str) -> bool:
    sink = pg.sink(table, conninfo=psycopg.conninfo.make_conninfo(pg.dsn, user=role))
    with Search(sink, Model(model)) as search:
        return is_of(model, "text 3", search.search("text 3"))


def owner(pg: Any, table: str) -> str:
    [name] = pg.fetch(f"SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = '{table}'")
    return str(name)


def expect_refused(pg: Any, role: str, statement: str) -> None:
    with closing(pg.connect()) as connection:
        connection.execute(f"SET ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


@pytest.mark.parametrize("how", ["replace", "recreate"])
def test_a_load_of_the_superuser_leaves_a_table_to_its_owner(
    pg: Any, table: str, role: str, how: str
) -> None:
    load(pg, table, "old", role)
    load(pg, table, "new", **{how: True})
    assert owner(pg, table) == role
    assert finds(pg, table, "new", role)
    load(pg, table, "new", role, delete_missing=True)


@pytest.mark.parametrize("how", ["replace", "recreate"])
def test_an_owner_who_may_make_no_more_tables_may_use_the_new_one(
    pg: Any, table: str, roles: tuple[str, str], how: str
) -> None:
    app, job = roles
    load(pg, table, "old", app)
    pg.fetch("REVOKE CREATE ON SCHEMA public FROM PUBLIC, {}", app)  # from all: before Postgres 15
    load(pg, table, "new", job, **{how: True})
    assert owner(pg, table) == job
    assert finds(pg, table, "new", app)


def test_readers_may_read_what_is_made_anew(pg: Any, table: str, role: str) -> None:
    load(pg, table, "old")
    pg.fetch("GRANT SELECT ON {} TO {}", table, role)
    load(pg, table, "new", recreate=True)
    assert finds(pg, table, "new", role)
    expect_refused(pg, role, f"DELETE FROM {table}")


@pytest.mark.parametrize("how", ["replace", "recreate"])
def test_rights_that_every_new_table_gets_are_taken_back(
    pg: Any, table: str, role: str, how: str
) -> None:
    """Of the table before they were revoked."""
    load(pg, table, "old")
    pg.fetch("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {}", role)
    load(pg, table, "new", **{how: True})
    expect_refused(pg, role, f"SELECT count(*) FROM {table}")


def test_rows_of_another_model_are_hidden_until_they_are_searched(
    pg: Any, table: str, role: str
) -> None:
    load(pg, table, "old")
    pg.fetch("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {}", role)
    beside = pg.sink(table).beside()
    beside.begin(pg.target(), pg.lines.append)
    beside.close()
    expect_refused(pg, role, f"SELECT count(*) FROM {table}__embedlib_new")


def test_a_first_table_has_the_rights_that_every_new_one_gets(
    pg: Any, table: str, role: str
) -> None:
    pg.fetch("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {}", role)
    load(pg, table, "new", replace=True)
    assert finds(pg, table, "new", role)


def test_a_resumed_change_says_that_there_are_no_rights_to_take_over(pg: Any, table: str) -> None:
    load(pg, table, "old")
    told = []
    for drop in (True, False):
        beside = pg.sink(table).beside()
        beside.begin(pg.target(), pg.lines.append)
        beside.close()
        told.append(any("no table of this name now, whose rights" in line for line in pg.lines))
        if drop:
            pg.fetch("DROP TABLE {}", table)
    assert told == [False, True]


def test_a_table_with_row_security_is_not_made_anew(pg: Any, table: str) -> None:
    """Everybody who may read some of its rows could read all of the new one."""
    load(pg, table, "old")
    pg.fetch("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", table)
    with pytest.raises(SinkError, match="has row security, whose policies the new table would not"):
        load(pg, table, "new", recreate=True)
    assert pg.fetch(f"SELECT count(*) FROM {table}") == [NUM]


def test_who_may_not_rename_a_table_is_told_before_the_load(pg: Any, table: str, role: str) -> None:
    load(pg, table, "old")
    pg.fetch("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}", table, role)
    with pytest.raises(SinkError, match=r"belongs to the role .*, and only its owner may rename"):
        load(pg, table, "new", role, replace=True)
    assert pg.fetch(f"SELECT to_regclass('{table}__embedlib_new')") == [None]
