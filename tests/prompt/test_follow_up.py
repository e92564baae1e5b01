"""The next turn of a conversation begins with what was foreseen, whatever is said in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.errors import BadInput, RenderError
from keepwarm.prompt.boundaries import BoundaryKind, Prompt
from keepwarm.prompt.follow_up import as_sent_back, continues, follow_up
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import (
    TOOLS,
    assistant,
    call,
    common_len,
    lasting,
    system,
    tool,
    user,
)
from tests.prompt.test_shared_templates import NEEDS, UNWRITTEN
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES, make_tokenizer, own, shared

NAMES = sorted(path.stem for path in SHARED_TEMPLATES.glob("*.jinja"))

Messages = list[dict[str, Any]]

TWO_CALLS = [call(city="Plover"), call("call00002", city="Dunlin")]
LOOP: Messages = [
    user("Kestrel"),
    assistant("", tool_calls=[call(city="Plover")], reasoning_content="Avocet"),
    tool("Godwit"),
]

# What was asked, the reply to it, and turns that may come next.
SCENARIOS: dict[str, tuple[Messages, dict[str, Any], list[Messages]]] = {
    "plain": (
        [user("Kestrel"), assistant("Plover"), user("Godwit")],
        assistant("Curlew"),
        [[user("Dunlin")], [user("\n\n  Ruff?\n")], [user("1, 2")]],
    ),
    "thought": (
        [user("Kestrel")],
        assistant("Plover", reasoning_content="Avocet"),
        [[user("Dunlin")], [user("<b>Ruff</b>")]],
    ),
    "call": (
        [user("Kestrel")],
        assistant("", tool_calls=[call(city="Plover")], reasoning_content="Avocet"),
        [[tool("Dunlin")], [tool('{"ruff": 1}')]],
    ),
    "two calls": (
        [user("Kestrel")],
        assistant("One moment.", tool_calls=TWO_CALLS),
        [[tool("Knot"), tool("Ruff", "call00002")]],
    ),
    "end of a loop": (
        LOOP,
        assistant("Curlew", reasoning_content="Turnstone"),
        [[user("Dunlin")]],
    ),
}
# (template, scenario) → why the calls are not in the next prompt.
LOST_CALLS = {
    (
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "two calls",
    ): "writes calls only where there is no content",
}
CALLING = ("call", "two calls", "end of a loop")


def given_to(name: str, scenario: str) -> dict[str, Any]:
    needs_tools = scenario in CALLING or "Hermes" in name
    return {"tools": TOOLS if needs_tools else None, "template_kwargs": NEEDS.get(name, {})}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", NAMES)
def test_every_next_turn_begins_with_what_was_foreseen(name: str, scenario: str) -> None:
    asked, reply, turns = SCENARIOS[scenario]
    given = given_to(name, scenario)
    foreseen = follow_up(shared(name), asked, reply, **given)
    for turn in turns:
        try:
            real = render_chat(shared(name), [*asked, reply, *turn], **given)
        except RenderError:
            assert foreseen is None
            continue
        assert foreseen is not None
        assert common_len(foreseen, real) == len(foreseen)
        assert lasting(foreseen, len(foreseen)) == lasting(real, len(foreseen))
        assert foreseen.boundaries[-1].position == len(foreseen)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", NAMES)
def test_reply_is_foreseen_to_its_end(name: str, scenario: str) -> None:
    asked, reply, _ = SCENARIOS[scenario]
    foreseen = follow_up(shared(name), asked, reply, **given_to(name, scenario))
    if foreseen is None or (reply.get("tool_calls") and (name, "call") in UNWRITTEN):
        pytest.skip("the template refuses the next turn or does not write calls")
    calls = reply.get("tool_calls")
    word = calls[0]["function"]["arguments"]["city"] if calls else reply["content"]
    if (name, scenario) in LOST_CALLS:
        pytest.skip(LOST_CALLS[name, scenario])
    assert word in shared(name).decode(foreseen.tokens)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", NAMES)
def test_foreseen_turn_continues_what_the_real_one_continues(name: str, scenario: str) -> None:
    asked, reply, turns = SCENARIOS[scenario]
    given = given_to(name, scenario)
    foreseen = follow_up(shared(name), asked, reply, **given)
    if foreseen is None:
        pytest.skip("the template refuses the next turn")
    read = render_chat(shared(name), asked, **given)
    real = render_chat(shared(name), [*asked, reply, *turns[0]], **given)
    assert continues(read, foreseen) == continues(read, real)
    if continues(read, real):
        assert continues(Prompt(real.tokens[: len(read) + 1]), foreseen)


@pytest.mark.parametrize("name", ["plain", "drops_thoughts", "keeps_thoughts"])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
def test_foreseen_turn_holds_for_any_question(name: str, text: str) -> None:
    asked, reply = [system(), user("Hi")], assistant("Hello.", reasoning_content="Hm.")
    foreseen = follow_up(own(name), asked, reply)
    real = render_chat(own(name), [*asked, reply, user(text)])
    assert foreseen is not None
    assert common_len(foreseen, real) == len(foreseen)


def test_thought_is_dropped_before_a_question_and_kept_before_a_result() -> None:
    tokenizer = own("drops_thoughts")
    asked = [user("Hi")]
    said = follow_up(tokenizer, asked, assistant("Hello.", reasoning_content="Avocet"))
    called = follow_up(
        tokenizer, asked, assistant("", tool_calls=[call()], reasoning_content="Avocet")
    )
    assert said is not None
    assert called is not None
    assert "Avocet" not in tokenizer.decode(said.tokens)
    assert "Avocet" in tokenizer.decode(called.tokens)


def test_cut_lies_where_the_reply_ends_and_boundaries_before_it_stay() -> None:
    tokenizer = own("plain")
    asked = [system(), user("Hi")]
    foreseen = follow_up(tokenizer, asked, assistant("Hello."))
    whole = render_chat(tokenizer, [*asked, assistant("Hello."), user("Bye")])
    ends = [b for b in whole.boundaries if b.kind is not BoundaryKind.GENERATION]
    assert foreseen is not None
    assert foreseen.boundaries == tuple(ends[:-1])
    assert len(foreseen) == ends[-2].position


def test_template_that_refuses_the_next_turn_foresees_nothing() -> None:
    refusing = (
        "{% if messages|length > 2 %}{{ raise_exception('no') }}{% endif %}<|x|>{{ messages }}"
    )
    assert follow_up(make_tokenizer(refusing), [user("Hi")], assistant("Hello.")) is None


def test_template_that_forgets_the_past_foresees_nothing() -> None:
    forgetting = "<|user|>{{ messages[-1]['content'] }}<|end|>"
    assert follow_up(make_tokenizer(forgetting), [user("Hi")], assistant("Hello.")) is None


def test_system_part_alone_is_no_next_turn() -> None:
    forgetting = (
        "<|system|>{{ messages[0]['content'] }}<|end|>"
        "{% if messages|length > 1 %}<|user|>{{ messages[-1]['content'] }}<|end|>{% endif %}"
    )
    tokenizer, asked = make_tokenizer(forgetting), [system(), user("Hi")]
    kinds = {b.kind for b in render_chat(tokenizer, asked).boundaries}
    assert BoundaryKind.SYSTEM in kinds
    assert follow_up(tokenizer, asked, assistant("Hello.")) is None


def test_reply_is_foreseen_where_a_message_has_no_header() -> None:
    bare = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    foreseen = follow_up(make_tokenizer(bare), [user("Hi")], assistant("Hello."))
    assert foreseen is not None
    assert make_tokenizer(bare).decode(foreseen.tokens) == "Hi<|end|>Hello.<|end|>"


def test_what_is_no_conversation_is_bad_input() -> None:
    with pytest.raises(BadInput):
        follow_up(own("plain"), [{"content": "Hi"}], assistant("Hello."))


THOUGHTFUL = assistant("", tool_calls=[call()], reasoning_content="Avocet")
THOUGHTLESS = assistant("", tool_calls=[call()])
QUOTED = assistant("<think>Avocet</think>", tool_calls=[call()])


@pytest.mark.parametrize(
    ("asked", "is_kept"),
    [
        ([user("Hi")], True),
        ([user("Hi"), assistant("Plover"), user("Hi")], True),
        ([user("Hi"), THOUGHTFUL, tool("Ruff")], True),
        ([user("Hi"), THOUGHTFUL, tool("Ruff"), THOUGHTLESS, tool("Ruff")], True),
        ([user("Hi"), QUOTED, tool("Ruff")], True),
        ([user("Hi"), THOUGHTLESS, tool("Ruff")], False),
        ([user("Hi"), THOUGHTFUL, user("Hi"), THOUGHTLESS, tool("Ruff")], False),
    ],
)
def test_thought_is_sent_back_unless_a_loop_shows_otherwise(asked: Messages, is_kept: bool) -> None:
    tokenizer: Any = SimpleNamespace(think_end="</think>")
    back = as_sent_back(tokenizer, asked, THOUGHTFUL)
    assert back == (THOUGHTFUL if is_kept else THOUGHTLESS)


@pytest.mark.parametrize(
    ("read", "upcoming", "expected"),
    [
        ([1, 2], [1, 2, 3], True),
        ([1, 2], [1, 2], True),
        ([1, 2, 3], [1, 2], False),
        ([1, 2], [1, 3, 2], False),
    ],
)
def test_prompt_continues_only_what_it_begins_with(
    read: list[int], upcoming: list[int], expected: bool
) -> None:
    assert continues(Prompt(read), Prompt(upcoming)) is expected
