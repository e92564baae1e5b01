"""The log as JSON lines, for programs that read logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

# The attribute of a record that holds more than its message.
FIELDS = "keepwarm_fields"


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
        return json.dumps(told, ensure_ascii=False, default=str)
