"""Where the tools end, and each block of a system message: other applications may share as much."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.bench import words
from keepwarm.bench.script import function
from keepwarm.prompt.boundaries import BoundaryKind, Prompt, shared_len
from keepwarm.prompt.render import render_chat
from tests.bench.near import Near
from tests.prompt.conversations import system, user
from tests.prompt.tokenizers_for_tests import make_tokenizer

TOOLS = [function(f"act{i}", words.text(200, f"tool {i}"), ["at"]) for i in range(4)]
SYSTEM_FIRST = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if loop.first and tools %}\n{{ tools | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def heads(prompt: Prompt) -> list[int]:
    return [b.position for b in prompt.boundaries if b.kind is BoundaryKind.HEAD]


def blocks(*texts: str) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text} for text in texts]}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return words.tokenizer()


def test_tools_end_where_prompts_with_another_system_message_part(tokenizer: Any) -> None:
    one, other, none = (
        render_chat(tokenizer, [*leading, user("w1")], tools=TOOLS)
        for leading in ([system("w1 w2 w3")], [system("w4 w5")], [])
    )
    [end] = heads(one)
    assert end > 800
    assert heads(other) == [end] == [shared_len(one.tokens, other.tokens)]
    assert shared_len(one.tokens, none.tokens) >= end - 1


def test_tools_behind_the_system_message_have_no_end_of_their_own() -> None:
    tokenizer = make_tokenizer(SYSTEM_FIRST)
    prompt = render_chat(tokenizer, [system("Be brief."), user("Hi")], tools=TOOLS)
    assert not heads(prompt)
    assert BoundaryKind.SYSTEM in [end.kind for end in prompt.ends]


def test_without_tools_and_blocks_there_are_none(tokenizer: Any) -> None:
    assert not heads(render_chat(tokenizer, [system(words.text(900, "s")), user("w1")]))


def test_a_block_ends_where_the_next_one_differs(tokenizer: Any) -> None:
    shared = [words.text(500, "a") + "\n\n", words.text(500, "b") + "\n\n"]
    one, other = (
        render_chat(tokenizer, [blocks(*shared, last), user("w1")], tools=TOOLS)
        for last in ("w1 w2", "w3")
    )
    assert len(heads(one)) == 3
    assert heads(one) == heads(other)
    assert heads(one)[-1] == shared_len(one.tokens, other.tokens)


def test_the_same_text_in_other_blocks_is_told_apart(tokenizer: Any) -> None:
    first, second = words.text(2000, "a") + "\n\n", words.text(2000, "b") + "\n\n"
    whole = render_chat(tokenizer, [system(f"{first}{second}w1"), user("w1")])
    parted = render_chat(tokenizer, [blocks(first, second, "w1"), user("w1")])
    assert (whole.tokens == parted.tokens).all()
    assert not heads(whole)
    assert len(heads(parted)) == 2


def test_short_blocks_are_taken_together(tokenizer: Any) -> None:
    texts = [words.text(100, f"{i}") + "\n\n" for i in range(12)]
    assert len(heads(render_chat(tokenizer, [blocks(*texts, "w1"), user("w1")]))) <= 4


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("shape", ["qwen3_5-small", "gpt_oss-small"])
def test_the_same_tools_are_found_under_another_system_message(shape: str, exact: bool) -> None:
    near = Near(shape, exact=exact)
    first = near.ask([system(words.text(300, "one")), user("w1")], TOOLS, max_tokens=2)
    asked = near.ask([system(words.text(300, "other")), user("w1")], TOOLS, max_tokens=2)
    assert not first.cached_len
    assert asked.most > 800
    assert asked.beyond == 0
