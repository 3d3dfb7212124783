"""What a task is: events, decisions, evolution, ports, errors. Pure: no clock, no I/O, no randomness."""
