"""How much a body holds, counted before it is parsed: held against a twin that reads byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepwarm.server import structure
from keepwarm.server.structure import Structure

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[]{},:\n é', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


def counted(value: Any) -> tuple[int, int]:
    """Values, of which keys are none, and levels."""
    if not isinstance(value, dict | list):
        return 1, 0
    inner = [counted(item) for item in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(n for n, _ in inner), 1 + max((depth for _, depth in inner), default=0)


def measured(text: str) -> Structure:
    made = Structure()
    assert not made.exceeds(text.encode(), max_values=10**9, max_depth=10**9)
    return made


@given(value=JSON, chunk=st.integers(1, 40), is_ascii=st.booleans())
@example(value=["\\", '\\"', '"\\\\'], chunk=1, is_ascii=True)
def test_it_counts_what_a_parser_makes(value: Any, chunk: int, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "_CHUNK_BYTES", chunk)
        found = measured(text)
    num_values, depth = counted(value)
    assert found.max_depth == depth
    # An empty container counts as if it held one: nothing is parsed to know better.
    assert num_values <= found.num_values <= 2 * num_values


def test_text_is_no_structure() -> None:
    source = 'if (a["x"]) { return [1, 2, {"b": "\\\\"}]; }\n' * 100
    assert measured(json.dumps({"prompt": source})).num_values == 2


@pytest.mark.parametrize("body", [b"[],", b"1,", b'{"text":"a"},'])
def test_no_byte_is_read_beyond_what_is_allowed(body: bytes) -> None:
    many = b"[" + body * 1_000_000
    made = Structure()
    assert made.exceeds(many, max_values=1000, max_depth=100)
    assert made.num_values < structure._CHUNK_BYTES + 2


def test_depth_is_a_limit_too() -> None:
    assert Structure().exceeds(b"[" * 101 + b"]" * 101, max_values=1000, max_depth=100)
    assert not Structure().exceeds(b"[" * 100 + b"]" * 100, max_values=1000, max_depth=100)
