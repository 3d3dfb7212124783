"""OpenTelemetry traces: what a task goes through, from the request that creates it to its news."""
