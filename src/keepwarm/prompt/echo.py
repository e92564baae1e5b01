"""What a template makes of a reply that a client sends back, and the form of replies it usually
writes again as they were: only then is the next prompt's beginning the one in the cache.
No mlx; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keepwarm.prompt.endings import find_call_form
from keepwarm.prompt.markup import ALPHA, QUEBEC
from keepwarm.prompt.memory import memory_of
from keepwarm.prompt.messages import CallForm, Message, in_form, read_messages, read_tools
from keepwarm.prompt.reply import Piece, Reply
from keepwarm.prompt.tags import Scanner
from keepwarm.prompt.template import Template, Tokenizer
from keepwarm.prompt.trim import FORMS, Form, Trimmer

_USER: Message = {"role": "user", "content": "x"}


class Echo:
    """One template with the arguments of one request, asked about replies sent back to it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> None:
        # Some templates need a tool to render at all; more of them would only be written.
        short = (read_tools(tools) or [])[:1] or None
        self._template = Template(tokenizer, short, dict(template_kwargs or {}))
        self._memory = memory_of(tokenizer)
        self._key = (self._template.key(), short is not None)

    def writes_again(self, text: str, reply: Reply) -> bool:
        """Whether the template writes `text` where `reply` is sent back."""
        form = self._call_form() if reply.tool_calls else CallForm()
        echo = in_form(read_messages([_USER, reply.as_message()]), form)
        return text in (self._template.try_text(echo, add_generation_prompt=False) or "")

    def pick(self, text: str, ways: Sequence[Reply]) -> Reply:
        """The first of `ways` that makes the template write `text` again; the first of all where
        none does."""
        if len(set(ways)) == 1:
            return ways[0]
        written = (way for way in dict.fromkeys(ways) if self.writes_again(text, way))
        return next(written, ways[0])

    def usual_form(self, scanner: Scanner) -> Form:
        """The form in which most replies are written again; what `scanner` may find matters, what
        it has found does not. Learned once per template."""
        if not (scanner.can_think or scanner.can_call):
            return FORMS[0]  # all forms are alike
        if scanner.is_verbatim:
            return FORMS[-1]
        key = ("edges", self._key, scanner.starts_in_thought)
        return self._memory.recall(key, lambda: self._learn_form(scanner))

    def _learn_form(self, scanner: Scanner) -> Form:
        num_written = dict.fromkeys(FORMS, 0)
        for text in self._samples(scanner):
            fresh = scanner.anew()
            pieces = [*fresh.push(text), *fresh.end()]
            ways = {form: trimmed(form, fresh, pieces) for form in FORMS}
            is_written = {way: self.writes_again(text, way) for way in set(ways.values())}
            for form, way in ways.items():
                num_written[form] += is_written[way]
        return max(FORMS, key=lambda form: num_written[form])  # the first of several

    def _samples(self, scanner: Scanner) -> Iterator[str]:
        """Replies with line breaks around their parts as models write them."""
        thoughts = list(self._thoughts(scanner))
        for thought in thoughts:
            yield thought
            for lead in ("", "\n", "\n\n"):
                yield f"{thought}{lead}{ALPHA}"
        calls = self.sample_call()
        if calls is None:
            return
        for tail in ("", "\n", "\n\n"):
            yield f"{ALPHA}{tail}{calls}"
            for thought in thoughts:
                for lead in ("", "\n", "\n\n"):
                    yield f"{thought}{lead}{ALPHA}{tail}{calls}"

    def _thoughts(self, scanner: Scanner) -> Iterator[str]:
        facts: Any = self._template.tokenizer
        if not getattr(facts, "has_thinking", False):
            return
        start = "" if scanner.starts_in_thought else facts.think_start
        for thought in (QUEBEC, f"\n{QUEBEC}\n", f"{QUEBEC}\n", ""):
            yield f"{start}{thought}{facts.think_end}"

    def thought_lead(self) -> str:
        """What the template writes between a thought and the tag that closes it; where it writes no
        thoughts, the line break that most do. Learned once per template."""
        end_tag = getattr(self._template.tokenizer, "think_end", None)
        if not end_tag:
            return ""

        def learn() -> str:
            said: Message = {"role": "assistant", "content": ALPHA, "reasoning_content": QUEBEC}
            written = self._template.try_text([_USER, said], add_generation_prompt=False) or ""
            lead, tag, _ = written.partition(QUEBEC)[2].partition(end_tag)
            return lead if tag and not lead.strip() else "\n"

        return self._memory.recall(("thought lead", self._key), learn)

    def sample_call(self) -> str | None:
        """A call as the template writes it, from its first tag to its last; None where it writes
        none behind content."""
        facts: Any = self._template.tokenizer
        if not getattr(facts, "has_tool_calling", False):
            return None
        function = {"name": "lookup", "arguments": {"query": QUEBEC}}
        call = {"id": "000000001", "type": "function", "function": function}
        said: Message = {"role": "assistant", "content": ALPHA, "tool_calls": [call]}
        echo = in_form([_USER, said], self._call_form())
        text = self._template.try_text(echo, add_generation_prompt=False) or ""
        behind = text.partition(ALPHA)[2]
        _, start, call_text = behind.partition(facts.tool_call_start)
        end = facts.tool_call_end or getattr(facts, "eos_token", None)
        if not start or not end or end not in call_text:
            return None
        return f"{start}{call_text[: call_text.rindex(end)]}{facts.tool_call_end}"

    def _call_form(self) -> CallForm:
        key = ("form", self._key)
        return self._memory.recall(key, lambda: find_call_form(self._template))


def trimmed(form: Form, scanner: Scanner, pieces: Sequence[Piece]) -> Reply:
    """The whole reply that `scanner` cut into `pieces`, in `form`."""
    trimmer = Trimmer(form, scanner)
    return Reply.of([*trimmer.push(pieces), *trimmer.end()])
