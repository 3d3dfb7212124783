"""The Merkle tree of RFC 6962 and RFC 9162: roots, and proofs that need neither log nor tree.

The leaves `begin` to `end` (not counted) of a tree are a `Range`, and each proof is the roots of
some ranges. A range falls into complete subtrees, each named by its level and its number on that
level, and those never change once they are complete: whoever has stored some of them can compute
any root.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

EMPTY_ROOT = hashlib.sha256(b"").digest()
HASH_SIZE = 32


class Subtree(NamedTuple):
    """The complete subtree over `2 ** level` leaves, the `number`th of its level from the left."""

    level: int
    number: int

    def parts(self, level: int) -> Iterator["Subtree"]:
        """The subtrees of a lower level that it is made of."""
        width = 1 << (self.level - level)
        return (Subtree(level, self.number * width + place) for place in range(width))


class Range(NamedTuple):
    """The leaves from `begin` up to `end`, where a subtree of the tree begins."""

    begin: int
    end: int

    @property
    def subtrees(self) -> list[Subtree]:
        """The complete subtrees that it falls into, from the left, each smaller than the last."""
        found: list[Subtree] = []
        begin = self.begin
        while begin < self.end:
            level = (self.end - begin).bit_length() - 1
            found.append(Subtree(level, begin >> level))
            begin += 1 << level
        return found


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf with this data."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of the node over these two."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def joined(roots: Sequence[bytes]) -> bytes:
    """The root over neighbouring subtrees, of which each is smaller than the one before."""
    if not roots:
        return EMPTY_ROOT
    root = roots[-1]
    for left in reversed(roots[:-1]):
        root = node_hash(left, root)
    return root


def complete_root(hashes: Sequence[bytes]) -> bytes:
    """The root over a power of two of equal subtrees."""
    row = list(hashes)
    while len(row) > 1:
        row = [node_hash(row[at], row[at + 1]) for at in range(0, len(row), 2)]
    return row[0]


def root(leaf_hashes: Sequence[bytes]) -> bytes:
    """The root of the tree with these leaves."""
    tree = Frontier()
    for leaf in leaf_hashes:
        tree.append(leaf)
    return tree.root()


class Frontier:
    """All of a tree that it takes to append to it: the roots of its complete subtrees.

    `append` tells of each subtree that it completes whose level is a multiple of `kept_levels`.
    """

    def __init__(
        self, size: int = 0, peaks: Sequence[bytes] = (), kept_levels: int | None = None
    ) -> None:
        if len(peaks) != size.bit_count():
            raise ValueError("a tree has as many peaks as its size has bits")
        self.size = size
        self._peaks = list(peaks)
        self._kept_levels = kept_levels

    def copy(self) -> "Frontier":
        """The same tree, to be appended to by itself."""
        return Frontier(self.size, self._peaks, self._kept_levels)

    def append(self, leaf: bytes) -> list[tuple[Subtree, bytes]]:
        """Add a leaf by its hash."""
        completed: list[tuple[Subtree, bytes]] = []
        level, number = 0, self.size
        while number & 1:
            leaf = node_hash(self._peaks.pop(), leaf)
            level, number = level + 1, number >> 1
            if self._kept_levels is not None and level % self._kept_levels == 0:
                completed.append((Subtree(level, number), leaf))
        self._peaks.append(leaf)
        self.size += 1
        return completed

    def root(self) -> bytes:
        """The root of the tree as it is now."""
        return joined(self._peaks)


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """The ranges whose roots prove that the leaf `index` is in the tree of this size."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    begin, end, found = 0, size, list[Range]()
    while end - begin > 1:
        middle = begin + _left_width(end - begin)
        if index < middle:
            found.append(Range(middle, end))
            end = middle
        else:
            found.append(Range(begin, middle))
            begin = middle
    return found[::-1]


def consistency_ranges(old: int, new: int) -> list[Range]:
    """The ranges whose roots prove that the tree of size `new` extends that of size `old`."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} leaves does not extend one of {old}")
    if old in {0, new}:
        return []
    begin, end, found = 0, new, list[Range]()
    while old < end:
        middle = begin + _left_width(end - begin)
        if old <= middle:
            found.append(Range(middle, end))
            end = middle
        else:
            found.append(Range(begin, middle))
            begin = middle
    if begin > 0:  # else the old tree is itself a subtree of the new one, and its root is known
        found.append(Range(begin, end))
    return found[::-1]


def proof(ranges: Sequence[Range], root_of: Callable[[Subtree], bytes]) -> list[bytes]:
    """The roots of these ranges, out of complete subtrees."""
    return [joined([root_of(part) for part in each.subtrees]) for each in ranges]


def includes(index: int, size: int, leaf: bytes, path: Sequence[bytes], root: bytes) -> bool:
    """Whether `path` proves that the tree of this size and root has this leaf hash at `index`."""
    if not 0 <= index < size or not _are_hashes(path):
        return False
    taken = steps(index, size, leaf, path)
    return taken is not None and (taken[-1].reached if taken else leaf) == root


class Step(NamedTuple):
    """One hash of a proof, the side that it stands on, and the hash over both."""

    other: bytes
    is_left: bool
    reached: bytes


def steps(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> list[Step] | None:
    """The way of a proof from a leaf to the root, None if it leads past or ends below it."""
    place, last, reached = index, size - 1, leaf
    taken: list[Step] = []
    for other in path:
        if last == 0:
            return None
        is_left = bool(place & 1) or place == last
        reached = node_hash(other, reached) if is_left else node_hash(reached, other)
        taken.append(Step(other, is_left, reached))
        while is_left and place and not place & 1:
            place, last = place >> 1, last >> 1
        place, last = place >> 1, last >> 1
    return taken if last == 0 else None


def extends(sizes: tuple[int, int], roots: tuple[bytes, bytes], path: Sequence[bytes]) -> bool:
    """Whether `path` proves that the new tree extends the old one, each given as (old, new)."""
    (old, new), (old_root, new_root) = sizes, roots
    if not 0 <= old <= new or not _are_hashes(path):
        return False
    if old in {0, new}:  # nothing to prove: every tree extends the empty one, and itself
        return not path and old_root == (new_root if old == new else EMPTY_ROOT)
    # A tree whose size is a power of two is a subtree of every later one: the path begins with it.
    steps = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not steps:
        return False
    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    return _climbed(steps, place, last) == (old_root, new_root)


def _climbed(steps: Sequence[bytes], place: int, last: int) -> tuple[bytes, bytes] | None:
    """The roots of the old and the new tree that these steps lead to, None if they lead past."""
    older = newer = steps[0]
    for other in steps[1:]:
        if last == 0:
            return None
        if place & 1 or place == last:
            older, newer = node_hash(other, older), node_hash(other, newer)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            newer = node_hash(newer, other)
        place, last = place >> 1, last >> 1
    return (older, newer) if last == 0 else None


def stored_parts(subtree: Subtree, kept_levels: int) -> list[Subtree]:
    """The subtrees of the nearest stored level below that it is computed from, itself if stored."""
    return list(subtree.parts(subtree.level - subtree.level % kept_levels))


def assembled(subtree: Subtree, stored: Mapping[Subtree, bytes], kept_levels: int) -> bytes:
    """The root of a complete subtree, out of `stored_parts`. Raises KeyError for one missing."""
    return complete_root([stored[part] for part in stored_parts(subtree, kept_levels)])


def _left_width(width: int) -> int:
    """How many leaves are to the left of the root: the largest power of two below the width."""
    return 1 << ((width - 1).bit_length() - 1)


def _are_hashes(path: Sequence[bytes]) -> bool:
    return all(len(each) == HASH_SIZE for each in path)
