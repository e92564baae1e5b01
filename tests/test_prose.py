"""Sentences that must be read twice: README, docs and `--help` say the subject first.

A sentence that begins with one of `OPENINGS` and is no question has its subject hidden ("What is
kept is ..."). `TURNS` are other turns of phrase that had to be mended again and again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepwarm.cli.main import make_parser

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    + list((ROOT / "docs").rglob("*.md"))
)

OPENINGS = re.compile(
    r"\W*(Who|What|Whoever|Whatever|Those|That which|One that|Behind|Not behind)\b"
)
TURNS = {
    r"(?<![Tt]here )\bis no (?!longer|more|less|wider|deeper|faster|sooner)[a-z]": "say `is not a ...`",
    r"\bcannot be meant\b": "say what is wrong with it",
    r"\b(is|are|be|been) (come|gone) back to\b": "say who returns, or `used again`",
    r"\blikewise\b": "say it",
}


def test_a_hidden_subject_is_found_and_a_question_is_not() -> None:
    text = (
        "What is kept is told. What is kept? It is.\n\n| a | Who asks waits. |\n\n- Those go first."
    )
    assert [said[:4] for said in sentences(text) if OPENINGS.match(said) and said[-1] != "?"] == [
        "What", "Who ", "Thos",
    ]  # fmt: skip
    assert faults("5 is no number.")
    assert not faults("There is no TLS. It is no longer there.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_say_the_subject_first(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


def test_help_says_the_subject_first() -> None:
    assert [fault for text in helps(make_parser()) for fault in faults(text)] == []


def faults(markdown: str) -> list[str]:
    """Each sentence that must be mended, with the reason."""
    found = []
    for said in sentences(markdown):
        if OPENINGS.match(said) and not said.endswith("?"):
            found.append(f"{said[:100]!r}: begin with the subject")
        found += [
            f"{said[:100]!r}: {advice}" for turn, advice in TURNS.items() if re.search(turn, said)
        ]
    return found


def sentences(markdown: str) -> Iterator[str]:
    """Also headings, items and cells; without code, comments and quotations of a text."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", markdown, flags=re.S)
    text = re.sub(r"`[^`\n]+`", "`x`", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)|\|", text):
        words = re.sub(r"^\s*(?:[-*#]+|\d+\.)\s+", "", " ".join(block.split()))
        yield from filter(None, re.split(r"(?<=[.!?])['\")*]* +(?=\W?[A-Z`])", words))


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All that `--help` says, of a command and of those below it."""
    yield parser.description or ""
    yield re.sub(r"^  keepwarm .*$", "", parser.epilog or "", flags=re.M)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (choice.help or "" for choice in action._choices_actions)
            for one in dict.fromkeys(action.choices.values()):
                yield from helps(one)
        else:
            yield action.help or ""
