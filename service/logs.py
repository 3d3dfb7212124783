"""Structured logs: one JSON object a line, with the task's id if any, never a payload."""

import json
import logging
import sys
from datetime import UTC, datetime

from opentelemetry import trace


class JsonLines(logging.Formatter):
    """`time`, `level`, `logger`, `message`, then FACTS, trace and `error` where there are any."""

    FACTS = ("task", "request", "worker", "attempt", "upstream", "subscription", "position", "url")

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._own: dict[str, object] = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._own,
        }
        for fact in self.FACTS:
            if hasattr(record, fact):
                line[fact] = getattr(record, fact)
        here = trace.get_current_span().get_span_context()
        if here.is_valid:
            line["trace"], line["span"] = f"{here.trace_id:032x}", f"{here.span_id:016x}"
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def configure(level: str, process: int | None = None) -> None:
    """Send all logs of the process to standard error in this form.

    `process` is its number, where several write to one place.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("outlast").setLevel(level.upper())
    carrier = logging.getLogger("uvicorn.error")
    carrier.setLevel(logging.WARNING)
    carrier.addFilter(_is_of_ours)


def _is_of_ours(record: logging.LogRecord) -> bool:
    """A WebSocket frame that is no text is its sender's fault: told (1007), and not logged."""
    return not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError))
