"""Learns from small conversations what a template writes behind a message: its closing markup,
and the generation prompt up to its thinking. Asks the template, keeps nothing; any thread.

    ...The answer.<|im_end|>\\n<|im_start|>assistant\\n<think>\\n
                  └ closing  ┘└ generation prompt head ┘└ tail ┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keepwarm.prompt.markup import (
    ALPHA,
    QUEBEC,
    before_made_up,
    closers,
    common_prefix,
    settled,
    thinking_starts,
)
from keepwarm.prompt.messages import NULL, CallForm, Message, in_form, num_leading_system
from keepwarm.prompt.sentinel import marked, unused_mark
from keepwarm.prompt.template import Template, Tokenizer

# The ways a conversation goes on with another message; a turn is an answer and a question.
_NEXT = ("user", "assistant", "turn", "tool")


@dataclass(frozen=True, slots=True)
class Ending:
    """What follows a message's mark, by `messages` up to that message alone."""

    # Each a place where the message has ended, whatever follows; the last holds all its markup.
    closings: tuple[str, ...]
    prompt: str  # the generation prompt behind the last closing
    prompt_head_len: int  # characters of it before its thinking tail
    user_header: str  # what a user message behind the last closing begins with


@dataclass(frozen=True, slots=True)
class Case:
    """A message in a conversation, and where in it the mark is."""

    context: tuple[Message, ...]
    message: Message
    spot: str

    def text(self) -> str:
        return repr((self.context, self.message, self.spot))


def usual_case(message: Message, spot: str, form: CallForm) -> Case | None:
    """A message like `message` with made-up text: what most templates write behind a message
    depends on its role only. None where too much of the message follows the mark."""
    role = message["role"]
    user = {"role": "user", "content": ALPHA}
    if "tool_calls" in message:
        if spot not in ("arguments", "name"):
            return None
        return Case((user,), _calling(form, "000000001"), spot)
    if spot != "content":
        return None
    made_up = {"role": role, "content": QUEBEC}
    if role == "user":
        return Case((), made_up, spot)
    if role == "tool":
        made_up |= {"name": "lookup", "tool_call_id": "000000001"}
        return Case((user, _calling(form, "000000001")), made_up, spot)
    return Case((user,), made_up, spot)


def actual_case(messages: Sequence[Message], i: int, spot: str, form: CallForm) -> Case:
    """`messages[i]` itself behind as little of its conversation as it needs."""
    message = messages[i]
    num_leading = num_leading_system(messages)
    if i < num_leading:
        return Case(tuple(messages[:i]), message, spot)
    context = list(messages[:num_leading])
    if message["role"] != "user":
        context.append({"role": "user", "content": ALPHA})
    if message["role"] == "tool":
        calling = i - 1
        while calling >= num_leading and messages[calling]["role"] == "tool":
            calling -= 1
        if calling >= num_leading and "tool_calls" in messages[calling]:
            context += messages[calling:i]
        else:
            context.append(_calling(form, message.get("tool_call_id", "000000001")))
    return Case(tuple(context), message, spot)


def find_ending(template: Template, case: Case, user_header: str = "") -> Ending | None:
    """What `template` writes behind the mark of `case`; None where it refuses or does not write
    the mark. `user_header` is what a user message begins with, where that is known."""
    tails = _tails(template, case)
    closing = _full_closing(template.tokenizer, tails, user_header)
    if closing is None:
        return None
    # What conversations go on with here; one may end with an assistant's message, few do.
    ways = _NEXT if case.message["role"] == "assistant" else (*_NEXT, "prompt")
    real = [tails[way] for way in ways if way in tails]
    # A tool result may be closed only when no other one follows, and a token may hold the end of
    # the closing and what comes next. Where all ways agree there is an end whatever follows.
    agreed = settled(template.tokenizer, common_prefix([closing, *real]), real)
    closings = dict.fromkeys((agreed, closing))
    if case.spot != "content":
        closings.pop("", None)  # it would cut the message
    prompt = _behind(closing, tails.get("prompt")) or ""
    history = _behind(closing, tails.get("turn", tails.get("assistant")))
    return Ending(
        closings=tuple(closings),
        prompt=prompt,
        prompt_head_len=_head_len(prompt, history),
        user_header=before_made_up(_behind(closing, tails.get("user")) or ""),
    )


def find_user_header(template: Template) -> str:
    """What a user message begins with behind an assistant's message; nothing where that cannot be
    seen. Without tools first, as some templates write them before a user message."""
    user, answer = {"role": "user", "content": ALPHA}, {"role": "assistant", "content": QUEBEC}
    for tools in (None, template.tools):
        ending = find_ending(replace(template, tools=tools), Case((user,), answer, "content"))
        if ending is not None:
            return ending.user_header
    return ""


def find_call_form(template: Template) -> CallForm:
    """The first form of a tool call in which the template writes both name and arguments, and a
    thought beside them if it writes thoughts there."""
    return _with_thought(template, _written_form(template))


def _with_thought(template: Template, form: CallForm) -> CallForm:
    def text(form: CallForm, **said: str) -> str:
        asked = {"role": "user", "content": "x"}
        call = in_form([_call("000000001") | {"content": None, **said}], form)[0]
        return template.try_text([asked, call], add_generation_prompt=False) or ""

    names = (form.thought, "thinking")
    ways = [replace(form, thought=name) for name in names]
    written = [way for way in ways if ALPHA in text(way, reasoning_content=ALPHA)]
    if not written:
        return form
    return replace(
        written[0], is_exclusive=not text(written[0], reasoning_content=ALPHA, content="x")
    )


def _written_form(template: Template) -> CallForm:
    usual = CallForm()
    for form in (
        form for absent in ("", None, NULL) for form in (CallForm(absent), CallForm(absent, str))
    ):
        messages = [{"role": "user", "content": ALPHA}, _calling(form, "000000001")]
        text = template.try_text(messages, add_generation_prompt=False)
        if text is None or repr(NULL) in text:  # written by one that writes whatever it gets
            continue
        if "lookup" in text and QUEBEC in text:
            return form
    return usual


def _calling(form: CallForm, *ids: str) -> Message:
    return in_form([_call(*ids)], form)[0]


def _call(*ids: str) -> Message:
    function = {"name": "lookup", "arguments": {"query": QUEBEC}}
    calls = [{"id": name, "type": "function", "function": function} for name in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _tails(template: Template, case: Case) -> dict[str, str]:
    """What follows the mark in each way the conversation may go on that the template accepts."""
    mark = unused_mark(case.text())
    base = [*case.context, marked(case.message, case.spot, mark)]
    user = {"role": "user", "content": ALPHA}
    assistant = {"role": "assistant", "content": ALPHA}
    role = case.message["role"]
    ways: dict[str, list[Message]] = {"end": base, "user": [*base, user]}
    if role != "assistant":
        ways["assistant"] = [*base, assistant]
        ways["turn"] = [*base, assistant, {"role": "user", "content": QUEBEC}]
    if role == "tool" or "tool_calls" in case.message:
        ways["tool"] = _with_another_result(base)
    rendered = {
        name: template.try_text(messages, add_generation_prompt=False)
        for name, messages in ways.items()
    }
    rendered["prompt"] = template.try_text(base, add_generation_prompt=True)
    return {
        name: text.partition(mark)[2].replace(mark, "")
        for name, text in rendered.items()
        if text is not None and mark in text
    }


def _with_another_result(base: Sequence[Message]) -> list[Message]:
    """`base` followed by one more tool result, with a call for it where there was none left."""
    calling = max(i for i, message in enumerate(base) if "tool_calls" in message)
    calls = base[calling]["tool_calls"]
    num_answered = len(base) - 1 - calling
    if num_answered >= len(calls):
        calls = [*calls, {**calls[-1], "id": "000000009"}]
    changed = [*base[:calling], {**base[calling], "tool_calls": calls}, *base[calling + 1 :]]
    call = calls[num_answered]
    result: Message = {"role": "tool", "content": ALPHA, "name": call["function"]["name"]}
    if "id" in call:
        result["tool_call_id"] = call["id"]
    return [*changed, result]


def _full_closing(tokenizer: Tokenizer, tails: Mapping[str, str], user_header: str) -> str | None:
    """All markup that closes the message, and nothing of what follows it."""
    end, prompt = tails.get("end"), tails.get("prompt")
    nexts = {way: before_made_up(tails[way]) for way in _NEXT if way in tails}
    if not nexts:
        return end if end is not None and prompt is not None and prompt.startswith(end) else None
    following = [text for text in nexts.values() if end is not None and text.startswith(end)]
    if end is not None and following:
        # Some templates leave the last message open and close it when another follows.
        rest = common_prefix(text[len(end) :] for text in following)
        more = closers(tokenizer).match(rest)
        is_opened = more is None or (prompt or "").startswith(end + more[0])
        return end if is_opened or more is None else end + more[0]
    # The last message of a chat is closed in a way of its own (<|return|>), or the generation
    # prompt is written unasked. A tool result may stand in one block with the next.
    tool = nexts.pop("tool", "")
    shared = common_prefix(nexts.values() or [tool])
    if user_header and nexts.get("user", "").endswith(user_header):
        closing = nexts["user"].removesuffix(user_header)
        if shared.startswith(closing):
            return closing
    found = closers(tokenizer).search(shared)
    return shared[: found.end()] if found else ""


def _head_len(prompt: str, history: str | None) -> int:
    """How much of the generation prompt comes before its thinking tail: up to the first tag of a
    thought, and no further than an assistant message of the past begins in the same way."""
    head_len = thinking_starts(prompt)
    shared = common_prefix([prompt, before_made_up(history)]) if history is not None else ""
    return min(head_len, len(shared)) if shared else head_len


def _behind(closing: str, tail: str | None) -> str | None:
    return tail[len(closing) :] if tail is not None and tail.startswith(closing) else None
