"""`/console/proofs`: what was signed of the audit log, and the proof that an event is in it."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...domain import errors
from ...domain.audit import AuditTree, Notary
from ...domain.owner import Scope
from ..auditing.heads import Head, climb, head_of
from ..auditing.proving import Inclusion, Prover, checked
from .frame import Frame
from .pages import NotThere, Page
from .session import Visit

POSITION_DIGITS_MAX = 18
TASK_ID_CHARS_MAX = 200
FILE = "proof.json"


@dataclass(frozen=True)
class Ledger:
    """What proofs are made and read with. `verifier` is the key that signs the checkpoints."""

    prover: Prover
    tree: AuditTree
    notary: Notary
    verifier: str
    caveat: str | None = None


@dataclass(frozen=True)
class Way:
    """One proof, as it is shown: what it says, and each step from the event to the root."""

    event: dict[str, Any]
    index: int
    said: str
    leaf: str
    steps: list[tuple[str, bool, str]]


class Asked:
    """What is to be proven: the events of a task, or the event at a position."""

    def __init__(self, request: Request) -> None:
        self.text = request.query_params.get("event", "").strip()[:TASK_ID_CHARS_MAX]

    @property
    def position(self) -> int | None:
        """The position, if a number was given."""
        is_number = self.text.isascii() and self.text.isdigit()
        return int(self.text) if is_number and len(self.text) <= POSITION_DIGITS_MAX else None

    async def proofs(self, prover: Prover) -> tuple[list[dict[str, Any]], int]:
        """The proofs, and how many events are too new for any. Raises NotProvable."""
        if self.position is not None:
            return [await prover.inclusion(self.position)], 0
        return await prover.of_task(self.text)


class Proofs:
    """The pages, for operators."""

    def __init__(self, frame: Frame, ledger: Ledger) -> None:
        self._frame, self._ledger = frame, ledger

    def pages(self) -> list[Page]:
        """What to mount."""
        return [
            Page("/console/proofs", self._show, scope=Scope.OPERATE),
            Page(f"/console/proofs/{FILE}", self._download, scope=Scope.OPERATE),
        ]

    async def _show(self, request: Request, visit: Visit) -> Response:
        ledger, asked = self._ledger, Asked(request)
        head, ways, too_new, refused = await self._head(), list[Way](), 0, None
        if asked.text:
            try:
                proofs, too_new = await asked.proofs(ledger.prover)
                ways = [way_of(proof, ledger.notary) for proof in proofs]
            except errors.AuditError as error:
                refused = str(error)
        return self._frame.page(
            request,
            visit,
            "proofs.html",
            head=head,
            root=None if head is None else _text(head.newest.root),
            verifier=ledger.verifier,
            caveat=ledger.caveat,
            asked=asked.text,
            ways=ways,
            too_new=too_new,
            refused=refused,
            file=FILE,
        )

    async def _head(self) -> Head | None:
        ledger = self._ledger
        try:
            return await head_of(ledger.prover, ledger.tree, ledger.notary)
        except errors.NotProvable:
            return None

    async def _download(self, request: Request, _visit: Visit) -> Response:
        asked = Asked(request)
        if not asked.text:
            raise NotThere
        try:
            proofs, _ = await asked.proofs(self._ledger.prover)
        except errors.AuditError as error:
            raise NotThere from error
        body = json.dumps(proofs, indent=2)
        headers = {"Content-Disposition": f'attachment; filename="{FILE}"'}
        return Response(body, headers=headers, media_type="application/json")


def way_of(given: dict[str, Any], notary: Notary) -> Way:
    """The proof step by step, checked as `check-proof` does. Raises NoteRefused, NotProvable."""
    said = checked(given, notary)
    proof = Inclusion.model_validate(given)
    taken = climb(proof, notary.read(proof.checkpoint).size) or []
    steps = [(_text(step.other), step.is_left, _text(step.reached)) for step in taken]
    return Way(given["event"], proof.index, said, _text(proof.event.leaf), steps)


def _text(root: bytes) -> str:
    return base64.b64encode(root).decode()
