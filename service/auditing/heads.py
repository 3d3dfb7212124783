"""The newest checkpoint as somebody looks at it: what was signed, and that it extends the last."""

from dataclasses import dataclass

from ...domain import errors, merkle
from ...domain.audit import AuditTree, Checkpoint, Notary
from .proving import Inclusion, Prover, decoded


@dataclass(frozen=True)
class Head:
    """The newest checkpoint and the one before, both checked now. None where there is none.

    `trusted` says that a key which this service believes has signed it, and what it says is what is
    stored; `extends` that the log of `before` is a part of it, None without one before.
    """

    newest: Checkpoint
    before: Checkpoint | None
    trusted: bool
    extends: bool | None


async def head_of(prover: Prover, tree: AuditTree, notary: Notary) -> Head:
    """The newest checkpoint. Raises NotProvable before the first, StoreUnavailable."""
    newest = await prover.newest()
    before = await tree.before(newest.size)
    if before is None:
        return Head(newest, None, _is_trusted(newest, notary), extends=None)
    try:
        path = await prover.path(before.size, newest.size)
    except errors.TreeContradicts:
        path = None
    sizes, roots = (before.size, newest.size), (before.root, newest.root)
    extends = path is not None and merkle.extends(sizes, roots, path)
    return Head(newest, before, _is_trusted(newest, notary), extends)


def climb(proof: Inclusion, size: int) -> list[merkle.Step] | None:
    """The steps of a proof from its leaf to the root of a tree of this size."""
    return merkle.steps(proof.index, size, proof.event.leaf, decoded(proof.path))


def _is_trusted(checkpoint: Checkpoint, notary: Notary) -> bool:
    try:
        return notary.read(checkpoint.note) == (checkpoint.size, checkpoint.root)
    except errors.NoteRefused:
        return False
