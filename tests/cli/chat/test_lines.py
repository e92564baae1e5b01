"""Messages of one line and of several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keepwarm.cli.chat.lines import read_message


def typing(*lines: str) -> Callable[[str], str]:
    left = list(lines)

    def read_line(_prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read_line


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["one", "two"], "one"),
        (["one\ntwo"], "one\ntwo"),  # as pasted
        (['"""one', "", "two", '"""', "three"], "one\n\ntwo"),
        (['"""', "one"], "one"),  # Ctrl-D within
        (['/system """one', 'two"""'], '/system """one\ntwo"""'),
    ],
)
def test_message_ends_with_its_line_or_block(lines: list[str], expected: str) -> None:
    assert read_message(typing(*lines)) == expected


def test_end_of_the_input_is_told() -> None:
    with pytest.raises(EOFError):
        read_message(typing())
