"""The lines of OpenAI's batch files: requests that are read, answers that are written, and those
that are there already. Plain data."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from keepwarm.errors import BadInput


@dataclass(frozen=True, slots=True)
class Line:
    """One request, or why the line is none."""

    number: int  # from 1
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    trouble: str | None = None


def read_lines(file: Path) -> Iterator[Line]:
    """The requests of a file, in order; blank lines are left out. Raises BadInput where it cannot
    be read."""
    seen: set[str] = set()
    try:
        with file.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                if text.strip():
                    line = _read_line(number, text)
                    if line.custom_id in seen:
                        words = f"custom_id {line.custom_id!r} stands in an earlier line, too"
                        line = Line(number, line.custom_id, trouble=words)
                    seen |= {line.custom_id} if line.custom_id is not None else set()
                    yield line
    except (OSError, UnicodeError) as error:
        raise BadInput(f"cannot read {file}: {error}") from error


def _read_line(number: int, text: str) -> Line:
    try:
        asked = json.loads(text)
    except ValueError as error:
        return Line(number, None, trouble=f"line {number} is not JSON: {error}")
    if not isinstance(asked, dict):
        return Line(number, None, trouble=f"line {number} is not a JSON object")
    custom_id, body = asked.get("custom_id"), asked.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return Line(number, None, trouble=f"line {number} has no custom_id")
    url = asked.get("url", "/v1/chat/completions")
    trouble = None
    if asked.get("method", "POST") != "POST" or not isinstance(url, str):
        trouble = "method must be POST and url a path such as /v1/chat/completions"
    elif not isinstance(body, dict):
        trouble = "body must be an object: the request as it would be sent"
    elif body.get("stream"):
        trouble = "stream: a batch has nobody to stream to; leave it out"
    if trouble is not None:
        return Line(number, custom_id, trouble=trouble)
    return Line(number, custom_id, url, body or {})


class Answers:
    """The file of answers: those of an earlier run stay, as far as they were answered."""

    def __init__(self, file: Path) -> None:
        """Raises BadInput where what is there is no such file."""
        self._file = file
        self.done: set[str] = set()
        kept = list(self._answered())
        try:
            if file.exists():
                beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
                beside.write_text("".join(kept), encoding="utf-8")
                beside.replace(file)
            self._out: TextIO = file.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write {file}: {error}") from error

    def _answered(self) -> Iterator[str]:
        """The lines that need not be asked again. Mutates."""
        if not self._file.exists():
            return
        for number, text in enumerate(self._file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                told = json.loads(text)
                custom_id, response = told["custom_id"], told["response"]
            except (ValueError, TypeError, KeyError) as error:
                if number == 1:
                    words = "holds something else than answers of a batch; name another file"
                    raise BadInput(f"{self._file} {words}") from error
                continue  # torn when an earlier run was killed
            if custom_id is not None and (response or {}).get("status_code") == 200:
                self.done.add(custom_id)
                yield text + "\n"

    def write(self, line: Line, status: int, request_id: str, body: Any) -> None:
        """An answer, good or bad. Mutates."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        self._write(line, response, None)

    def write_trouble(self, line: Line) -> None:
        """A line that is no request. Mutates."""
        self._write(line, None, {"code": "invalid_line", "message": line.trouble})

    def _write(self, line: Line, response: Any, error: Any) -> None:
        told = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": line.custom_id,
            "response": response,
            "error": error,
        }
        self._out.write(json.dumps(told, ensure_ascii=False) + "\n")
        self._out.flush()

    def close(self) -> None:
        self._out.close()
