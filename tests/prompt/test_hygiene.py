"""Conversations that templates refuse, or write in part only: over all the templates of the shared
folder, each message is written where it stands, and a next turn begins with the same tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from keepwarm.errors import BadInput, RenderError
from keepwarm.prompt.hygiene import RULE_NAMES, Clean, clean
from keepwarm.prompt.messages import read_messages
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
from tests.prompt.test_render_laws import check_boundaries
from tests.prompt.test_shared_templates import NAMES, NEEDS, tools_for
from tests.prompt.tokenizers_for_tests import make_tokenizer, own, shared

Messages = list[dict[str, Any]]

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT = {"type": "text", "text": "Kestrel"}


def developer(content: Any) -> dict[str, Any]:
    return {"role": "developer", "content": content}


# Words that occur once: the test finds the messages by them without asking the code under test.
CASES: dict[str, Messages] = {
    "system": [system("Whimbrel"), user("Kestrel")],
    "developer": [developer("Whimbrel"), user("Kestrel")],
    "two system": [system("Whimbrel"), system("Plover"), user("Kestrel")],
    "system and developer": [system("Whimbrel"), developer("Plover"), user("Kestrel")],
    "later": [user("Kestrel"), assistant("Plover"), system("Whimbrel"), user("Godwit")],
    "later developer": [
        system("Avocet"),
        user("Kestrel"),
        assistant("Plover"),
        developer("Whimbrel"),
        user("Godwit"),
    ],
    "behind a question": [system("Avocet"), user("Kestrel"), system("Whimbrel")],
    "between": [user("Kestrel"), system("Whimbrel"), assistant("Plover"), user("Godwit")],
    "several later": [
        user("Kestrel"),
        system("Whimbrel"),
        developer("Avocet"),
        assistant("Plover"),
        user("Godwit"),
        system("Curlew"),
    ],
    "behind a reply": [user("Kestrel"), assistant("Plover"), system("Whimbrel")],
}

SANDBOX = "appends to a list, which the sandbox forbids"
# Templates that cannot write a result of a tool, whatever stands behind it → why.
NO_RESULTS = {
    "Kimi-K2-Instruct": SANDBOX,
    "Kimi-K2-Thinking": SANDBOX,
    "google-gemma-2-2b-it": "knows no tool role",
    "llama-cpp-rwkv-world": "knows no tools",
    "microsoft-Phi-3.5-mini-instruct": "knows no tools",
}
# Writes its first system message in front of the last question, wherever that stands.
MOVES_FIRST = ("mistralai-Mistral-Nemo-Instruct-2407",)


def cleaned(name: str, messages: Messages, tools: Any = None) -> Clean:
    return clean(shared(name), messages, tools=tools, template_kwargs=NEEDS.get(name, {}))


def text_of(name: str, messages: Messages, tools: Any = None) -> str:
    prompt = render_chat(shared(name), messages, tools=tools, template_kwargs=NEEDS.get(name, {}))
    check_boundaries(shared(name), prompt)
    return str(shared(name).decode(prompt.tokens))


def places(text: str, messages: Messages) -> list[int]:
    return [text.find(message["content"]) for message in messages if message["content"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_written_where_it_stands(name: str) -> None:
    tools = tools_for(name, "")
    for case, messages in CASES.items():
        before = copy.deepcopy(messages)
        made = cleaned(name, messages, tools)
        assert messages == before
        found = places(text_of(name, made.messages, tools), messages)
        assert -1 not in found, case
        if name in MOVES_FIRST and messages[0]["role"] in ("system", "developer"):
            found = found[1:]
        assert found == sorted(found), case


@pytest.mark.parametrize("name", NAMES)
def test_template_that_takes_a_conversation_gets_it_as_it_is(name: str) -> None:
    tools = tools_for(name, "")
    for case, messages in CASES.items():
        made = cleaned(name, messages, tools)
        if made.acted:
            assert not writes_all(name, messages, tools), case
        else:
            assert made.messages == messages


def writes_all(name: str, messages: Messages, tools: Any) -> bool:
    """Whether the template writes this conversation as it is, and the same a turn later."""
    grown = [*messages, assistant("Dunlin"), user("Ruff")]
    if messages[-1]["role"] == "assistant":
        grown = [*messages, user("Ruff")]
    for asked in (messages, grown, [system("Knot"), *grown]):
        try:
            found = places(text_of(name, asked, tools), asked)
        except RenderError:
            return False
        if -1 in found or found != sorted(found):
            return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_prefixes_hold_from_turn_to_turn(name: str) -> None:
    """A session as agents send it: each prompt begins as the one before up to its last message."""
    turns: list[Messages] = [
        [system("Whimbrel"), developer("Avocet"), user("Kestrel"), system("Dotterel")],
        [assistant("Plover"), developer("Turnstone"), user([TEXT, IMAGE])],
        [assistant("Curlew"), user("Godwit"), system("Sanderling")],
        [assistant("Dunlin"), system("Lapwing")],
        [assistant("Ruff"), user("Knot")],
    ]
    tools = tools_for(name, "")
    kwargs = NEEDS.get(name, {})
    messages: Messages = []
    before = None
    for turn in turns:
        messages += turn
        made = cleaned(name, messages, tools)
        prompt = render_chat(shared(name), made.messages, tools=tools, template_kwargs=kwargs)
        check_boundaries(shared(name), prompt)
        if before is not None:
            kept = common_len(before, prompt)
            assert lasting(before, kept) == lasting(prompt, kept)
            if "later_system" in made.acted and name not in MOVES_FIRST:
                assert before.last_message_end is not None
                assert kept >= before.last_message_end
        before = prompt


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(NO_RESULTS)))
def test_system_message_behind_a_result_is_written_there(name: str) -> None:
    messages = [
        user("Kestrel"),
        assistant("", tool_calls=[call(city="Plover")]),
        tool("Godwit"),
        system("Whimbrel"),
    ]
    made = cleaned(name, messages, TOOLS)
    text = text_of(name, made.messages, TOOLS)
    assert 0 <= text.find("Godwit") < text.find("Whimbrel")
    later = [*messages, assistant("Curlew"), user("Dunlin")]
    assert cleaned(name, later, TOOLS).messages[: len(made.messages)] == made.messages


def broken_call(arguments: Any) -> dict[str, Any]:
    made = call()
    return {**made, "function": {**made["function"], "arguments": arguments}}


@pytest.mark.parametrize(
    "arguments", ['{"city": "Plover"', "Plover", '["Plover"]', '"Plover"', "5"]
)
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(NO_RESULTS)))
def test_past_call_that_is_no_object_is_written(name: str, arguments: str) -> None:
    messages = [
        user("Kestrel"),
        assistant(None, tool_calls=[broken_call(arguments)]),
        tool("that was no JSON"),
    ]
    usual = text_of(name, [messages[0], assistant(None, tool_calls=[call(city="Plover")])], TOOLS)
    made = cleaned(name, messages, TOOLS)
    text = text_of(name, made.messages, TOOLS)
    if "Plover" in usual:  # a template that writes arguments at all
        assert ("Plover" if "Plover" in arguments else arguments) in text.partition("Kestrel")[2]


@pytest.mark.skipif("Qwen3-Coder" not in NAMES, reason="the shared templates are not here")
def test_arguments_that_a_template_refuses_are_wrapped_once() -> None:
    tokenizer = shared("Qwen3-Coder")
    good, bad = call(city="Oslo"), broken_call("{oops")
    messages = [user("Hi"), assistant(None, tool_calls=[good, bad]), user("and?")]
    with pytest.raises(RenderError):
        render_chat(tokenizer, messages, tools=TOOLS)
    made = clean(tokenizer, messages, tools=TOOLS)
    assert made.acted == ("call_arguments",)
    calls = made.messages[1]["tool_calls"]
    assert calls[0] == good
    assert calls[1]["function"]["arguments"] == '{"invalid_json": "{oops"}'
    render_chat(tokenizer, made.messages, tools=TOOLS)


@pytest.mark.parametrize("arguments", [None, "", "null", "{}", {}])
def test_no_arguments_are_none_for_every_template(arguments: Any) -> None:
    messages = [user("Hi"), assistant(None, tool_calls=[broken_call(arguments)]), tool("Yes")]
    for name in sorted(set(NAMES) - set(NO_RESULTS)):
        made = cleaned(name, messages, TOOLS)
        text_of(name, made.messages, TOOLS)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("image_url", "image"),
        ("input_image", "image"),
        ("image", "image"),
        ("input_audio", "audio"),
        ("video_url", "video"),
        ("file", "file"),
        ("input_file", "file"),
        ("document", "file"),
    ],
)
def test_part_that_is_no_text_is_named_in_its_place(kind: str, word: str) -> None:
    part = {"type": kind, kind: {"url": "x"}}
    made = clean(own("plain"), [user([TEXT, part, TEXT])])
    assert made.acted == ("attachments",)
    said = read_messages(made.messages)[0]["content"]
    assert said == f"Kestrel[{word}: this model reads text only]Kestrel"


def test_image_in_a_result_is_named_too() -> None:
    messages = [
        user("Look"),
        assistant(None, tool_calls=[call()]),
        {**tool(""), "content": [IMAGE]},
    ]
    made = clean(own("plain"), messages, tools=TOOLS)
    assert made.acted == ("attachments",)
    assert "[image: this model reads text only]" in str(made.messages[-1]["content"])


def test_unknown_parts_stay_and_are_refused() -> None:
    messages = [user([{"type": "hologram"}])]
    assert clean(own("plain"), messages).messages == messages
    with pytest.raises(BadInput):
        read_messages(messages)


def test_line_about_billing_is_left_out_and_nothing_else() -> None:
    line = "x-anthropic-billing-header: cc_version=1.2.3;"
    plain = make_tokenizer("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    part = {"type": "text", "text": "Be brief."}
    parts = clean(plain, [system([{"type": "text", "text": line}, part]), user(line)])
    assert parts.messages == [system([part]), user(line)]
    assert parts.acted == ("billing_header",)
    text = clean(plain, [system(f"{line}\nBe brief."), user("Hi")])
    assert text.messages == [system("Be brief."), user("Hi")]
    kept = clean(plain, [system(line), user("Hi")], without=["billing_header"])
    assert kept.messages == [system(line), user("Hi")]


def test_tool_without_a_description_has_an_empty_one_where_it_must() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}, *TOOLS]
    strict = make_tokenizer(
        "{% for t in tools or [] %}{{ '// ' + t.function.description }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    made = clean(strict, [user("Hi")], tools=tools)
    assert made.acted == ("tool_descriptions",)
    assert made.tools is not None
    assert made.tools[0]["function"] == {"name": "f", "description": ""}
    assert made.tools[1:] == TOOLS
    render_chat(strict, made.messages, tools=made.tools)
    with pytest.raises(RenderError):
        render_chat(strict, made.messages, tools=tools)
    assert clean(strict, [user("Hi")], tools=tools, without=["tool_descriptions"]).acted == ()
    lenient = make_tokenizer("{{ tools }}{{ messages }}")
    assert clean(lenient, [user("Hi")], tools=tools).acted == ()


_OF_THEIR_OWN = ("billing_header", "tool_descriptions")


@pytest.mark.parametrize("rule", [name for name in RULE_NAMES if name not in _OF_THEIR_OWN])
def test_every_rule_acts_and_can_be_switched_off(rule: str) -> None:
    """A template that refuses all that a rule can spare it."""
    strict = make_tokenizer(
        "{% for m in messages %}{% if m.role == 'developer' or (m.role == 'system' and not"
        " loop.first) %}{{ raise_exception('no') }}{% endif %}<|im_start|>{{ m.role }}\n"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "{% if c.id is defined and c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
        "{% for k, v in c.function.arguments.items() %}{{ c.function.name }} {{ k }}={{ v }}"
        "{% endfor %}{% endfor %}<|im_end|>{% endfor %}"
    )
    examples: dict[str, Messages] = {
        "attachments": [user([IMAGE])],
        "call_arguments": [user("Hi"), assistant(None, tool_calls=[broken_call("{")])],
        "call_ids": [user("Hi"), assistant(None, tool_calls=[call("toolu_0123", city="Plover")])],
        "developer": [developer("Be brief."), user("Hi")],
        "leading_system": [system("Be"), system("brief."), user("Hi")],
        "later_system": [user("Hi"), system("Be brief."), assistant("Yes")],
    }
    made = clean(strict, examples[rule])
    assert made.acted == (rule,)
    render_chat(strict, made.messages)
    without = clean(strict, examples[rule], without=[rule])
    assert without.acted == ()
    with pytest.raises((RenderError, BadInput)):
        render_chat(strict, without.messages)


def test_ids_of_calls_go_by_their_position() -> None:
    mistral = make_tokenizer(
        "{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.function.name }}"
        "{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}"
        "{% if m.tool_call_id is defined and m.tool_call_id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}{{ m.tool_call_id }}{{ m.content }}{% endfor %}"
    )

    def conversation(*ids: str) -> Messages:
        first, second, short = ids
        return [
            user("Hi"),
            assistant(None, tool_calls=[call(first, city="A"), call(second, city="B")]),
            tool("a", first),
            tool("b", second),
            assistant(None, tool_calls=[call(short, city="C")]),
            tool("c", short),
        ]

    one, other = (
        clean(mistral, conversation(*ids))
        for ids in (("toolu_1", "toolu_2", "call00009"), ("x" * 30, "y" * 30, "call00009"))
    )
    assert one.messages == other.messages
    assert [m["tool_call_id"] for m in one.messages if m["role"] == "tool"] == [
        "000000001", "000000002", "call00009",
    ]  # fmt: skip
    render_chat(mistral, one.messages)
    kept = conversation("call00001", "call00002", "call00009")
    assert clean(mistral, kept).messages == kept


def test_joined_and_marked_texts_read_as_they_should() -> None:
    strict = make_tokenizer(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    messages = [
        system("One."),
        system("Two."),
        user("Hi"),
        system("Three."),
        user("and"),
        assistant("Yes"),
        system("Four."),
    ]
    made = clean(strict, messages)
    assert made.acted == ("leading_system", "later_system")
    assert made.messages == [
        system("One.\n\nTwo."),
        user("Hi\n\n<system-message>\nThree.\n</system-message>\n\nand"),
        assistant("Yes"),
        user("<system-message>\nFour.\n</system-message>"),
    ]


def test_ordinary_conversation_costs_no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer("{{ messages }}")
    monkeypatch.setattr(tokenizer, "apply_chat_template", None)
    messages = [system("Be brief."), user("Hi"), assistant("Yes"), user("and?")]
    assert clean(tokenizer, messages).acted == ()


def test_trials_are_remembered_with_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    messages = [user("Hi"), system("Be brief."), assistant("Yes"), user("and?")]
    clean(tokenizer, messages)
    monkeypatch.setattr(tokenizer, "apply_chat_template", None)
    assert clean(tokenizer, messages).acted == ()


@pytest.mark.parametrize("messages", [None, "Hi", [], [5]])
def test_what_is_no_conversation_is_bad_input(messages: Any) -> None:
    with pytest.raises(BadInput, match="messages"):
        clean(own("plain"), messages)
