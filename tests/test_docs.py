"""The pages of docs against the code: places that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    + list((ROOT / "docs").rglob("*.md"))
)
_PLACE = re.compile(r"`([\w/]+\.py): (\w+)`")
_FILE = re.compile(r"`((?:src/keepwarm|tests|bench|examples|docs)/[\w./-]+\.\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_functions_that_a_page_names_exist(page: Path) -> None:
    for file, name in _PLACE.findall(page.read_text(encoding="utf-8")):
        source = (ROOT / "src" / "keepwarm" / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", source, re.M), f"{file}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [name for name in _FILE.findall(text) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    heads = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w -]", "", head).replace(" ", "-") for head in heads}
