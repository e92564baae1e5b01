"""The examples of README and docs/ run as they stand, and print what stands below them.

The blocks of one page run one after another, as a reader would type them. Any model's name loads
the built-in model, clients talk to a real server, and times may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import keepwarm
from keepwarm.model.loader import load
from tests.server.serving import Served
from tests.server.serving import served as serving

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = "http://127.0.0.1:8080"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_TIME = re.compile(r"\d+(\.\d+)? (s|ms)\b")


@dataclass(frozen=True)
class Example:
    """A block of Python, and what the page says it prints."""

    line: int
    code: str
    printed: str | None


def examples_of(page: Path) -> list[Example]:
    text = page.read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    found = []
    for block, after in zip(blocks, [*blocks[1:], None]):
        if block[1] == "python":
            follows = after is not None and not text[block.end() : after.start()].strip()
            printed = after[2] if after is not None and follows and not after[1] else None
            found.append(Example(text.count("\n", 0, block.start()) + 2, block[2], printed))
    return found


WITH_EXAMPLES = [page for page in PAGES if examples_of(page)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepwarm, "load", lambda *_, **__: load(), raising=False)
    names: dict[str, Any] = {"__name__": "__example__"}
    for example in examples_of(page):
        code = example.code
        if ADDRESS in code:
            code = code.replace(ADDRESS, request.getfixturevalue("served").url)
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * example.line + code, page.name, "exec"), names)  # noqa: S102
        if example.printed is not None:
            assert _timeless(printed.getvalue()) == _timeless(example.printed)


def _timeless(text: str) -> str:
    return _TIME.sub(r"N \2", text.strip())


def test_an_example_and_its_output_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nprint(1)\n```\n\n```\n1\n```\n\n```python\nx = 2\n```\n")
    assert examples_of(page) == [Example(4, "print(1)\n", "1\n"), Example(12, "x = 2\n", None)]


def test_the_pages_have_examples() -> None:
    assert {"README.md", "api.md", "cache.md"} <= {page.name for page in WITH_EXAMPLES}
