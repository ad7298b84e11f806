"""Settings of the server that a load changes in its own session."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from embedlib_pgvector.connection import Connection


def allow_long_statements(connection: Connection) -> None:
    """Let a load take its time: building an index exceeds what a role may have for a query.

    Beside a live table that waits for every transaction of others, and nobody waits for it.
    """
    connection.execute(
        "SELECT set_config(name, '0', false) FROM pg_settings"
        " WHERE name IN ('statement_timeout', 'transaction_timeout', 'lock_timeout')"
    )


def notice_killed_clients(connection: Connection) -> None:
    """Let the server end the statement, and with it the lock, of a client that was killed.

    A server on Windows cannot, nor Postgres 14 on anything but Linux.
    Source: `check_client_connection_check_interval` in Postgres' src/backend/tcop/postgres.c.
    """
    with suppress(psycopg.errors.InvalidParameterValue):
        connection.execute(
            "SELECT set_config(name, '5s', false) FROM pg_settings"
            " WHERE name = 'client_connection_check_interval' AND setting = '0'"
        )


def notice_vanished_clients(connection: Connection) -> None:
    """Let the server end the connection, and with it the lock, of a client that has vanished.

    It does so within a minute where the client's machine or network is gone, and not after two
    hours; stricter settings are kept.

    Source: https://www.postgresql.org/docs/current/runtime-config-connection.html, names and units.
    """
    connection.execute(
        "SELECT set_config(name, wanted, false) FROM pg_settings JOIN (VALUES"
        " ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'),"
        " ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '60000')) wish (name, wanted)"
        " USING (name) WHERE setting = '0' OR setting::int > wanted::int"
    )
