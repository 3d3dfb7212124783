"""What Outlast promises of jobs that others made asynchronous: a part of `promises.py`."""

from outlast.tests.promise import Promise

BRIDGES = "Issue 7, transparent: bridges"

PROMISES = (
    Promise(
        "old-jobs-become-tasks",
        "A job that a server made asynchronous in its own way is a task, by policy alone, and ends "
        "with the result that the server's own tool tells.",
        BRIDGES,
    ),
    Promise(
        "followed-job-holds-no-slot",
        "Between two looks a followed job uses no worker slot, and looks need none.",
        BRIDGES,
    ),
    Promise(
        "followed-job-survives-kills",
        "Whatever is killed while a job is followed, it is submitted once and its task ends once.",
        BRIDGES,
    ),
    Promise(
        "upstream-tasks-are-followed",
        "A task that an upstream makes is followed by polling, and told of in every way that tasks "
        "of ours are: it ends with the upstream's own result or error, or, lost, with one of ours.",
        BRIDGES,
    ),
    Promise(
        "upstream-tasks-are-asked-for-by-who-follows",
        "No upstream is told that tasks are known on a call whose task nobody would follow.",
        BRIDGES,
    ),
    Promise(
        "upstream-tasks-are-answered",
        "What an upstream's task asks is asked under keys of ours, and answered under its own.",
        BRIDGES,
    ),
    Promise(
        "upstream-tasks-are-cancelled",
        "To cancel a task of ours is to cancel the upstream's that it follows.",
        BRIDGES,
    ),
    Promise(
        "followed-task-survives-kills",
        "Whatever is killed while an upstream's task is followed, it is begun once and ends once.",
        BRIDGES,
    ),
)
