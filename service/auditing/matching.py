"""Events held against their leaves, both in their orders: what was changed, dropped, put in, moved.

Pure. Leaves and rows come in batches; of what does not match, so much is kept as it takes to tell
a moved event from a dropped and an inserted one.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...domain.audit import ERASED, KEPT_LEVELS, Leaf, Recorded, leaf_of
from ...domain.merkle import Frontier, Subtree, leaf_hash
from .report import Finding, Report

SUSPECTS_MAX = 64  # events looked for in other places, each in each


@dataclass
class Run:
    """Neighbouring leaves whose events are gone."""

    first: Leaf
    last: Leaf

    @property
    def count(self) -> int:
        """How many."""
        return self.last.number - self.first.number + 1


class Matching:
    """One walk along the log. `sizes` are those of which the roots are wanted."""

    def __init__(self, report: Report, sizes: Collection[int], size: int) -> None:
        self._report, self._sizes, self._size = report, frozenset(sizes), size
        self._frontier = Frontier(kept_levels=KEPT_LEVELS)
        self._before = 0
        self._unlike: list[tuple[Leaf, Recorded]] = []
        self._inserted: list[Recorded] = []
        self._runs: list[Run] = []
        self.completed: list[tuple[Subtree, bytes]] = []
        self.roots: dict[int, bytes] = {0: self._frontier.root()}
        self.positions: dict[int, int] = {0: 0}
        self.broken_at: int | None = None

    def take(
        self, leaves: Sequence[Leaf], rows: Sequence[Recorded], *, all_rows: bool
    ) -> tuple[int, int]:
        """Match as far as both go; how many of each are done with.

        The last leaf waits for the one that follows, unless it is the last of all. `all_rows` says
        that no row comes any more.
        """
        at = of = 0
        while at < len(leaves):
            leaf = leaves[at]
            follows = leaves[at + 1].position if at + 1 < len(leaves) else None
            if follows is None and leaf.number + 1 < self._size:
                break
            if of == len(rows) and not all_rows:
                break
            if not self._before < leaf.position < (follows or leaf.position + 1):
                self._misplaced(leaf, rows[of].position if of < len(rows) else leaf.position)
                at += 1
                continue
            while of < len(rows) and rows[of].position < leaf.position:
                self.insert(rows[of])
                of += 1
            if of < len(rows) and rows[of].position == leaf.position:
                self._pair(leaf, rows[of])
                of += 1
            elif of < len(rows) or all_rows:
                self._missing(leaf)
            else:
                break
            self._before = leaf.position
            self._append(leaf)
            at += 1
        return at, of

    def insert(self, row: Recorded) -> None:
        """This row stands where no event was recorded."""
        self.hold(row)
        if len(self._inserted) < SUSPECTS_MAX:
            self._inserted.append(row)
        else:
            self._report.add(_inserted(row))

    def hold(self, row: Recorded) -> None:
        """Hold the state of a row against its digest."""
        if row.state:
            if hashlib.sha256(row.state).digest() != row.digest:
                self._tell("state does not match its digest", row, "it was changed")
        elif not row.is_erased or row.topic == ERASED:
            self._tell("empty without an erasure", row, "no event says that it was erased")

    def finish(self) -> None:
        """Tell of what did not match, each thing by its name."""
        strangers = [row for _, row in self._unlike] + self._inserted
        for leaf in [leaf for leaf, _ in self._unlike] + [run.first for run in self._runs]:
            found = next((row for row in strangers if _belongs(row, leaf)), None)
            if found is not None:
                self._tell(
                    "reordered", found, f"this event was recorded at position {leaf.position}"
                )
                self._settle(leaf, found)
        for leaf, row in self._unlike:
            self._changed(leaf, row)
        for row in self._inserted:
            self._report.add(_inserted(row))
        for run in self._runs:
            self._report.add(_gone(run, is_end=run.last.number + 1 == self._size))

    def tell_of_node(self, node: Subtree, how: str) -> None:
        """The stored root of a subtree is not what its leaves make."""
        first = node.number << node.level
        text = f"the stored root over {1 << node.level} leaves from leaf {first} on is {how}"
        self._report.add(Finding("tree changed", text))

    def _settle(self, leaf: Leaf, found: Recorded) -> None:
        """A moved event explains the place that it left, and the one that it took."""
        self._inserted = [row for row in self._inserted if row is not found]
        self._unlike = [
            pair for pair in self._unlike if pair[0] is not leaf and pair[1] is not found
        ]
        self._runs = [run for run in self._runs if run.first is not leaf or run.count > 1]

    def _pair(self, leaf: Leaf, row: Recorded) -> None:
        self.hold(row)
        if leaf_hash(leaf_of(row)) == leaf.hash:
            return
        if len(self._unlike) < SUSPECTS_MAX:
            self._unlike.append((leaf, row))
        else:
            self._changed(leaf, row)

    def _changed(self, leaf: Leaf, row: Recorded) -> None:
        true = row._replace(digest=hashlib.sha256(row.state).digest())
        what = "its task, version, topic, id or time, or its state and digest"
        if row.state and leaf_hash(leaf_of(true)) == leaf.hash:
            what = "its digest"
        self._tell("changed", row, f"{what} is not what was recorded")

    def _missing(self, leaf: Leaf) -> None:
        if self._runs and self._runs[-1].last.number == leaf.number - 1:
            self._runs[-1].last = leaf
        else:
            self._runs.append(Run(leaf, leaf))

    def _misplaced(self, leaf: Leaf, position: int) -> None:
        text = f"leaf {leaf.number} of the tree bears a position out of its order"
        self._report.add(Finding("tree changed", text, position))
        self._append(leaf)

    def _append(self, leaf: Leaf) -> None:
        if self.broken_at is None and leaf.number != self._frontier.size:
            self.broken_at = self._frontier.size
            text = f"leaf {self.broken_at} of the tree is missing"
            self._report.add(Finding("tree changed", text, leaf.position))
        if self.broken_at is not None:
            return
        self.completed += self._frontier.append(leaf.hash)
        if self._frontier.size in self._sizes:
            self.roots[self._frontier.size] = self._frontier.root()
            self.positions[self._frontier.size] = leaf.position

    def _tell(self, what: str, row: Recorded, text: str) -> None:
        text = f"event {row.version} of task {row.task_id} ({row.topic}): {text}"
        self._report.add(Finding(what, text, row.position, row.task_id))


def _belongs(row: Recorded, leaf: Leaf) -> bool:
    """Whether the leaf was made of this row in another place."""
    if row.position == leaf.position:
        return False
    return leaf_hash(leaf_of(row._replace(position=leaf.position))) == leaf.hash


def _inserted(row: Recorded) -> Finding:
    text = f"event {row.version} of task {row.task_id} ({row.topic}) was never recorded here"
    return Finding("inserted", text, row.position, row.task_id)


def _gone(run: Run, *, is_end: bool) -> Finding:
    first, last = run.first.position, run.last.position
    if is_end:
        text = f"the last {run.count} events that the tree has are gone"
        return Finding("truncated", text, first)
    text = "an event" if run.count == 1 else f"{run.count} events, up to position {last}"
    return Finding(
        "missing", f"{text} recorded here {'is' if run.count == 1 else 'are'} gone", first
    )
