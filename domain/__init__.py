"""What a task is: events, decisions, evolution, ports, errors. Pure: no clock, I/O or chance."""
