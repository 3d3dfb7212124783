"""`verify`: the whole log against its tree, and the tree against everything that was signed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...domain import errors
from ...domain.audit import AuditLog, AuditTree, Checkpoint, Leaf, Notary, Recorded, Standing
from .matching import Matching
from .report import Finding, Report


class Told(NamedTuple):
    """One signed root: its tree's size, the root, and what to call it."""

    size: int
    root: bytes
    name: str


@dataclass(frozen=True)
class Stored:
    """What is verified. `standing` tells how far log and tree go."""

    log: AuditLog
    tree: AuditTree
    notary: Notary
    standing: Callable[[], Awaitable[Standing]]


class LogCheck:
    """The check of log and tree. `kept` is a note that the user has kept elsewhere."""

    def __init__(self, stored: Stored, kept: str | None = None, caveat: str | None = None) -> None:
        self._stored, self._kept, self._caveat = stored, kept, caveat

    async def __call__(self, report: Report) -> None:
        """Add what is wrong to the report. Safe beside a running service.

        Signatures are read before leaves and leaves before events, so that each is found covered
        by what was read after it.
        """
        checkpoints = await self._stored.tree.checkpoints()
        signed = [*self._signed(checkpoints, report), *self._kept_one(report)]
        standing = await self._stored.standing()
        matching = Matching(report, {each.size for each in signed}, standing.size)
        matched = await self._walk(matching, standing)
        covered = _held(signed, matching, standing.size, report)
        tail = await self._tail(matching, standing)
        matching.finish()
        if standing.highest > standing.issued:
            text = "no position as high as this was ever given out"
            report.add(Finding("inserted", text, standing.highest))
        report.figures |= {
            "events": matched + tail,
            "leaves": standing.size,
            "checkpoints": len(checkpoints),
        }
        unsigned = standing.size - covered + tail
        report.remarks.append(_uncovered(unsigned, matching.positions[covered]))
        if self._caveat is not None:
            report.remarks.append(self._caveat)

    def _signed(self, checkpoints: Sequence[Checkpoint], report: Report) -> list[Told]:
        """The stored checkpoints whose notes hold."""
        good: list[Told] = []
        for each in checkpoints:
            name = f"the checkpoint of {each.size} leaves"
            try:
                signed = self._stored.notary.read(each.note)
            except errors.NoteRefused as error:
                report.add(Finding("checkpoint signature bad", f"{name}: {error}"))
                continue
            if (signed.size, signed.root) != (each.size, each.root):
                text = f"{name} is stored with a note that says otherwise"
                report.add(Finding("checkpoint changed", text))
            good.append(Told(signed.size, signed.root, name))
        return sorted(good)

    def _kept_one(self, report: Report) -> list[Told]:
        if self._kept is None:
            return []
        try:
            signed = self._stored.notary.read(self._kept)
        except errors.NoteRefused as error:
            report.add(Finding("checkpoint signature bad", f"the kept checkpoint: {error}"))
            return []
        return [Told(signed.size, signed.root, f"the kept checkpoint of {signed.size} leaves")]

    async def _walk(self, matching: Matching, standing: Standing) -> int:
        """Match every leaf; how many rows there were."""
        more_leaves = self._stored.tree.leaves(standing.size)
        more_rows = self._stored.log.batches(0, standing.position)
        leaves, rows = list[Leaf](), list[Recorded]()
        all_leaves, all_rows, count = standing.size == 0, False, 0
        while True:
            done, used = matching.take(leaves, rows, all_rows=all_rows)
            del leaves[:done], rows[:used]
            await self._compare_nodes(matching)
            if not rows and not all_rows:
                batch = await anext(more_rows, None)
                all_rows, count = batch is None, count + len(batch or ())
                rows += batch or ()
            elif len(leaves) <= 1 and not all_leaves:
                fetched = await anext(more_leaves, None)
                all_leaves = fetched is None
                leaves += fetched or ()
            elif rows and not leaves:
                matching.insert(rows.pop(0))
            elif not (done or used):
                return count

    async def _compare_nodes(self, matching: Matching) -> None:
        """Hold the stored roots of subtrees against what the leaves make of them."""
        made = dict(matching.completed)
        matching.completed.clear()
        stored = await self._stored.tree.hashes(made)
        for node, root in made.items():
            if stored.get(node) != root:
                matching.tell_of_node(node, "missing" if node not in stored else "changed")

    async def _tail(self, matching: Matching, standing: Standing) -> int:
        """Look at the events that have no leaf yet; how many there are."""
        count = 0
        async for batch in self._stored.log.batches(standing.position, standing.head):
            for row in batch:
                matching.hold(row)
            count += len(batch)
        return count


def _held(signed: Sequence[Told], matching: Matching, size: int, report: Report) -> int:
    """Hold the roots against what was signed; the size up to which all is as it was signed."""
    good, is_told = 0, False
    for each in signed:
        if each.size > size:
            text = f"{each.name} covers {each.size} events, the tree has {size}"
            report.add(Finding("truncated", text))
        elif matching.roots.get(each.size) == each.root:
            good = max(good, each.size)
        elif not is_told:
            is_told = True  # all later roots differ with it
            text = f"between sizes {good} and {each.size} the tree is not what {each.name} says"
            report.add(Finding("root differs", text))
    return good


def _uncovered(count: int, position: int) -> str:
    """What no checkpoint proves yet."""
    if not count:
        return "every event is covered by a checkpoint"
    newest = "the newest event" if count == 1 else f"the newest {count} events"
    behind = f"behind position {position}" if position else "all there are"
    return f"not covered by a checkpoint yet: {newest}, {behind}"
