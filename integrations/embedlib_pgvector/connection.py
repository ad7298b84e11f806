"""A connection to Postgres that is replaced when it is lost; the operation then runs again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from embedlib.errors import SinkError
from embedlib.indexing import POSTGRES_NO_ANSWER, Tell, UnreachableSinkError, tell_nobody

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Result = TypeVar("Result")

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
GIVE_UP_AFTER_SECONDS = 240.0
"""Long enough for a restart or a failover; a load that gave up continues when run again."""
SEARCH_GIVES_UP_AFTER_SECONDS = 3.0
"""Somebody waits for a search, and the next one connects again."""

# Source of the codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
TRANSIENT = ("08", "40001", "40P01", "57P01", "57P02", "57P03")
"""Lost connections, serialization failures, deadlocks, a server that stops or starts."""
READ_ONLY = "25006"
"""In the middle of a load: a failover has made a standby of the server that answers."""
SET_READ_ONLY = (
    "default_transaction_read_only is on, which managed servers set where the disk is full; make "
    "room or switch it off, and run the load again"
)
LONG_WORD = "54000"
"""Of the notice of a word of more than 2,047 bytes, which a full-text index leaves out."""
REMEDIES = {
    "22P05": "the database is not in UTF-8; make one with ENCODING 'UTF8' for the rows, or correct "
    "the text",
    READ_ONLY: "the server seems to be a standby; name the primary server",
    "3F000": "create the schema first: CREATE SCHEMA",
    "42501": "ask the owner of the database for this permission",
    "42704": "if it is pgvector's, its extension was dropped, or a pooler in transaction mode is "
    "in between, which needs its schema in the role's search path (ALTER ROLE ... SET search_path)",
    "42P01": "the table was dropped during the load; run the load again",
    "42703": "the table was altered during the load; restore the column, or pass recreate=True "
    "(--recreate) to drop these rows and start over",
    "53100": "the server's disk is full; make room and run the load again",
    "53200": "the server is out of memory",
}
# libpq gives no code for a failed connection, only the server's message. One in another language is
# treated as an outage, which costs nothing but the wait.
SERVER_STARTS = ("starting up", "shutting down", "not yet accepting", "in recovery mode")
TEMPORARY = "pg_temp"
POOLED = (
    "a temporary table of this session is gone, so the server process has changed: a pooler in "
    "transaction mode is in between; connect to Postgres itself, or through a pooler in session "
    "mode"
)
NO_HOST = "failed to resolve host"  # psycopg's own words
NEEDS_PASSWORD = ("password authentication failed", "no password supplied")
PERMANENT = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist")


class DatabaseSession:
    """Runs operations on one connection, and repeats them on a new one after a loss.

    Attributes:
        tell: called with lines for the user, in the thread that calls the session.
        has_begun: whether a load has written: the server was no standby then.
    """

    def __init__(
        self,
        name: str,
        locate: Callable[[], str],
        prepare: Callable[[Connection], None],
        wait: Callable[[float], None],
        secret: str,
    ) -> None:
        """Make a session; this does not connect.

        Args:
            name: the destination, for messages.
            locate: returns the conninfo; may start the server.
            prepare: sets up a new connection; called again after every loss.
            wait: sleeps for a number of seconds.
            secret: the password, which messages replace by ***; empty: there is none.
        """
        self.tell: Tell = tell_nobody
        self.has_begun = False
        self._notices: SimpleQueue[str] = SimpleQueue()
        self._name = name
        self._locate = locate
        self._prepare = prepare
        self._wait = wait
        self._secret = secret
        self._connection: Connection | None = None
        self._was_connected = False

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """Return `work(connection)`; repeat it from its start whenever the connection is lost.

        Args:
            work: must have the same effect if it runs twice.

        Raises:
            UnreachableSinkError: there was no connection for minutes.
            SinkError: it failed permanently.
        """
        return self._run(work, GIVE_UP_AFTER_SECONDS, "run the load again to continue")

    def run_search(self, work: Callable[[Connection], Result]) -> Result:
        """Return `work(connection)` as `run` does, but soon give up.

        Raises:
            UnreachableSinkError: there was no connection for seconds.
            SinkError: it failed permanently.
        """
        return self._run(work, SEARCH_GIVES_UP_AFTER_SECONDS, "search again later")

    def _run(
        self, work: Callable[[Connection], Result], give_up_after: float, remedy: str
    ) -> Result:
        delay, waited = FIRST_WAIT_SECONDS, 0.0
        while True:
            try:
                result = work(self._open())
                self.tell_notices()
                return result
            except psycopg.Error as error:
                is_set = error.sqlstate == READ_ONLY and self._is_set_read_only()
                line = self._line(error, SET_READ_ONLY if is_set else None)
                is_worth_another = not is_set and self._may_pass(error)
                if error.sqlstate == READ_ONLY:
                    self._disconnect()  # the address may lead to another server then
                if is_worth_another and waited < give_up_after:
                    self.tell(f"{line}; trying again in {delay:g} s")
                elif is_worth_another:
                    raise UnreachableSinkError(
                        f"{line}; gave up after {waited:.0f} s, {remedy}"
                    ) from error
                else:
                    raise SinkError(line) from error
            self.tell_notices()
            self._wait(delay)
            waited += delay
            delay = min(2 * delay, LONGEST_WAIT_SECONDS)

    def connect(self) -> Connection:
        """Return another connection to the same server; the caller closes it."""
        # No prepared statements: a connection pooler may not support them.
        try:
            return psycopg.connect(self._locate(), autocommit=True, prepare_threshold=None)
        except UnicodeError as error:  # of a host such as "a..b"
            raise psycopg.OperationalError(f"{NO_HOST}: {error}") from error

    def close(self) -> None:
        """Close the connection, which releases its locks."""
        self._was_connected = self.has_begun = False
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # Released explicitly: the server notices a closed connection only a moment later.
        if connection.info.transaction_status == TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.execute("SELECT pg_advisory_unlock_all()")
        connection.close()

    def _open(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._connection = None
        connection = self.connect()
        try:
            connection.add_notice_handler(self._keep_notice)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        if self._was_connected:
            self.tell(f"{self._name}: connected again")
        self._was_connected = True
        return connection

    def _may_pass(self, error: psycopg.Error) -> bool:
        """Whether the same operation may succeed later."""
        if (error.sqlstate or "").startswith(TRANSIENT):
            return True
        if error.sqlstate == READ_ONLY:
            return self.has_begun
        if self._connection is not None:
            return self._connection.closed
        # The error came while connecting, or before the new connection was set up.
        message = str(error)
        if error.sqlstate is not None or any(part in message for part in PERMANENT):
            return False
        # The first connection fails at once: a mistyped host must not cost minutes.
        return self._was_connected or any(part in message for part in SERVER_STARTS)

    def _is_set_read_only(self) -> bool:
        """Whether a server that has refused to write does so by a setting, and is no standby.

        One that has just been connected again is not asked: while a standby is promoted it may have
        the setting for a moment.
        """
        if self._connection is None:
            return False
        try:
            row = self._connection.execute("SELECT pg_is_in_recovery()").fetchone()
        except psycopg.Error:
            return False
        return row == (False,)

    def _line(self, error: psycopg.Error, remedy: str | None) -> str:
        """Return one line with the server's message and what to do, without the password.

        Args:
            error: of the server, or of the connection.
            remedy: what to do; None: what the error's code says.
        """
        if isinstance(error, psycopg.errors.ConnectionTimeout):
            return f"{self._name}: {POSTGRES_NO_ANSWER}"
        said = error.diag.message_primary or str(error) or type(error).__name__
        if error.diag.message_detail:
            said = f"{said} ({error.diag.message_detail})"
        remedy = remedy or REMEDIES.get(error.sqlstate or "")
        if any(part in said for part in NEEDS_PASSWORD):
            remedy = "it is read from the URL, PGPASSWORD or ~/.pgpass"
        if TEMPORARY in said:  # `create_stage` makes it with every connection
            remedy = POOLED
        if NO_HOST in said:
            remedy = "check the host in the URL, and the network"
        line = " ".join(f"{said}{f'; {remedy}' if remedy else ''}".split())
        return f"{self._name}: {line.replace(self._secret, '***') if self._secret else line}"

    def _keep_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == LONG_WORD:
            return
        if notice.severity_nonlocalized in ("NOTICE", "WARNING") and notice.message_primary:
            self._notices.put(notice.message_primary)

    def tell_notices(self) -> None:
        """Pass on the notices that the server sent since the last call."""
        while not self._notices.empty():
            self.tell(f"{self._name}: {self._notices.get()}")


def allow_long_statements(connection: Connection) -> None:
    """Let a load take its time: building an index exceeds what a role may have for a query.

    Beside a live table that waits for every transaction of others, and nobody waits for it. The
    connection is idle while texts are embedded, and would lose its lock with its end.
    """
    connection.execute(
        "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN"
        " ('statement_timeout', 'transaction_timeout', 'lock_timeout', 'idle_session_timeout')"
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
