"""A database of one's own on a given server, and its end."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

DROPS_MAX = 5
KEPT = ("migrations", "server_key", "log_epoch")  # what a database is born with


@contextmanager
def database(server: str, kind: str = "test", template: str | None = None) -> Iterator[str]:
    """Create one, empty or as a copy of `template`; gives its conninfo, and drops it afterwards."""
    name = f"outlast_{kind}_{secrets.token_hex(6)}"
    create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(name_of(template)))
        create = sql.Composed((create, copied))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(create)
    try:
        yield make_conninfo(**{**conninfo_to_dict(server), "dbname": name})
    finally:
        _drop(server, name)


def name_of(url: str) -> str:
    """The database that this conninfo or URL names."""
    return str(conninfo_to_dict(url)["dbname"])


def _drop(server: str, name: str) -> None:
    """With force, for what killed processes left there.

    Force may not end a vacuum, which belongs to nobody; without force the vacuum gives way.
    """
    drop = sql.SQL("DROP DATABASE {}").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as connection:
        for _ in range(DROPS_MAX):
            for statement in (sql.Composed((drop, sql.SQL(" WITH (FORCE)"))), drop):
                try:
                    connection.execute(statement)
                except (errors.InsufficientPrivilege, errors.ObjectInUse):
                    continue
                return
        connection.execute(drop)


def empty(url: str) -> None:
    """Begin with nothing, in a migrated database that was used before."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_tables"
            " WHERE schemaname = 'outlast' AND tablename <> ALL (%s)",
            [list(KEPT)],
        ).fetchall()
        tables = (sql.Identifier("outlast", name) for (name,) in rows)
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables)))
