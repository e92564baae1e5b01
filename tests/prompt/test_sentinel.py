"""Marks: found where they were put, gone when they are taken out, and never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.prompt.messages import Message, read_messages
from keepwarm.prompt.sentinel import Found, Locator, marked, space_behind, spots, unused_mark
from keepwarm.prompt.template import Template
from tests.prompt.conversations import assistant, call, tool, user
from tests.prompt.tokenizers_for_tests import make_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Counting(Template):
    """A template that counts how often it renders."""

    num_renderings = 0

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        Counting.num_renderings += 1
        return super().text(messages, add_generation_prompt=add_generation_prompt)


def locate(template: str, messages: list[dict[str, Any]]) -> tuple[str, dict[int, Found], Locator]:
    made = Counting(make_tokenizer(template))
    read = read_messages(messages)
    text = made.text(read, add_generation_prompt=False)
    Counting.num_renderings = 0
    locator = Locator(made, read, text, add_generation_prompt=False)
    return text, locator.locate(), locator


def test_one_rendering_locates_all_messages() -> None:
    words = [f"word number {i}" for i in range(200)]
    text, found, _ = locate(CHATML, [user(word) for word in words])
    assert Counting.num_renderings == 1
    assert [found[i].char for i in range(200)] == [text.index(w + "<") + len(w) for w in words]


def test_message_the_template_leaves_out_is_not_found() -> None:
    template = CHATML.replace("messages %}", "messages if m.role != 'tool' %}", 1)
    _, found, _ = locate(template, [user("Hi"), tool("21"), user("Bye")])
    assert set(found) == {0, 2}


def test_rendering_that_a_mark_cuts_short_proves_nothing() -> None:
    whole = "Hi there, how are you?" * 3
    template = (
        f"{{% if messages[0].content == '{whole}' %}}{{{{ messages[0].content }}}} Bye."
        "{% else %}{{ messages[0].content }}{% endif %}"
    )
    text, found, locator = locate(template, [user(whole)])
    assert text == f"{whole} Bye."
    assert found == {}
    assert locator.is_reproducible


def test_call_is_found_by_its_arguments() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson }}\n{% endfor %}"
    calls = [call(days=3, city="Paris"), call(where={"x": ["y", {"z": "Rome "}]}, days=3)]
    text, found, _ = locate(template, [assistant("On it.", tool_calls=calls)])
    assert found[0] == Found(text.index("Rome") + 4, "arguments")


def test_call_without_text_in_its_arguments_is_found_by_its_name() -> None:
    template = "{% for m in messages %}{{ m.tool_calls | tojson }}\n{% endfor %}"
    text, found, _ = locate(template, [assistant("", tool_calls=[call(days=3)])])
    assert found[0] == Found(text.index("get_weather") + 11, "name")


def test_template_that_writes_one_call_is_served_by_the_first() -> None:
    template = "{% for m in messages %}{{ m.tool_calls[0].function.name }}\n{% endfor %}"
    _, found, _ = locate(template, [assistant("", tool_calls=[call(), call("call00002")])])
    assert found[0] == Found(11, "first_name")


def test_thought_is_found_where_nothing_else_is_written() -> None:
    template = "{% for m in messages %}<{{ m.reasoning_content }}>{{ m.thinking }}\n{% endfor %}"
    _, found, _ = locate(template, [assistant("", reasoning_content="Hm.", thinking="Hm.")])
    assert found[0] == Found(4, "reasoning")


def test_text_written_twice_ends_at_the_first() -> None:
    template = "{% for m in messages %}{{ m.content }} ({{ m.content }})\n{% endfor %}"
    text, found, _ = locate(template, [user("one"), user("two")])
    assert [found[i].char for i in (0, 1)] == [3, text.index("two") + 3]


def test_equal_messages_stay_equal() -> None:
    """Tools go before each message that equals the last: marks must not tell them apart."""
    template = (
        "{% for m in messages %}{% if m == messages[-1] %}[TOOLS]{% endif %}"
        "{{ m.content }}\n{% endfor %}"
    )
    text, found, _ = locate(template, [user("yes"), user("no"), user("yes")])
    assert text == "[TOOLS]yes\nno\n[TOOLS]yes\n"
    assert [found[i].char for i in range(3)] == [10, 13, 24]


def test_text_the_template_asks_for_is_marked_in_the_middle() -> None:
    template = (
        "{% for m in messages %}{% if m.content.startswith('<r>') and m.content.endswith('</r>') %}"
        "result{% else %}question{% endif %}: {{ m.content }}\n{% endfor %}"
    )
    text, found, _ = locate(template, [user("<r>It is sunny.</r>"), user("Good.")])
    assert text.startswith("result: ")
    assert found[0].spot == "middle"
    assert found[1] == Found(len(text) - 1, "content")


def test_messages_that_cannot_be_marked_do_not_hide_the_others() -> None:
    template = (
        "{% for m in messages %}{{ m.role ~ m.content | length if m.role == 'tool' else m.content }}"
        "\n{% endfor %}"
    )
    messages = [user(f"question {i}") if i % 5 else tool("21") for i in range(30)]
    _, found, _ = locate(template, messages)
    assert set(found) == {i for i in range(30) if i % 5}
    assert {place.spot for place in found.values()} == {"content"}


def test_looking_for_unmarkable_messages_is_given_up_at_the_same_message() -> None:
    """However the conversation goes on, the same messages are found before that."""
    template = (
        "{% for m in messages %}{{ m.content | length if m.role == 'tool' else m.content }}"
        "\n{% endfor %}"
    )
    messages = [user(f"question {i}") if i % 2 else tool("21") for i in range(60)]
    _, found, _ = locate(template, messages)
    num_renderings = Counting.num_renderings
    _, found_shorter, _ = locate(template, messages[:40])
    assert (
        set(found_shorter) & set(range(12)) == set(found) & set(range(12)) == set(range(1, 12, 2))
    )
    assert num_renderings < 120


def test_changing_template_is_noticed_and_nothing_is_found() -> None:
    _, found, locator = locate("{{ strftime_now('%f') }}" + CHATML, [user("Hi")])
    assert found == {}
    assert not locator.is_reproducible


def test_mark_in_the_users_text_is_not_used() -> None:
    first = unused_mark("")
    assert unused_mark(f"my mark is {first}") != first
    text, found, _ = locate(CHATML, [user(f"{first}000000 and {first}"), user(first)])
    assert [found[i].char for i in (0, 1)] == [
        text.index("<|im_end|>"),
        text.rindex("<|im_end|>"),
    ]


@given(st.lists(st.text(alphabet="0123456789 a", max_size=20), min_size=1, max_size=5))
def test_digits_around_a_mark_do_not_move_it(contents: list[str]) -> None:
    text, found, _ = locate(
        "{% for m in messages %}{{ m.content }}|{% endfor %}", [user(c) for c in contents]
    )
    char = 0
    for i, content in enumerate(contents):
        if i in found:
            assert found[i].char == char + len(content.rstrip())
        char += len(content) + 1
    assert len(text) == char


@pytest.mark.parametrize("content", ["word", "word ", " word\n\n", "", "  "])
def test_white_space_behind_a_mark_is_known(content: str) -> None:
    message = read_messages([user(content)])[0]
    spot = next(spots(message))
    with_mark = marked(message, spot, "#")["content"]
    assert with_mark.partition("#")[2] == space_behind(message, spot)
    assert with_mark.replace("#", "") == content
