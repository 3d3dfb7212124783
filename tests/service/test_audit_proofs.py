"""Proofs to take away: made from the stored tree, checked with the verifier key alone."""

import copy
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outlast.domain import errors
from outlast.service.auditing.proving import Prover, checked
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.auditing import KEY, NOTARY, Audited, audited
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import OUTLAST, serving

pytestmark = pytest.mark.anyio

MANY = 1_300
FILL = (
    "INSERT INTO outlast.task_events (originator_id, originator_version, topic, state, event_id,"
    " digest) SELECT 'old', n, 'task.progress_reported', s, gen_random_uuid(),"
    " sha256(s) FROM (SELECT n, convert_to(n::text, 'UTF8') AS s"
    f" FROM generate_series(1, {MANY}) n) g"
)
SIGNED_S_MAX = 30.0


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Audited]:
    async with audited(database_url) as world:
        yield world


@pytest.fixture
async def signed(world: Audited) -> Prover:
    """Two tasks, five subtrees full of another, and one event that no checkpoint covers."""
    await world.happened("one", "two")
    await world.signed()
    world.tamper(FILL)
    await world.signed()
    await world.happened("late", events=2)
    await world.extended()
    return Prover(world.log, world.tree)


@pytest.mark.promise("proofs-need-no-server")
async def test_an_event_is_proven_to_stand_where_it_does(world: Audited, signed: Prover) -> None:
    for number in (0, 7, 8, 255, 256, 700, MANY + 7):
        proof = json.loads(json.dumps(await signed.inclusion(world.positions[number])))
        said = checked(proof, NOTARY)
        assert f"is leaf {number} of {MANY + 8}" in said
    proofs, too_new = await signed.of_task("two")
    assert too_new == 0
    assert [proof["event"]["version"] for proof in proofs] == [1, 2, 3, 4]
    assert all("of task two" in checked(proof, NOTARY) for proof in proofs)


@pytest.mark.promise("erasure-keeps-proofs")
async def test_a_proof_is_the_same_after_the_erasure(world: Audited, signed: Prover) -> None:
    before = await signed.of_task("two")
    assert before[1] == 0
    await world.ports.views.forget(["two"])
    world.tamper("SELECT outlast.erase_tasks(ARRAY['two'], 'on request')")
    assert await signed.of_task("two") == (before[0], 1)  # and the event that tells of it


@pytest.mark.promise("proofs-need-no-server")
async def test_the_log_is_proven_to_extend_every_older_one(signed: Prover) -> None:
    for old in (0, 1, 8, 256, 999, MANY + 8):
        proof = json.loads(json.dumps(await signed.consistency(old)))
        assert f"extends that of {old} " in checked(proof, NOTARY)


OTHERS = {
    "position": 9,
    "task": "x",
    "version": 9,
    "topic": "x",
    "id": "0" * 32,
    "recordedMicroseconds": 1,
    "digest": "00",
}


def damages(proof: dict[str, Any]) -> list[dict[str, Any]]:
    """This proof with one thing changed, in every way that has a shape."""
    found: list[dict[str, Any]] = []
    for name, other in OTHERS.items():
        damaged = copy.deepcopy(proof)
        damaged["event"][name] = other
        found.append(damaged)
    found.append(proof | {"index": proof["index"] + 1})
    found.append(proof | {"proof": proof["proof"][1:]})
    found.append(proof | {"proof": [proof["proof"][0], *proof["proof"]]})
    return found


@pytest.mark.promise("proofs-need-no-server")
async def test_a_damaged_proof_proves_nothing(world: Audited, signed: Prover) -> None:
    proof = await signed.inclusion(world.positions[3])
    for damaged in damages(proof):
        with pytest.raises(errors.NotProvable, match="does not lead"):
            checked(damaged, NOTARY)
    older = await signed.consistency(8)
    for changed in ({"oldSize": 9}, {"oldRoot": older["proof"][0]}, {"proof": []}):
        with pytest.raises(errors.NotProvable, match="does not lead"):
            checked(older | changed, NOTARY)
    for note in (proof["checkpoint"].replace("1308", "1309"), "", "x\n\ny\n"):
        with pytest.raises(errors.NoteRefused):
            checked(proof | {"checkpoint": note}, NOTARY)


@pytest.mark.parametrize(
    "given",
    [
        None, 7, "x", [], {}, {"oldSize": 1}, {"oldSize": -1, "oldRoot": "", "proof": [],
        "checkpoint": ""}, {"event": {}, "index": 0, "proof": [], "checkpoint": ""},
        {"oldSize": 1, "oldRoot": "", "proof": ["x"] * 1_000, "checkpoint": ""},
        {"oldSize": 1, "oldRoot": "%", "proof": [], "checkpoint": NOTARY.sign(1, bytes(32))},
    ],
)  # fmt: skip
async def test_what_is_no_proof_is_refused(given: object) -> None:
    with pytest.raises(errors.NotProvable, match="not a proof"):
        checked(given, NOTARY)


async def test_what_cannot_be_proven_says_why(world: Audited, signed: Prover) -> None:
    with pytest.raises(errors.NotProvable, match="No checkpoint covers"):
        await signed.inclusion(world.positions[-1])
    with pytest.raises(errors.NotProvable, match="no event at position 999999"):
        await signed.inclusion(999_999)
    with pytest.raises(errors.NotProvable, match="no event of such a task"):
        await signed.of_task("nobody")
    with pytest.raises(errors.NotProvable, match="covers 1308 events"):
        await signed.consistency(1_309)
    world.tamper("UPDATE outlast.task_events SET topic = 'x' WHERE notification_id = 3")
    with pytest.raises(errors.NotProvable, match="was changed"):
        await signed.inclusion(3)
    world.tamper("DELETE FROM outlast.audit_nodes WHERE number = 2")
    with pytest.raises(errors.TreeContradicts, match="is missing"):
        await signed.inclusion(4)


async def test_without_a_checkpoint_nothing_is_proven(world: Audited) -> None:
    await world.happened("one")
    with pytest.raises(errors.NotProvable, match="no checkpoint yet"):
        await Prover(world.log, world.tree).inclusion(1)


def outlast(folder: Path, database_url: str | None, *words: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OUTLAST_")}
    if database_url is not None:
        environment |= {"OUTLAST_DATABASE_URL": database_url}
    done = subprocess.run(
        [str(OUTLAST), "audit", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


async def test_a_service_signs_its_log_and_the_command_verifies_it(
    database_url: str, tmp_path: Path
) -> None:
    config = desk_config("audit_checkpoint_s = 0.2")
    serve = serving(tmp_path, config, database_url, ["--no-work"])
    async with serve, audited(database_url) as world:
        await world.happened("one")

        async def is_signed() -> bool:
            return (await world.following.standing()).checkpointed == 4

        await until(is_signed, SIGNED_S_MAX)
        code, said = outlast(tmp_path, database_url, "verify", "--no-views")
        assert (code, said.splitlines()[-1]) == (0, "nothing is wrong")
        assert "whoever can write the database could also sign" in said

        _, kept = outlast(tmp_path, database_url, "checkpoint")
        _, key = outlast(tmp_path, database_url, "key")
        (tmp_path / "kept").write_text(kept)
        _, proofs = outlast(tmp_path, database_url, "prove", "--task", "one")
        _, older = outlast(tmp_path, database_url, "consistency", "2")
        (tmp_path / "proofs").write_text(json.dumps([*json.loads(proofs), json.loads(older)]))
        world.tamper("UPDATE outlast.task_events SET topic = 'x' WHERE notification_id = 2")

    code, said = outlast(tmp_path, None, "check-proof", "proofs", "--key", key.strip())
    assert code == 0, said
    assert "is leaf 3 of 4" in said
    assert "extends that of 2" in said
    other = str(KEY.verifier)
    code, said = outlast(tmp_path, None, "check-proof", "proofs", "--key", other)
    assert (code, "NOT PROVEN" in said) == (1, True)

    words = ("verify", "--no-views", "--checkpoint", "kept", "--key", key.strip())
    code, said = outlast(tmp_path, database_url, *words)
    assert (code, said.splitlines()[0].partition(": event")[0]) == (1, "position 2: changed")
    assert said.splitlines()[-1] == "THE LOG IS NOT AS IT WAS RECORDED"
    assert "could also sign" not in said  # the key was given


async def test_a_service_may_leave_its_log_unsigned(database_url: str, tmp_path: Path) -> None:
    config = desk_config("audit = false")
    async with serving(tmp_path, config, database_url) as server, http_client() as http:
        await RawClient(server.url, http).call("tools/list")
    code, said = outlast(tmp_path, database_url, "checkpoint")
    assert (code, said) == (2, "outlast: There is no checkpoint yet\n")
