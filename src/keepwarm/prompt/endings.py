"""Learns from small conversations what a template writes behind a message: its closing markup,
and the generation prompt up to its thinking. Asks the template, keeps nothing; any thread.

    ...The answer.<|im_end|>\\n<|im_start|>assistant\\n<think>\\n
                  └ closing  ┘└ generation prompt head ┘└ tail ┘
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keepwarm.prompt.messages import CallForm, Message, in_form, num_leading_system
from keepwarm.prompt.sentinel import marked, unused_mark
from keepwarm.prompt.template import Template, Tokenizer, as_text, digest, encode

# Words for messages made up here that nobody else writes; they differ from the first letter on.
ALPHA = "Avocet4711"
QUEBEC = "Quokka4712"
_MADE_UP = re.compile(f"{ALPHA}|{QUEBEC}", re.IGNORECASE)

# The ways a conversation goes on with another message; a turn is an answer and a question.
_NEXT = ("user", "assistant", "turn", "tool")

# A system part of more messages than this is looked at as a whole and in its first ones.
_MAX_NESTED = 8

# How many letters around a place decide where tokens begin and end there.
_NEAR = 128

# Tags that open or close a thought in the generation prompts of today's models.
_THINKING = re.compile(
    r"<[^<>\s]*(?:think|thought|reason|inner_prefix)[^<>\s]*>|\[/?THINK\]|<\|channel>|<\|open\|>think",
    re.IGNORECASE,
)

# Names of added tokens that close something: <|im_end|>, [/INST], <|eot|>, <eos>.
_CLOSES = re.compile(r"^.?/|end|close|stop|eo[stm]\b|eot_id|eom_id", re.IGNORECASE)


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
        return as_text([self.context, self.message, self.spot])


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
    agreed = _settled(template.tokenizer, common_prefix([closing, *real]), real)
    closings = dict.fromkeys((agreed, closing))
    if case.spot != "content":
        closings.pop("", None)  # it would cut the message
    prompt = _behind(closing, tails.get("prompt")) or ""
    history = _behind(closing, tails.get("turn", tails.get("assistant")))
    return Ending(
        closings=tuple(closings),
        prompt=prompt,
        prompt_head_len=_head_len(prompt, history),
        user_header=_before_made_up(_behind(closing, tails.get("user")) or ""),
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
    """The first form of a tool call in which the template writes both name and arguments."""
    usual, as_text = CallForm(), CallForm(arguments=str)
    for form in (usual, as_text, replace(usual, absent_content=None), CallForm(None, str)):
        messages = [{"role": "user", "content": ALPHA}, _calling(form, "000000001")]
        text = template.try_text(messages, add_generation_prompt=False)
        if text is not None and "lookup" in text and QUEBEC in text:
            return form
    return usual


@dataclass(frozen=True, slots=True)
class SystemParts:
    """How prompts with the same tools and system messages begin. Lengths and digests stand for the
    texts, which are long and many."""

    sample: bytes | None  # of a rendering; another one today means that the rest is out of date
    ends: tuple[tuple[int, bytes], ...]  # (characters, their digest), shortest first

    def ends_in(self, text: str) -> list[int]:
        """Where the parts that `text` begins with end."""
        return [end for end, known in self.ends if digest(text[:end]) == known]


def sample_system(template: Template, leading: Sequence[Message]) -> bytes | None:
    """The digest of the rendering that `SystemParts` are made from."""
    text = _begun(template, leading, ALPHA)
    return digest(text) if text is not None else None


def find_system_parts(
    template: Template, leading: Sequence[Message], user_header: str
) -> SystemParts:
    """Where the part that tools, the system messages `leading` and the template's own preamble
    make ends, and where it would have ended with fewer system messages: tools may come first."""
    sample = sample_system(template, leading)
    nested = [leading[:n] for n in range(min(len(leading), _MAX_NESTED))]
    texts = [t for part in (*nested, leading) for t in _part_ends(template, part, user_header)]
    if sample_system(template, leading) != sample:
        return SystemParts(sample, ())  # it writes the time
    return SystemParts(sample, tuple((len(t), digest(t)) for t in dict.fromkeys(texts)))


def _part_ends(template: Template, leading: Sequence[Message], user_header: str) -> Iterator[str]:
    """The beginning that prompts with these tools and system messages share. Two of them where
    tools stand before the last user message: that of every turn, and that of a first turn."""
    one, other = _begun(template, leading, ALPHA), _begun(template, leading, QUEBEC)
    if one is None or other is None:
        return
    part = common_prefix([one, other]).removesuffix(user_header)
    longer = _begun(template, leading, ALPHA, ALPHA, QUEBEC)
    if longer is not None and not longer.startswith(part):
        shared = _settled(template.tokenizer, common_prefix([part, longer]), [one, longer])
        # Only where the first user message begins; anywhere else the template rewrites its past.
        if user_header and longer.startswith(user_header, len(shared)):
            yield from _if_told(template.tokenizer, shared)
    yield from _if_told(template.tokenizer, _settled(template.tokenizer, part, [one, other]))


def _begun(template: Template, leading: Sequence[Message], *texts: str) -> str | None:
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    return template.try_text([*leading, *messages], add_generation_prompt=False)


def thinking_starts(text: str) -> int:
    """Where the first tag of a thought stands in `text`; its end where there is none."""
    found = _THINKING.search(text)
    return found.start() if found else len(text)


def common_prefix(texts: Iterable[str]) -> str:
    """The longest text that all of `texts` begin with."""
    texts = list(texts)
    low, high = min(texts), max(texts)
    # Halving compares whole slices, which is faster than letter by letter for long prompts.
    shared, limit = 0, min(len(low), len(high))
    while shared < limit:
        middle = (shared + limit + 1) // 2
        if low[shared:middle] == high[shared:middle]:
            shared = middle
        else:
            limit = middle - 1
    return low[:shared]


def _before_made_up(text: str) -> str:
    """`text` up to the first made-up message's own words."""
    found = _MADE_UP.search(text)
    return text[: found.start()] if found else text


def _calling(form: CallForm, *ids: str) -> Message:
    function = {"name": "lookup", "arguments": {"query": QUEBEC}}
    calls = [{"id": name, "type": "function", "function": function} for name in ids]
    message: Message = {"role": "assistant", "content": None, "tool_calls": calls}
    return in_form([message], form)[0]


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
    nexts = {way: _before_made_up(tails[way]) for way in _NEXT if way in tails}
    if not nexts:
        return end if end is not None and prompt is not None and prompt.startswith(end) else None
    following = [text for text in nexts.values() if end is not None and text.startswith(end)]
    if end is not None and following:
        # Some templates leave the last message open and close it when another follows.
        rest = common_prefix(text[len(end) :] for text in following)
        more = _closers(tokenizer).match(rest)
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
    closers = _closers(tokenizer).search(shared)
    return shared[: closers.end()] if closers else ""


def _closers(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Added tokens in a row that close something, with the white space around them."""
    tokens = [re.escape(token) for token in _added_tokens(tokenizer) if _CLOSES.search(token)]
    return re.compile(f"\\s*(?:(?:{'|'.join(tokens)})\\s*)+") if tokens else re.compile("(?!)")


def _settled(tokenizer: Tokenizer, text: str, tails: Iterable[str]) -> str:
    """`text` shortened to where every tail that begins with it has the edge of a token."""
    # Tokens depend on what is near; the boundary is proven in the whole rendering later on.
    start, end = max(0, len(text) - _NEAR), len(text) + _NEAR
    # A letter in front stands for the message the tail belongs to.
    encoded = [encode(tokenizer, "x" + t[start:end]) for t in tails if t.startswith(text)]
    for length in range(len(text), start - 1, -1):
        if all(tokens.position(1 + length - start) is not None for tokens in encoded):
            return text[:length]
    return ""


def _head_len(prompt: str, history: str | None) -> int:
    """How much of the generation prompt comes before its thinking tail: up to the first tag of a
    thought, and no further than an assistant message of the past begins in the same way."""
    head_len = thinking_starts(prompt)
    shared = common_prefix([prompt, _before_made_up(history)]) if history is not None else ""
    return min(head_len, len(shared)) if shared else head_len


def _if_told(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    """`text`, if it is more than the tokens every conversation begins with."""
    told = text
    for token in _added_tokens(tokenizer):
        told = told.replace(token, "")
    if told.strip():
        yield text


def _added_tokens(tokenizer: Tokenizer) -> list[str]:
    """Longest first, so that a token is read before one it contains."""
    added: Any = getattr(tokenizer, "get_added_vocab", dict)()
    return sorted(added, key=len, reverse=True)


def _behind(closing: str, tail: str | None) -> str | None:
    return tail[len(closing) :] if tail is not None and tail.startswith(closing) else None
