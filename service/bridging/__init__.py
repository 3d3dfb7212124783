"""Bridges: what is asynchronous at an upstream in its own way becomes a task here."""
