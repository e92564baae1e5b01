"""The public names: there, documented, and as docs/api.md says."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import keepwarm

API = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
# Methods stand in the section of their class, or behind the name of a thing of it.
THINGS = {
    "session": "Session",
    "engine": "Engine",
    "ticket": "Ticket",
    "stream": "Stream",
    "live": "Live",
}
# An example's fence would be taken for a call between two ticks.
_EXAMPLE = re.compile(r"^```python\n.*?^```$", re.M | re.S)
_CODE = re.compile(r"^```\n(.*?)^```$|`([^`]+)`", re.M | re.S)
_SECTION = re.compile(r"^## (\w+)", re.M)


@pytest.mark.parametrize("name", keepwarm.__all__)
def test_public_name_is_there_with_a_docstring_and_on_the_page(name: str) -> None:
    found = getattr(keepwarm, name)
    assert inspect.getdoc(found) or name == "__version__"
    assert re.search(rf"\b{name}\b", API), f"{name} does not stand in docs/api.md"


def signatures() -> list[tuple[str, str]]:
    """(section, call) for all that look like one, such as `match(prompt, limit=None)`."""
    found = []
    page = _EXAMPLE.sub("", API)
    for match in _CODE.finditer(page):
        sections = [s[1] for s in _SECTION.finditer(page, 0, match.start())]
        section = sections[-1] if sections else ""
        code = " ".join((match[1] or match[2]).split()).removeprefix("await ")
        if re.fullmatch(r"[\w.]+\(.*\)", code) and "=" in code:
            found.append((section, code))
    return found


@pytest.mark.parametrize(("section", "code"), signatures(), ids=lambda text: text[:40])
def test_signature_on_the_page_is_the_real_one(section: str, code: str) -> None:
    call = ast.parse(code.replace("*, ", "").replace("=...", "=None"), mode="eval").body
    assert isinstance(call, ast.Call)
    real = inspect.signature(meant(section, ast.unparse(call.func))).parameters
    wanted = [name for name in real if name != "self"]
    named = [ast.unparse(arg) for arg in call.args] + [str(key.arg) for key in call.keywords]
    positions = [wanted.index(name) for name in named if name in wanted]
    assert [name for name in named if name not in wanted] == []
    assert positions == sorted(positions)
    for key in call.keywords:
        if f"{key.arg}=..." not in code:
            said = eval(ast.unparse(key.value), vars(keepwarm) | _public())  # noqa: S307
            default = real[str(key.arg)].default
            is_made = default is None and not isinstance(said, str | int | None)
            assert said == default or is_made, f"{key.arg} is {default!r} by default"


def _public() -> dict[str, Any]:
    return {name: getattr(keepwarm, name) for name in keepwarm.__all__}


def meant(section: str, name: str) -> Any:
    """The function or class of this name on the page."""
    first, _, rest = name.partition(".")
    if rest:
        return getattr(getattr(keepwarm, THINGS.get(first, first)), rest)
    found = getattr(getattr(keepwarm, section, None), name, None)
    return found if found is not None else getattr(keepwarm, name)


def test_signatures_are_found() -> None:
    assert len(signatures()) > 15
