"""The first state of a task."""

from outlast.domain.task import Task, TaskStatus, fold
from outlast.tests.domain.given import OPENED


def test_a_task_is_born_as_one_that_is_made_by_its_name():
    born = fold([OPENED])
    made = Task(OPENED, OPENED.version, TaskStatus.WORKING, OPENED.at, OPENED.ttl_ms)
    assert born == made
    assert list(vars(born).items()) == list(vars(made).items())
