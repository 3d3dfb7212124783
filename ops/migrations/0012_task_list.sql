-- concurrently
-- The list of tasks in the console, newest first. Within each status the rows lie in the order of their creation, so a
-- page of several statuses is read from the head of each. Between tasks of one millisecond the id decides, and no index
-- has to hold it. A status that changes writes a row's index entries anew; what a task does meanwhile stays in place.
--
-- Built without holding up anybody who appends. One that was broken off is left invalid: it goes first.
DROP INDEX CONCURRENTLY IF EXISTS outlast.task_view_list;
CREATE INDEX CONCURRENTLY task_view_list ON outlast.task_view (status, created_at);

DROP INDEX CONCURRENTLY IF EXISTS outlast.task_view_list_owner;
CREATE INDEX CONCURRENTLY task_view_list_owner ON outlast.task_view (hashtextextended(owner, 0), status, created_at);

DROP INDEX CONCURRENTLY IF EXISTS outlast.task_view_list_tool;
CREATE INDEX CONCURRENTLY task_view_list_tool ON outlast.task_view (tool, status, created_at);

-- By the beginning of an id, whatever the order of the database's language is.
DROP INDEX CONCURRENTLY IF EXISTS outlast.task_view_list_id;
CREATE INDEX CONCURRENTLY task_view_list_id ON outlast.task_view (("left"(task_id, 8)) COLLATE "C");
