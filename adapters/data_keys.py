"""The wrapped data keys as a whole: under which key they are, and a rotation to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..domain import errors
from . import postgres
from .sealing import KeyWrapping

BATCH = 500


@dataclass(frozen=True)
class Rotated:
    """How many data keys were wrapped anew, and how many would not open; they are as they were."""

    wrapped: int
    refused: int


class DataKeys:
    """The table of them. Processes that use it meanwhile notice nothing: the keys are the same."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def counts(self) -> Mapping[str, int]:
        """How many are under which key."""
        rows = await self._database.rows(
            "SELECT wrapped_by, count(*) FROM outlast.data_keys GROUP BY wrapped_by ORDER BY 1"
        )
        return dict(rows)

    async def rotate(self, wrapping: KeyWrapping, batch: int = BATCH) -> Rotated:
        """Wrap under the current key whatever is under another; begun again, it does the rest."""
        after, rotated = None, Rotated(0, 0)
        while True:
            rows = await self._database.rows(
                "SELECT task_id, wrapped, wrapped_by FROM outlast.data_keys"
                " WHERE wrapped_by <> %s AND (%s::text IS NULL OR task_id > %s)"
                " ORDER BY task_id LIMIT %s",
                wrapping.name,
                after,
                after,
                batch,
            )
            if not rows:
                return rotated
            after = rows[-1][0]
            done = await self._rewrap(wrapping, rows)
            rotated = Rotated(rotated.wrapped + done.wrapped, rotated.refused + done.refused)

    async def _rewrap(self, wrapping: KeyWrapping, rows: Sequence[postgres.Row]) -> Rotated:
        ids: list[str] = []
        former: list[bytes] = []
        anew: list[bytes] = []
        for task_id, wrapped, wrapped_by in rows:
            try:
                key = await wrapping.unwrap(task_id, wrapped, wrapped_by)
            except errors.PayloadError:
                continue
            ids.append(task_id)
            former.append(wrapped)
            anew.append(await wrapping.wrap(task_id, key))
        # One that was destroyed meanwhile stays so, and one that another rotation took is its own.
        moved = await self._database.rows(
            "WITH v AS MATERIALIZED (SELECT k.task_id, v.anew"
            " FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) AS v(task_id, former, anew)"
            " JOIN outlast.data_keys k ON k.task_id = v.task_id AND k.wrapped = v.former"
            " ORDER BY k.task_id FOR UPDATE OF k)"
            " UPDATE outlast.data_keys k SET wrapped = v.anew, wrapped_by = %s"
            " FROM v WHERE k.task_id = v.task_id RETURNING 1",
            ids,
            former,
            anew,
            wrapping.name,
        )
        return Rotated(len(moved), len(rows) - len(ids))
