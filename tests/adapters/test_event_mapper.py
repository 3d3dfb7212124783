"""Rows of other releases: the older ones are lifted, the newer ones are named."""

from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import register_topic

from outlast.adapters import codec, event_log
from outlast.domain.events import TaskEvent
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import open_task

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Remarked(TaskEvent):
    """An event of the second release; in the first, its field was called `note`."""

    TOPIC: ClassVar[str] = "test.remarked"
    class_version: ClassVar[int] = 2

    remark: str

    @staticmethod
    def upcast_v1_v2(state: dict[str, Any]) -> None:
        state["remark"] = state.pop("note")


register_topic(Remarked.TOPIC, Remarked)


@pytest.mark.promise("old-events-replay")
async def test_a_row_of_an_older_release_is_read_in_todays_shape(database_url: str) -> None:
    async with stores.on_postgres(database_url) as ports:
        await read_old_rows(database_url, ports)


async def read_old_rows(url: str, ports: stores.Ports) -> None:
    task = await open_task(ports.log)
    _store(url, task.id, 2, Remarked.TOPIC, {"at": "then", "note": "written by the first release"})
    _store(
        url,
        task.id,
        3,
        Remarked.TOPIC,
        {"at": "now", "class_version": 2, "remark": "by the second"},
    )
    assert list(await ports.log.read(task.id))[1:] == [
        Remarked(task.id, 2, "then", "written by the first release"),
        Remarked(task.id, 3, "now", "by the second"),
    ]


async def test_todays_shape_is_stored_with_its_class_version() -> None:
    mapper = event_log.TaskEventMapper()
    event = Remarked("task", 7, "now", "text")
    stored = mapper.to_stored_event(event)
    assert codec.decode(stored.state) == {"at": "now", "class_version": 2, "remark": "text"}
    assert mapper.to_domain_event(stored) == event
    assert mapper.to_stored_event(event).event_id != stored.event_id


@pytest.mark.parametrize(
    ("topic", "state"),
    [
        ("task.from_the_future", {"at": "now"}),
        (Remarked.TOPIC, {"at": "now", "class_version": 3, "comment": "a shape of tomorrow"}),
        ("os:getcwd", {"at": "now"}),
        ("collections:OrderedDict", {"at": "now"}),
    ],
)
async def test_a_row_that_nobody_here_can_read_says_so(topic: str, state: dict[str, Any]) -> None:
    stored = StoredEvent("task", 2, topic, codec.encode(state))
    with pytest.raises(LookupError, match=f"'{topic}'.*newer release"):
        event_log.TaskEventMapper().to_domain_event(stored)


def _store(url: str, task_id: str, version: int, topic: str, state: dict[str, Any]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO outlast.task_events"
            " (originator_id, originator_version, topic, state, event_id, digest)"
            " VALUES (%s, %s, %s, %s, gen_random_uuid(), '')",
            (task_id, version, topic, codec.encode(state)),
        )
