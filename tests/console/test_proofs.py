"""The page of proofs: what was signed last, whether it extends the one before, and a way to it."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx2
import pytest

from outlast.domain import errors, merkle
from outlast.service.auditing.heads import head_of
from outlast.service.auditing.proving import Prover
from outlast.service.console.proofs import way_of
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.auditing import NOTARY, Audited, audited
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import OUTLAST, serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("operators-see-proofs-step-by-step")]

SIGNED_S_MAX = 60.0
EAGER = "audit_checkpoint_events = 1\naudit_checkpoint_s = 1"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Audited]:
    async with audited(database_url) as world:
        yield world


async def test_before_the_first_checkpoint_there_is_no_head(world: Audited):
    with pytest.raises(errors.NotProvable):
        await head_of(Prover(world.log, world.tree), world.tree, NOTARY)


async def test_the_newest_head_is_held_against_the_one_before(world: Audited):
    prover = Prover(world.log, world.tree)
    await world.happened("one")
    await world.signed()
    first = await head_of(prover, world.tree, NOTARY)
    assert (first.newest.size, first.before, first.trusted, first.extends) == (4, None, True, None)
    await world.happened("two", "three")
    await world.signed()
    second = await head_of(prover, world.tree, NOTARY)
    assert (second.newest.size, second.trusted, second.extends) == (12, True, True)
    assert second.before == first.newest


async def test_a_head_that_contradicts_the_one_before_is_shown_as_such(world: Audited):
    await world.happened("one")
    await world.signed()
    await world.happened("two")
    await world.signed()
    world.tamper("UPDATE outlast.audit_checkpoints SET root = sha256(root) WHERE size = 4")
    head = await head_of(Prover(world.log, world.tree), world.tree, NOTARY)
    assert (head.trusted, head.extends) == (True, False)


async def test_a_root_that_is_not_the_signed_one_is_not_trusted(world: Audited):
    await world.happened("one")
    await world.signed()
    world.tamper("UPDATE outlast.audit_checkpoints SET root = sha256(root)")
    assert not (await head_of(Prover(world.log, world.tree), world.tree, NOTARY)).trusted


async def test_the_steps_lead_from_the_leaf_to_the_signed_root(world: Audited):
    await world.happened("one", "two", "three")
    newest = await world.signed()
    proofs, _ = await Prover(world.log, world.tree).of_task("two")
    for proof in proofs:
        way = way_of(proof, NOTARY)
        assert len(way.steps) == len(proof["proof"])
        assert way.steps[-1][2] == re.split(r"\n", newest.note)[2]
        assert f"is leaf {way.index} of 12" in way.said


def test_every_step_of_every_small_tree_ends_at_its_root():
    leaves = [merkle.leaf_hash(bytes([number])) for number in range(40)]
    for size in range(1, 41):
        root = merkle.root(leaves[:size])
        for index in range(size):
            ranges = merkle.inclusion_ranges(index, size)
            path = [merkle.root(leaves[each.begin : each.end]) for each in ranges]
            taken = merkle.steps(index, size, leaves[index], path)
            assert taken is not None
            assert (taken[-1].reached if taken else leaves[index]) == root
            assert [step.other for step in taken] == path
            assert merkle.steps(index, size, leaves[index], [*path, root]) is None


async def proven(http: httpx2.AsyncClient, url: str, event: str) -> httpx2.Response:
    """The page, once a checkpoint covers what it is asked for."""
    pages: list[httpx2.Response] = []

    async def is_proven() -> bool:
        pages.append(await http.get(f"{url}/console/proofs", params={"event": event}))
        assert pages[-1].status_code == 200, pages[-1].text
        return "Download as JSON" in pages[-1].text

    await until(is_proven, SIGNED_S_MAX)
    return pages[-1]


async def test_what_is_downloaded_is_verified_by_the_very_command_of_the_page(
    database_url: str, tmp_path: Path
):
    config = desk_config(EAGER)
    async with serving(tmp_path, config, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        task_id = await client.opened("note_task", {"path": str(tmp_path / "notes")})
        page = await proven(http, server.base_url, task_id)
        assert "the signed root" in page.text
        assert "<script>" not in page.text
        key = re.search(r"--key (?:&#39;|')([^&']+)", page.text)
        assert key is not None
        params = {"event": task_id}
        taken = await http.get(f"{server.base_url}/console/proofs/proof.json", params=params)
        assert "attachment" in taken.headers["content-disposition"]
        (tmp_path / "proof.json").write_bytes(taken.content)
        command = [OUTLAST, "audit", "check-proof", "proof.json", "--key", key[1]]
        checked = await anyio.run_process(command, cwd=tmp_path)
        told = checked.stdout.decode()
        assert told.count(f"of task {task_id}") == len(json.loads(taken.content))


async def test_what_cannot_be_proven_says_why_and_is_not_to_be_had(
    database_url: str, tmp_path: Path
):
    async with serving(tmp_path, desk_config(), database_url) as server, http_client() as http:
        base = f"{server.base_url}/console/proofs"
        assert "There is no checkpoint yet" in (await http.get(base)).text
        for event in ("nobody's", "999999", "0", "<b>"):
            page = await http.get(base, params={"event": event})
            assert page.status_code == 200
            assert 'role="alert"' in page.text
            assert "<b>" not in page.text
            taken = await http.get(f"{base}/proof.json", params={"event": event})
            assert taken.status_code == 404
        assert (await http.get(f"{base}/proof.json")).status_code == 404
