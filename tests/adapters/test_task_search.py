"""What a page of the list of tasks costs on a full store: the rows it looks at, never its time."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import psycopg
import pytest

from outlast.adapters.postgres import Database, Row
from outlast.adapters.task_search import HEAD_BYTES, LOOKED_AT_MAX, PostgresTaskSearch, message_of
from outlast.domain.searching import TaskFilter, TaskPlace
from outlast.domain.task import TaskStatus

pytestmark = pytest.mark.anyio

TASKS = 20_000
PAGE = 20
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MIDDLE = BEGIN + timedelta(seconds=TASKS // 2)
RARE, COMMON = "owner-7", "owner-0"
# A beginning of an id that few have may be read as a bitmap; pages never are: it has no order.
BY_INDEX = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
# Of each status the head is read, and one row more says whether the list goes on.
ROWS_MAX = len(TaskStatus) * (PAGE + 1)

# A task a second. The failed ones are long past, and so are those of the rare tool.
_FILL = f"""
INSERT INTO outlast.task_view
    (task_id, version, owner, tool, status, created_at, idempotency_key, wire)
SELECT translate(encode(sha256(convert_to(n::text, 'UTF8')), 'base64'), '+/=', '-_'), 2,
    CASE WHEN n %% 400 = 7 THEN '{RARE}' ELSE '{COMMON}' END,
    CASE WHEN n < 50 THEN 'rare_tool' ELSE 'tool' END,
    CASE WHEN n < 30 THEN 'failed' WHEN n %% 500 = 3 THEN 'working'
        WHEN n %% 500 = 4 THEN 'input_required' WHEN n %% 90 = 5 THEN 'cancelled'
        ELSE 'completed' END,
    %s::timestamptz + n * interval '1 second', NULL,
    convert_to('{{"taskId":"x","status":"completed","statusMessage":"number ' || n || '"}}', 'UTF8')
FROM generate_series(0, {TASKS} - 1) n
"""

FILTERS: dict[str, TaskFilter] = {
    "none": TaskFilter(),
    "owner": TaskFilter(owner=COMMON),
    "rare-owner": TaskFilter(owner=RARE),
    "tool": TaskFilter(tool="tool"),
    "rare-tool": TaskFilter(tool="rare_tool"),
    **{status.value: TaskFilter(statuses=frozenset({status})) for status in TaskStatus},
    "owner-and-status": TaskFilter(owner=COMMON, statuses=frozenset({TaskStatus.FAILED})),
    "tool-and-status": TaskFilter(tool="tool", statuses=frozenset({TaskStatus.CANCELLED})),
    "between": TaskFilter(since=MIDDLE, until=MIDDLE + timedelta(hours=1)),
    "owner-between": TaskFilter(owner=COMMON, since=MIDDLE, until=MIDDLE + timedelta(hours=1)),
}
SEARCHED: dict[str, TaskFilter] = {
    "message": TaskFilter(message="no message says this"),
    "message-of-owner": TaskFilter(message="no message says this", owner=COMMON),
    "owner-and-tool": TaskFilter(owner=COMMON, tool="rare_tool"),
    "id-prefix": TaskFilter(id_prefix="ab"),
    "id-of-owner": TaskFilter(id_prefix="a", owner=RARE),
    "key": TaskFilter(key="key", owner=COMMON),
}


class Explaining(Database):
    """Has the server explain each statement, and keeps what it says of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.plans: list[Mapping[str, Any]] = []

    async def rows(self, statement: str, *params: object) -> Sequence[Row]:
        """See `Database.rows`."""
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        ((told,),) = await super().rows(explained, *params)
        self.plans.append(told[0]["Plan"])
        return await super().rows(statement, *params)

    def looked_at(self) -> int:
        """Rows that scans of the tasks met, thrown away or not; each of them goes by an index."""
        scans = [n for p in self.plans for n in _nodes(p) if n.get("Relation Name") == "task_view"]
        self.plans.clear()
        assert scans
        assert {scan["Node Type"] for scan in scans} <= BY_INDEX, scans
        return sum(map(_met, scans))


def _met(scan: Mapping[str, Any]) -> int:
    thrown = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
    return round((scan["Actual Rows"] + thrown) * scan["Actual Loops"])


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


@pytest.fixture(scope="module")
def full_url(module_database_url: str) -> str:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        connection.execute(_FILL.encode(), [BEGIN])
        connection.execute("VACUUM ANALYZE outlast.task_view")
    return module_database_url


@pytest.fixture
async def database(full_url: str):
    made = Explaining(full_url)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.promise("the-list-of-tasks-stays-as-quick-as-its-page")
@pytest.mark.parametrize("wanted", FILTERS.values(), ids=FILTERS.keys())
async def test_a_page_of_each_filter_looks_at_no_more_than_its_heads(
    database: Explaining, wanted: TaskFilter
) -> None:
    search = PostgresTaskSearch(database)
    first = await search.page(wanted, PAGE)
    assert first.tasks
    # Some more rows of the same instant are met by the sort, and the page itself is read again.
    most = ROWS_MAX + 2 * len(TaskStatus) + PAGE
    assert database.looked_at() <= most
    deep = TaskPlace(MIDDLE, "")
    for page in ({"before": deep}, {"after": deep}):
        await search.page(wanted, PAGE, **page)
        assert database.looked_at() <= most


@pytest.mark.promise("the-list-of-tasks-stays-as-quick-as-its-page")
@pytest.mark.parametrize("wanted", SEARCHED.values(), ids=SEARCHED.keys())
async def test_a_search_stops_at_its_bound(database: Explaining, wanted: TaskFilter) -> None:
    await PostgresTaskSearch(database).page(wanted, PAGE)
    assert database.looked_at() <= len(TaskStatus) * (LOOKED_AT_MAX + 2) + PAGE


async def test_a_search_that_stopped_goes_on_to_the_very_end(full_url: str) -> None:
    database = Database(full_url)
    await database.open()
    try:
        search, wanted = PostgresTaskSearch(database), TaskFilter(message="Number 17")
        place: TaskPlace | None = None
        found: list[str | None] = []
        while True:
            page = await search.page(wanted, PAGE, before=place)
            found += [task.message for task in page.tasks]
            if page.older is None:
                break
            place = page.older
    finally:
        await database.close()
    said = [f"number {n}" for n in reversed(range(TASKS)) if str(n).startswith("17")]
    assert found == said


@pytest.mark.parametrize(
    "text", ["", "plain", 'a "quoted" \\ one\n', "日本語 " * 2_000, "é" * 5_000]
)
def test_a_message_is_read_from_the_beginning_of_a_row(text: str) -> None:
    row = {"taskId": "x", "status": "failed", "statusMessage": text, "createdAt": "then"}
    found = message_of(orjson.dumps(row)[:HEAD_BYTES])
    assert found is not None
    assert text.startswith(found)
    assert found == text or len(found.encode()) > HEAD_BYTES // 2


@pytest.mark.parametrize("cut", range(60, 90))
def test_a_message_that_is_cut_anywhere_is_told_as_far_as_it_goes(cut: int) -> None:
    text = 'tab\tquote"\\' * 20
    row = {"taskId": "x", "status": "failed", "statusMessage": text}
    found = message_of(orjson.dumps(row)[:cut])
    assert found is not None
    assert found
    assert text.startswith(found)


def test_a_row_without_a_message_has_none() -> None:
    row = {"taskId": "x", "status": "failed", "createdAt": '"statusMessage":"not this"'}
    assert message_of(orjson.dumps(row)) is None
    assert message_of(b"") is None
