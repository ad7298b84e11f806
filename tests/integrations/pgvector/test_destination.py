from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from embedlib.errors import EmbedlibError
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.urls import parse_url
from embedlib_pgvector.destination import Destination, HnswOptions, parse_destination


def parse(url: str) -> Destination:
    return parse_destination(parse_url(url))


def test_a_url_is_read() -> None:
    found = parse("postgresql://us%40er:p%40w@h:5433/db?table=s.docs&sslmode=require&m=40")
    given = conninfo_to_dict(found.conninfo)
    assert (given["user"], given["password"], given["host"]) == ("us@er", "p@w", "h")
    assert (given["port"], given["dbname"], given["sslmode"]) == ("5433", "db", "require")
    assert (found.schema, found.table, found.is_halfvec) == ("s", "docs", None)
    assert found.index == HnswOptions(m=40, ef_construction=80)
    assert found.name == "postgresql://us%40er@h:5433/db?table=s.docs"
    assert "p@w" not in repr(found)
    assert found.password == "p@w"


def test_the_defaults() -> None:
    found = parse("postgres:///?host=/run/postgresql")
    assert (found.schema, found.table, found.index) == (None, "embedlib", HnswOptions())
    assert conninfo_to_dict(found.conninfo)["host"] == "/run/postgresql"
    for m, ef_construction in ((2, 4), (100, 1000)):
        options = f"m={m}&ef_construction={ef_construction}"
        wanted = HnswOptions(m=m, ef_construction=ef_construction)
        assert parse(f"postgresql://h/db?{options}").index == wanted
    assert parse("postgresql://h/db?index=none&halfvec=true").index is None
    assert parse("postgresql://h/db?index=none&halfvec=true").is_halfvec is True


def test_the_wait_for_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    assert conninfo_to_dict(parse("postgresql://h/db").conninfo)["connect_timeout"] == "10"
    given = conninfo_to_dict(parse("postgresql://h/db?connect_timeout=60").conninfo)
    assert given["connect_timeout"] == "60"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "60")
    assert "connect_timeout" not in conninfo_to_dict(parse("postgresql://h/db").conninfo)


def test_a_server_that_vanishes_is_noticed() -> None:
    """While its answer is awaited, and while rows are sent to it."""
    given = conninfo_to_dict(parse("postgresql://h/db?keepalives_idle=5").conninfo)
    assert (given["keepalives_idle"], given["keepalives_count"]) == ("5", "3")
    assert given["tcp_user_timeout"] == "60000"


def test_a_server_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, **__: object) -> None:
        raise psycopg.errors.ConnectionTimeout("connection timeout expired")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(EmbedlibError) as caught:
        open_sink("postgresql://me:secret@h:5433/db").inspect()
    assert str(caught.value) == (
        "postgresql://me@h:5433/db?table=embedlib: the server does not answer; check the host and "
        "the port, or give it longer with connect_timeout=SECONDS in the URL or in "
        "PGCONNECT_TIMEOUT"
    )


def test_a_host_that_nobody_knows_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("failed to resolve host 'h': [Errno -2] Name not known")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(EmbedlibError, match="not known; check the host in the URL, and the netw"):
        open_sink("postgresql://me@h/db").inspect()


def test_a_local_server_has_a_folder() -> None:
    found = parse("pglocal:some/where?table=docs")
    assert str(found.local_path).endswith("/some/where")
    assert found.name == "pglocal:some/where?table=docs"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/db?tabel=x", "did you mean 'table'"),
        ("postgresql://h/db?zzz=x", "known: table, halfvec, m, ef_construction, index"),
        ("pglocal:x?sslmode=require", "no option 'sslmode'"),
        ("pglocal:?table=x", "the URL has no folder"),
        ("postgresql://h/db?table=a.b.c", "must be TABLE or SCHEMA.TABLE"),
        ("postgresql://h/db?table=.b", "must be TABLE or SCHEMA.TABLE"),
        ("postgresql://h/db?table=pg_temp.a", "pg_temp is a schema of Postgres's own"),
        (f"postgresql://h/db?table={'é' * 32}", "63 bytes"),
        ('postgresql://h/db?table="MyDocs"', "write MyDocs without quotes"),
        ("postgresql://h/db?table=a.%22B%22", "write B without quotes"),
        ("postgresql://h/db?table=a%00b", "must be TABLE"),
        ("postgresql://h/db?m=1", "from 2 to 100"),
        ("postgresql://h/db?m=x", "from 2 to 100"),
        ("postgresql://h/db?index=none&m=x", "from 2 to 100"),
        pytest.param(f"postgresql://h/db?m={'9' * 5000}", "from 2 to 100", id="digits"),
        ("postgresql://h/db?m=50&ef_construction=99", "from 100 to 1000"),
        ("postgresql://h/db?index=ivfflat", "hnsw or none"),
        ("postgresql://h/db?halfvec=maybe", "true or false"),
        ("postgresql:db", "the URL cannot be read"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, message: str) -> None:
    with pytest.raises(EmbedlibError, match=message) as caught:
        open_sink(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *(f"//user:se{sign}cret@host/db" for sign in ("/", "#", "@", "%zz")),
        "//user@host/db?password=se&cret",
        "//host/db?user=me&password=se&cret=&table=docs",
    ],
)
def test_an_unescaped_password_is_not_told(url: str) -> None:
    with pytest.raises(EmbedlibError, match=r"the URL cannot be read; .* %2F") as caught:
        parse(f"postgresql:{url}")
    assert "cret" not in str(caught.value)


def test_a_colon_in_a_password_is_not_told() -> None:
    assert parse("postgresql://user:se:cret@host/db").name == (
        "postgresql://user@host/db?table=embedlib"
    )
