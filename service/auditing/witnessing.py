"""Each new checkpoint goes to a witness, who signs that it extends the one before.

A witness holds no data and proves much: with its signature on a checkpoint, the log can show nobody
another past. It may be slow or away; the follower never waits for it.
"""

import logging
import random
import time

from ...domain import errors
from ...domain.audit import Checkpoint, Witness, WitnessRecord
from .following import LOOK_S, Loop
from .proving import Prover

RETRY_S, RETRY_S_MAX = 5.0, 600.0

_log = logging.getLogger("outlast.audit")


class Witnessing:
    """One process's correspondence with the witness."""

    def __init__(self, prover: Prover, record: WitnessRecord, witness: Witness) -> None:
        self._prover, self._record, self._witness = prover, record, witness
        self._signed = 0
        self._pause_s, self._not_before = RETRY_S, 0.0

    def loop(self) -> Loop:
        """The correspondence, to be started."""
        return Loop(self.show, "outlast-witness", LOOK_S)

    async def show(self) -> None:
        """Have the newest checkpoint signed, unless it is, or the last failure is too fresh."""
        if time.monotonic() < self._not_before:
            return
        try:
            newest = await self._prover.newest()
        except errors.NotProvable:
            return
        if newest.size <= self._signed:
            return
        try:
            await self._show(newest)
        except errors.AuditError:
            self._not_before = time.monotonic() + self._pause_s * random.uniform(0.5, 1)  # noqa: S311 - a pause is no secret
            self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
            raise
        self._pause_s, self._signed = RETRY_S, newest.size

    async def _show(self, newest: Checkpoint) -> None:
        url = self._witness.url
        known = await self._record.witnessed(url)
        if known >= newest.size and newest.cosignatures:
            return  # a replica has shown it
        # A size behind the log's own would be no news to prove by: the witness says what it knows.
        known = min(known, newest.size)
        try:
            lines = await self._cosigned(known, newest)
        except errors.WitnessKnows as error:
            if error.size > newest.size:
                await self._is_ahead(error.size)
                return
            await self._record.remember(url, error.size)
            lines = await self._cosigned(error.size, newest)
        await self._record.keep(newest.size, lines)
        await self._record.remember(url, newest.size)

    async def _cosigned(self, old: int, newest: Checkpoint) -> str:
        return await self._witness.cosign(
            old, await self._prover.path(old, newest.size), newest.note
        )

    async def _is_ahead(self, size: int) -> None:
        """A replica has shown a later checkpoint meanwhile; else the log has lost its end."""
        newest = await self._prover.newest()
        if newest.size < size:
            raise errors.TreeContradicts(
                f"The witness has signed {size} events and the tree has {newest.size}:"
                " it was cut off, or restored from an older backup"
            )
