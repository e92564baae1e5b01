"""A call that is told while it is written."""

from __future__ import annotations

import json

import pytest

from keepwarm.prompt.calling import Calling, Dictation, Written

ARGUMENTS = '{"path": "a \\"}\\" b", "list": [{"x": "{"}, 1], "text": "\\\\"}'
CALL = f'\n{{"name": "write", "arguments": {ARGUMENTS}}}\n'


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_arguments_come_as_they_are_written_and_nothing_else(step: int) -> None:
    dictation = Dictation({"write"})
    parts = [p for at in range(0, len(CALL), step) for p in dictation.push(CALL[at : at + step])]
    assert parts[0] == Calling(dictation.id, "write")
    written = [part for part in parts[1:] if isinstance(part, Written)]
    assert len(written) == len(parts) - 1
    assert "".join(part.text for part in written) == ARGUMENTS
    assert json.loads("".join(part.text for part in written))["list"] == [{"x": "{"}, 1]
    assert step > 7 or len(written) > 5


@pytest.mark.parametrize(
    "text",
    [
        "is a tag for calls",
        '{"name": "unknown", "arguments": {"a": 1}}',
        '{"arguments": {"a": 1}, "name": "write"}',
        '{"name": "write", "arguments": "text"}',
        "x" * 1000 + '{"name": "write", "arguments": {}}',
    ],
)
def test_what_may_be_words_about_calls_is_not_told(text: str) -> None:
    dictation = Dictation({"write"})
    assert [part for letter in text for part in dictation.push(letter)] == []
    assert not dictation.has_begun
