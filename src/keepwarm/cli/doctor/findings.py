"""What doctor finds, for people and for scripts. Plain data."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_WIDTH = 80
_INDENT = 16


class Level(StrEnum):
    OK = "ok"
    ADVICE = "advice"  # it works, and could be better
    PROBLEM = "problem"  # it does not work; the exit status says so too


_MARKS = {Level.OK: " ", Level.ADVICE: "!", Level.PROBLEM: "x"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `words` for people, `data` for scripts."""

    name: str
    words: str
    level: Level = Level.OK
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Section:
    key: str  # in JSON
    title: str
    findings: list[Finding] = field(default_factory=list)

    def add(self, name: str, words: str, level: Level = Level.OK, **data: Any) -> None:
        """Mutates."""
        self.findings.append(Finding(name, words, level, data))

    @property
    def is_good(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)

    def text(self) -> str:
        lines = [self.title]
        for finding in self.findings:
            head = f"{_MARKS[finding.level]} {finding.name}"
            lines += textwrap.wrap(
                finding.words,
                _WIDTH,
                initial_indent=f"{head:<{_INDENT}}",
                subsequent_indent=" " * _INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            finding.name: {"level": finding.level, "words": finding.words, **finding.data}
            for finding in self.findings
        }
