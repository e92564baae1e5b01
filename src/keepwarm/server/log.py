"""How lines of the log look: for people, and as JSON for programs. Paths, roles, names and whatever
else comes from a client may hold control characters; none of them reaches a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

# The attribute of a record that holds more than its message.
FIELDS = "keepwarm_fields"


def printable(text: str) -> str:
    """`text` without line breaks, escapes of terminals, and characters that turn the direction of
    writing: each is written as Python would."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextLines(logging.Formatter):
    """Time, level and message in one line; a traceback stands behind, each line of it indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it so
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging calls it so
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {printable(line)}" for line in lines)

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging calls it so
        return "\n".join(f"    {printable(line)}" for line in stack_info.split("\n"))


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, message, and what the record says beside."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= getattr(record, FIELDS, {})
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        line = json.dumps(told, ensure_ascii=False, default=str)
        if line.isprintable():
            return line
        return json.dumps(told, default=str).replace("\x7f", "\\u007f")
