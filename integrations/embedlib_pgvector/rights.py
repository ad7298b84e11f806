"""Who owns a table and who may do what with it, for the table that takes its place.

Without them an application would be locked out: of a table that it may read, and of its own if the
superuser has loaded the new one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from embedlib.errors import SinkError
from embedlib_pgvector.connection import Connection
from embedlib_pgvector.table import Table


@dataclass(frozen=True, kw_only=True)
class Rights:
    """The rights on a table.

    Attributes:
        owner: the role that owns it.
        granted: a role, or None for PUBLIC; what it may do, in the words of GRANT; and whether it
            may grant that. The owner is among them.
    """

    owner: str
    granted: list[tuple[str | None, str, bool]]


def read_rights(connection: Connection, table: Table) -> Rights:
    """Return the rights on a table; those on single columns are not among them."""
    owner = connection.execute(
        "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s", (table.oid,)
    ).fetchone()
    assert owner is not None, "the caller has found the table"
    granted = connection.execute(
        "SELECT CASE a.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(a.grantee) END,"
        " string_agg(a.privilege_type, ', '), a.is_grantable"
        " FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a"
        " WHERE c.oid = %s GROUP BY a.grantee, a.is_grantable",
        (table.oid,),
    ).fetchall()
    return Rights(owner=owner[0], granted=[(row[0], row[1], row[2]) for row in granted])


def check_no_policies(connection: Connection, table: Table, name: str) -> None:
    """Refuse to put another table in the place of one whose rows not everybody may see.

    Raises:
        SinkError: it has row security.
    """
    found = connection.execute(
        "SELECT relrowsecurity FROM pg_class WHERE oid = %s", (table.oid,)
    ).fetchone()
    if found is not None and found[0]:
        raise SinkError(
            f"{name} has row security, whose policies the new table would not have; load into "
            "another table, and give that the same policies"
        )


def take_default_rights(connection: Connection, table: sql.Identifier) -> None:
    """Take back what ALTER DEFAULT PRIVILEGES has given others on a table."""
    defaults = connection.execute(
        "SELECT DISTINCT CASE a.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(a.grantee) END"
        " FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner",
        (table.as_string(connection),),
    ).fetchall()
    for (role,) in defaults:
        connection.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(table, _role(role)))


def give_rights(connection: Connection, table: sql.Identifier, rights: Rights) -> None:
    """Give a new table the owner and the rights of another one; call it in a transaction.

    The default ones are taken back: on the other table they may have been revoked. An owner who may
    make no tables in the schema cannot own this one, and gets all rights on it.
    """
    take_default_rights(connection, table)
    for role, privileges, may_grant in rights.granted:
        connection.execute(
            sql.SQL("GRANT {} ON {} TO {} {}").format(
                sql.SQL(privileges),
                table,
                _role(role),
                sql.SQL("WITH GRANT OPTION" if may_grant else ""),
            )
        )
    # Last, since whoever gives a table away may not grant rights on it any more.
    may = connection.execute("SELECT pg_has_role(%s::name, 'USAGE')", (rights.owner,)).fetchone()
    if may is not None and may[0]:
        with suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(
                sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(rights.owner))
            )


def _role(name: str | None) -> sql.Composable:
    """Return a role for GRANT and REVOKE; None: all of them."""
    return sql.SQL("PUBLIC") if name is None else sql.Identifier(name)
