"""Each new checkpoint is shown to a witness, who may be late, away, ahead or mistaken."""

from collections.abc import AsyncIterator

import pytest

from outlast.adapters import notes
from outlast.adapters.audit_tree import PostgresWitnessRecord
from outlast.adapters.witness import HttpWitness
from outlast.domain import errors
from outlast.service.auditing.proving import Prover
from outlast.service.auditing.witnessing import Witnessing
from outlast.tests.support.auditing import NOTARY, Audited, audited, told
from outlast.tests.support.ports import free_port
from outlast.tests.support.witness import Witness, witnessing

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Audited]:
    async with audited(database_url) as world:
        await world.happened("one")
        await world.signed()
        yield world


def correspondence(world: Audited, url: str, witness: Witness) -> Witnessing:
    """Of a process that has just begun."""
    record = PostgresWitnessRecord(world.database)
    shown = HttpWitness(url, witness.verifier)
    return Witnessing(Prover(world.log, world.tree), record, shown)


async def test_each_new_checkpoint_is_signed_by_the_witness(world: Audited) -> None:
    witness = Witness(NOTARY)
    with witnessing(witness) as url:
        showing = correspondence(world, url, witness)
        await showing.show()
        await showing.show()  # nothing is new
        await world.happened("two")
        await world.signed()
        await showing.show()
    assert witness.requests == [(0, 4), (4, 8)]
    newest = await world.tree.newest()
    assert newest is not None
    text, signatures = notes.opened(newest.note + newest.cosignatures)
    assert [witness.verifier.has_signed(text, each) for each in signatures] == [False, True]
    assert NOTARY.read(newest.note + newest.cosignatures) == (newest.size, newest.root)
    assert told(await world.verified()) == []


async def test_a_replica_does_not_show_again_what_another_has_shown(world: Audited) -> None:
    witness = Witness(NOTARY)
    with witnessing(witness) as url:
        await correspondence(world, url, witness).show()
        await correspondence(world, url, witness).show()
    assert witness.requests == [(0, 4)]


async def test_a_witness_that_knows_another_size_is_told_from_there(world: Audited) -> None:
    witness = Witness(NOTARY)
    with witnessing(witness) as url:
        await correspondence(world, url, witness).show()
        world.tamper("DELETE FROM outlast.audit_witness")
        await world.happened("two")
        await world.signed()
        await correspondence(world, url, witness).show()
    assert witness.requests == [(0, 4), (0, 8), (4, 8)]
    assert witness.size == 8


async def test_a_witness_that_is_ahead_tells_that_the_log_was_cut_off(world: Audited) -> None:
    witness = Witness(NOTARY)
    witness.size = 1_000
    ahead = pytest.raises(errors.TreeContradicts, match="signed 1000 events and the tree has 4")
    with witnessing(witness) as url, ahead:
        await correspondence(world, url, witness).show()
    assert witness.requests == [(0, 4)]


async def test_a_replaced_log_gets_no_signature(world: Audited) -> None:
    witness = Witness(NOTARY)
    witness.size, witness.root = 2, bytes(32)
    refused = pytest.raises(errors.WitnessUnavailable, match="answered 422")
    with witnessing(witness) as url, refused:
        await correspondence(world, url, witness).show()
    newest = await world.tree.newest()
    assert newest is not None
    assert newest.cosignatures == ""


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((500, b""), "answered 500"),
        ((409, b""), "another tree of this size"),
        ((409, b"-1\n"), "another tree of this size"),
        ((200, b"no signature\n"), "no signature lines"),
        ((200, b""), "no signature lines"),
        ((200, b"\xff\xfe"), "not text"),
        ((200, b"x" * 20_000), "too long"),
        ((200, "— witness.example AAAAAAAAAAAAAA==\n".encode()), "not of audit_witness_key"),
        ((302, b""), "answered 302"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_kept_nowhere(
    world: Audited, answer: tuple[int, bytes], complaint: str
) -> None:
    witness = Witness(NOTARY)
    witness.answer = answer
    with witnessing(witness) as url:
        showing = correspondence(world, url, witness)
        with pytest.raises(errors.WitnessUnavailable, match=complaint):
            await showing.show()
        await showing.show()  # too soon after the failure: nothing is sent
    assert len(witness.requests) == 1
    newest = await world.tree.newest()
    assert newest is not None
    assert newest.cosignatures == ""


async def test_a_witness_that_is_away_is_said_to_be(world: Audited) -> None:
    url = f"http://127.0.0.1:{free_port()}/log"
    with pytest.raises(errors.WitnessUnavailable, match="cannot be reached"):
        await correspondence(world, url, Witness(NOTARY)).show()


async def test_without_a_checkpoint_there_is_nothing_to_show(database_url: str) -> None:
    witness = Witness(NOTARY)
    async with audited(database_url) as world:
        with witnessing(witness) as url:
            await correspondence(world, url, witness).show()
    assert witness.requests == []
