"""A sealer with keys of the tests' own."""

from collections.abc import Sequence

from outlast.adapters.postgres import Database
from outlast.adapters.sealing import LocalWrapping, Sealer, new_key_line

OLD, NEW = new_key_line("old"), new_key_line("new")


def sealer(database: Database, lines: Sequence[str] = (OLD,), *, seals: bool = True) -> Sealer:
    """One that seals what it opens, as a process would that has these keys."""
    return Sealer(database, LocalWrapping(lines), seals=seals)
