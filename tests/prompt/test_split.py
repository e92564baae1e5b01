"""A reply cut anywhere while it streams is the reply that `parse_reply` reads as a whole."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.chat_templates import muse_spark
from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from mlx_lm.tool_parsers import json_tools, mistral, qwen3_coder
from mlx_lm.tool_parsers import muse_spark as muse_spark_calls

from keepwarm.prompt.bare_calls import calls_barely
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.echo import Echo
from keepwarm.prompt.harmony import is_harmony
from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.reply import Reply
from keepwarm.prompt.scan import scanner_of
from keepwarm.prompt.split import Called, Piece, Said, Splitter, Thought
from tests.prompt.conversations import TOOLS, common_len, tool, user
from tests.prompt.test_parse import CALL, wrapped
from tests.prompt.test_shared_templates import NEEDS
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES, make_tokenizer, own, shared

NAMES = sorted(path.stem for path in SHARED_TEMPLATES.glob("*.jinja"))
JSON_CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def split(tokenizer: Any, texts: Iterable[str], **given: Any) -> list[Piece]:
    splitter = Splitter(tokenizer, **{"prompt": None, **given})
    return [*itertools.chain.from_iterable(map(splitter.push, texts)), *splitter.end()]


def facts(reply: Reply) -> Any:
    """All of a reply but the ids, which are drawn anew."""
    calls = [(call.name, call.arguments) for call in reply.tool_calls]
    return reply.content, reply.reasoning, calls


def without_breaks(reply: Reply) -> str:
    return repr(facts(reply)).replace("\\n", "")


@functools.cache
def with_facts(name: str) -> Any:
    """A shared template's tokenizer with the tool parser that mlx-lm finds for it."""
    parser = _infer_tool_parser(shared(name))
    if parser is None:
        return TokenizerWrapper(shared(name))
    module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    return TokenizerWrapper(
        shared(name),
        tool_parser=module.parse_tool_call,
        tool_call_start=module.tool_call_start,
        tool_call_end=module.tool_call_end,
    )


@functools.cache
def muse() -> Any:
    return TokenizerWrapper(
        make_tokenizer(None),
        tool_parser=muse_spark_calls.parse_tool_call,
        tool_call_start=muse_spark_calls.tool_call_start,
        tool_call_end=muse_spark_calls.tool_call_end,
        response_format=muse_spark.RESPONSE_FORMAT,
    )


def opened(tokenizer: Any, **given: Any) -> Prompt:
    return render_chat(tokenizer, [user("Hi")], tools=TOOLS, **given)


# Each a tokenizer and whether the reply continues a rendered prompt.
FORMATS: dict[str, tuple[Any, bool]] = {
    "thought of its own": (lambda: wrapped("thinks_on_its_own", json_tools), True),
    "thought of the prompt": (lambda: wrapped("drops_thoughts", qwen3_coder), True),
    "thoughts kept": (lambda: wrapped("keeps_thoughts", json_tools), True),
    "thoughts never written": (lambda: wrapped("never_writes_thoughts", json_tools), True),
    "calls to the end": (lambda: wrapped("never_writes_thoughts", mistral), True),
    "no facts": (lambda: own("plain"), True),
    "no template": (lambda: wrapped(None, json_tools), False),
    "a format of its own": (muse, False),
}
FRAGMENTS = [
    *("\n", "\n\n", "Hm.", "Hello <b>", "<", "<thi", "<tool_", "</", "a < b"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", 'f[ARGS]{"a": 1}'),
    *(CALL, JSON_CALL, "<tool_call>5</tool_call>", "<tool_call>{"),
    *("to=self<|message|>", "to=user<|message|>", "<|eom|>", "<|start|>", "<atem:function_calls>"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=10).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """A text in any number of pieces, empty ones too."""
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("name", FORMATS)
@given(texts=cut_texts())
def test_reply_cut_anywhere_is_the_reply_parsed_whole(name: str, texts: list[str]) -> None:
    make, is_prompted = FORMATS[name]
    tokenizer, text = make(), "".join(texts)
    prompt = opened(tokenizer) if is_prompted else None
    streamed = Reply.of(split(tokenizer, texts, prompt=prompt))
    assert facts(streamed) == facts(Reply.of(split(tokenizer, [text], prompt=prompt)))
    whole = parse_reply(tokenizer, text, prompt=prompt)
    if facts(streamed) != facts(whole):
        # Only the end showed that the template writes this reply in another form than most.
        echo = Echo(tokenizer, None, None)
        assert echo.writes_again(text, whole)
        assert not echo.writes_again(text, streamed)
        assert without_breaks(streamed) == without_breaks(whole)


def replies(tokenizer: Any, prompt: Prompt, calls: str) -> Iterator[str]:
    """Thoughts, words and calls with all line breaks around them that models write."""
    breaks = ("", "\n", "\n\n")
    is_open = scanner_of(tokenizer, prompt, None).starts_in_thought
    thoughts = {"x" + tokenizer.think_end if is_open else ""}
    if tokenizer.has_thinking:
        start = "" if is_open else tokenizer.think_start
        thoughts |= {
            f"{start}{lead}Hm.{tail}{tokenizer.think_end}"
            for lead, tail in itertools.product(breaks[:2], breaks)
        }
    for thought, lead, words, tail, called in itertools.product(
        sorted(thoughts), breaks, ("Hello.", ""), breaks[:2], {calls, ""}
    ):
        yield f"{thought}{lead}{words}{tail}{called}"


@pytest.mark.parametrize("name", NAMES)
def test_every_shared_template_streams_what_is_parsed(name: str) -> None:
    tokenizer = with_facts(name)
    given: dict[str, Any] = {"tools": TOOLS, "template_kwargs": NEEDS.get(name, {})}
    prompt = render_chat(tokenizer, [user("Hi")], **given)
    calls = Echo(tokenizer, TOOLS, NEEDS.get(name)).sample_call() or ""
    if not (tokenizer.has_thinking or tokenizer.has_tool_calling):
        pieces = split(tokenizer, "\nHi\n", prompt=prompt, **given)
        assert pieces == [*map(Said, "\nHi\n")] or is_harmony(tokenizer) or calls_barely(tokenizer)
        assert Reply.of(pieces) == Reply("\nHi\n")
        return
    for text in replies(tokenizer, prompt, calls):
        streamed = Reply.of(split(tokenizer, text, prompt=prompt, **given))
        whole = parse_reply(tokenizer, text, prompt=prompt, **given)
        assert facts(streamed) == facts(whole), text
        assert bool(whole.tool_calls) == bool(calls and text.endswith(calls))


@pytest.mark.parametrize("name", ["thought of its own", "no facts"])
def test_plain_content_is_passed_on_letter_by_letter(name: str) -> None:
    splitter = Splitter(FORMATS[name][0](), prompt=None)
    for letter in "Hello, 2 + 2 is four; > and ] are no tags.":
        assert splitter.push(letter) == [Said(letter)]
    assert splitter.end() == []


def test_thought_is_passed_on_letter_by_letter() -> None:
    tokenizer = wrapped("drops_thoughts")
    splitter = Splitter(tokenizer, prompt=opened(tokenizer))
    assert [splitter.push(letter) for letter in "Hm. So"] == [[Thought(x)] for x in "Hm. So"]


def test_beginning_of_a_tag_is_held_no_longer_than_it_may_be_one() -> None:
    splitter = Splitter(wrapped("thinks_on_its_own", json_tools), prompt=None)
    assert splitter.push("a <t") == [Said("a ")]
    assert splitter.push("oo") == []
    assert splitter.push("t") == [Said("<toot")]
    assert splitter.push("<tool_cal") == []
    assert splitter.end() == [Said("<tool_cal")]


def test_longer_tag_is_waited_for() -> None:
    transitions = {"normal": [("<a", "reasoning"), ("<ab>", None), ("b>c", "tool")]}
    tokenizer = TokenizerWrapper(make_tokenizer(None), response_format={"transitions": transitions})
    assert split(tokenizer, ["x<a", "b", ">c"]) == [Said("x")]
    assert split(tokenizer, ["x<a", "b", "c"]) == [Said("x"), Thought("bc")]
    assert split(tokenizer, ["x<a"]) == [Said("x"), Thought("")]


def test_line_break_is_held_only_where_a_call_may_follow() -> None:
    calling = Splitter(wrapped("never_writes_thoughts", json_tools), prompt=None)
    assert calling.push("Hi\n") == [Said("Hi")]
    assert calling.push("\n") == []
    assert calling.push("you") == [Said("\n\nyou")]
    silent = Splitter(wrapped("thinks_on_its_own"), prompt=None)
    assert silent.push("Hi\n") == [Said("Hi\n")]


def test_last_line_break_of_a_reply_without_calls_is_kept() -> None:
    tokenizer = wrapped("never_writes_thoughts", json_tools)
    assert split(tokenizer, ["Hi", "\n"]) == [Said("Hi"), Said("\n")]


def test_call_is_given_at_its_end_tag_and_its_text_never() -> None:
    splitter = Splitter(wrapped("never_writes_thoughts", json_tools), prompt=None)
    assert splitter.push("On it.\n") == [Said("On it.")]
    assert [piece for letter in JSON_CALL[:-1] for piece in splitter.push(letter)] == []
    (called,) = splitter.push(">")
    assert isinstance(called, Called)
    assert (called.index, called.call.name, called.call.arguments) == (0, "f", '{"a": 1}')
    (second,) = splitter.push("\n" + JSON_CALL)
    assert isinstance(second, Called)
    assert second.index == 1
    assert second.call.id != called.call.id
    assert splitter.end() == []


def test_call_without_its_end_tag_is_given_at_the_end() -> None:
    splitter = Splitter(wrapped("never_writes_thoughts", json_tools), prompt=None)
    assert splitter.push(JSON_CALL.removesuffix("</tool_call>")) == []
    (called,) = splitter.end()
    assert isinstance(called, Called)


def test_call_that_cannot_be_read_is_said_with_its_line_breaks() -> None:
    tokenizer = wrapped("never_writes_thoughts", json_tools)
    text = "On it.\n<tool_call>{</tool_call>\nSorry."
    assert split(tokenizer, [text]) == [Said(text)]
    assert Reply.of(split(tokenizer, text)) == Reply(text)


def test_thought_that_speaks_of_calls_ends() -> None:
    tokenizer = wrapped("drops_thoughts", json_tools)
    text = f"I could write <tool_call> or not.</think>Hello.{JSON_CALL}"
    for texts in (text, [text]):
        reply = Reply.of(split(tokenizer, texts, prompt=opened(tokenizer)))
        assert reply.reasoning == "I could write <tool_call> or not."
        assert reply.content == "Hello."
        assert [call.name for call in reply.tool_calls] == ["f"]


def test_thought_goes_on_behind_a_call_that_cannot_be_read() -> None:
    tokenizer = wrapped("drops_thoughts", json_tools)
    text = "Between <tool_call> and </tool_call> stands JSON.</think>Hello."
    reply = Reply.of(split(tokenizer, text, prompt=opened(tokenizer)))
    assert reply == Reply("Hello.", "Between <tool_call> and </tool_call> stands JSON.")
    endless = "So I write <tool_call> and then"
    assert Reply.of(split(tokenizer, endless, prompt=opened(tokenizer))) == Reply("", endless)


@pytest.mark.parametrize("end", ["</tool_call>", "</think>", ""])
def test_call_inside_a_thought_is_called(end: str) -> None:
    tokenizer = wrapped("drops_thoughts", json_tools)
    text = "With <tool_call> I call." + JSON_CALL.removesuffix("</tool_call>") + end
    reply = Reply.of(split(tokenizer, text, prompt=opened(tokenizer)))
    assert [call.name for call in reply.tool_calls] == ["f"]
    assert (reply.content, reply.reasoning) == ("", "With <tool_call> I call.")


def test_call_cut_off_by_the_limit_is_left_out() -> None:
    tokenizer = wrapped("never_writes_thoughts", json_tools)
    text = 'On it.\n<tool_call>\n{"name": "f", "argu'
    splitter = Splitter(tokenizer, prompt=None)
    assert Reply.of([*splitter.push(text), *splitter.end("length")]) == Reply("On it.\n")
    assert parse_reply(tokenizer, text, finish_reason="length") == Reply("On it.\n")
    whole = text + 'ments": {}}'  # only its end tag is missing
    assert parse_reply(tokenizer, whole, finish_reason="length").tool_calls


def test_thought_without_words_is_told_from_none() -> None:
    tokenizer = wrapped("never_writes_thoughts")
    assert split(tokenizer, "<think>\n</think>\nHi") == [Thought(""), Said("H"), Said("i")]
    assert split(wrapped("drops_thoughts"), [], prompt=opened(wrapped("drops_thoughts"))) == [
        Thought("")
    ]


def test_line_breaks_between_two_thoughts_are_kept() -> None:
    text = "<think>\nOne.\n</think>Hm<think>\nTwo.\n</think>"
    streamed = Reply.of(split(wrapped("never_writes_thoughts"), text))
    assert streamed == Reply("Hm", "One.\n\nTwo.")


@pytest.mark.parametrize("gap", ["\n\n\n", "\n\nOne moment.\n"])
def test_echo_of_a_streamed_call_gives_back_the_generated_tokens(gap: str) -> None:
    tokenizer = wrapped("drops_thoughts", qwen3_coder)
    text = f"I have to look.\n</think>{gap}{CALL}"
    asked = render_chat(tokenizer, [user("Is it warm?")], tools=TOOLS)
    reply = Reply.of(split(tokenizer, text, prompt=asked, tools=TOOLS))
    results = [tool("21", call.id) for call in reply.tool_calls]
    again = render_chat(tokenizer, [user("Is it warm?"), reply.as_message(), *results], tools=TOOLS)
    generated = tokenizer.encode(text, add_special_tokens=False)
    assert common_len(asked.extended(generated), again) == len(asked) + len(generated)


# The template writes line breaks of its own around the thought before "Hi" only, and before the
# answer unless it is "Hi" or "Ho".
UNSTEADY = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content is defined %}<think>
{%- set gap = '\\n' if 'Hi' in m.content else '' -%}
{%- set lead = '' if 'Hi' in m.content or 'Ho' in m.content else '\\n' -%}
{{ gap + m.reasoning_content + gap }}</think>{{ lead }}{% endif -%}
{{ m.content }}<|im_end|>{% endfor %}"""


def test_form_that_only_the_end_shows_is_seen_by_parse_reply_alone() -> None:
    tokenizer = TokenizerWrapper(make_tokenizer(UNSTEADY, extra_tokens=("<think>", "</think>")))
    usual = "<think>\nHm.\n</think>\nHello there."
    assert parse_reply(tokenizer, usual) == Reply("Hello there.", "\nHm.\n")
    assert Reply.of(split(tokenizer, usual)) == Reply("Hello there.", "\nHm.\n")
    odd = "<think>\nHm.\n</think>\nHi."
    assert parse_reply(tokenizer, odd) == Reply("\nHi.", "Hm.")
    assert Reply.of(split(tokenizer, odd)) == Reply("Hi.", "\nHm.\n")
    odd = "<think>Hm.</think>\nHo."
    assert parse_reply(tokenizer, odd) == Reply("\nHo.", "Hm.")
    assert Reply.of(split(tokenizer, odd)) == Reply("Ho.", "Hm.")


def test_form_of_a_template_is_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = make_tokenizer(UNSTEADY, extra_tokens=("<think>", "</think>"))
    tokenizer = TokenizerWrapper(inner)
    rendered: list[Any] = []
    render = inner.apply_chat_template

    def counted(messages: Any, **given: Any) -> Any:
        rendered.append(messages)
        return render(messages, **given)

    monkeypatch.setattr(inner, "apply_chat_template", counted)
    split(tokenizer, "<think>Hm.</think>Hello")
    assert rendered
    rendered.clear()
    split(tokenizer, "<think>Hm.</think>Hello")
    assert rendered == []
    split(tokenizer, "Hello", template_kwargs={"enable_thinking": False})
    assert rendered  # another way to write: asked anew
