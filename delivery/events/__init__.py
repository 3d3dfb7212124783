"""Events of tasks by the Triggers & Events draft: types, cursors, poll and stream."""
