"""What the commands tell a script. `--help` and docs/client.md say the same."""

DONE = 0
FAILED = 1  # the tool said isError, or the task failed
WRONG_USAGE = 2
CANCELLED = 3
LEFT_RUNNING = 4  # the time was up, or somebody said so
WAITING = 5  # for an answer that nobody here can give
NO_ANSWER = 6  # the server cannot be reached, refuses, or does not have the task

EPILOG = (
    "Exit codes: 0 done · 1 the tool or the task failed · 2 wrong usage · 3 cancelled · "
    "4 left running · 5 waits for an answer · 6 no server, or no such task."
)
