"""Random conversations, as users of several applications hold them at the same time. Plain data.

They begin, go on, call tools, part from where they were, have a message edited and are asked
again. Everything is drawn from the seed, so that each server is asked the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from keepwarm.bench import words
from keepwarm.bench.client import Message
from keepwarm.bench.script import Script, function

KINDS = ("new", "next turn", "tool step", "edit", "again")
_WEIGHTS = (0.2, 0.35, 0.15, 0.15, 0.15)

# Tokens of a text: from the least to the most, and how often.
_LENGTHS = ((4, 40), (40, 250), (250, 1200))
_LENGTH_WEIGHTS = (0.45, 0.35, 0.2)
_DOCUMENT_LEN = (300, 1500)
_TOOLS_LEN = 1200
_SYSTEM_LENS = (30, 250, 700)
_MAX_MESSAGES = 24


@dataclass(slots=True)
class Ask:
    """One request."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    script: Script  # what the model says
    with_thought: bool  # whether the client sends thoughts back
    answer: dict[str, Any] | None = None  # as the client keeps it


class Story:
    """`seed` decides everything. With `has_own_replies` a conversation goes on with what the server
    said, else with texts that it has never seen."""

    def __init__(self, seed: int, has_own_replies: bool) -> None:
        self.seed = seed
        self.has_own_replies = has_own_replies
        self._rng = random.Random(seed)
        self._tools = _tools(seed)
        self._asked: list[Ask] = []
        self._num_texts = 0

    def asks(self, num_requests: int) -> Iterator[Ask]:
        """One request after another; whoever plays them calls `answered` for each. Mutates."""
        for _ in range(num_requests):
            yield self._next_ask()

    def answered(self, ask: Ask, said: Message) -> None:
        """The server said that. Mutates."""
        ask.answer = dict(said) if self.has_own_replies else self._foreign(ask)
        self._asked.append(ask)

    def _next_ask(self) -> Ask:
        acts = (self._new, self._next_turn, self._tool_step, self._edit, self._again)
        kind, act = self._rng.choices(list(zip(KINDS, acts)), _WEIGHTS)[0]
        messages, tools, with_thought = act() or self._new()
        if act is not self._new and not self._asked:
            kind = "new"
        elif len(messages) <= 2 and act in (self._next_turn, self._tool_step):
            kind = "new"  # there was none to go on with
        is_call = bool(tools) and self._rng.random() < 0.4
        answer_len = self._rng.choice((12, 40, 120))
        script = Script(self._rng.choice((10, 60)), answer_len, is_call=is_call)
        return Ask(kind, messages, tools, script, with_thought)

    # What may be asked

    def _new(self) -> _Asked:
        tools = self._tools if self._rng.random() < 0.6 else []
        return [self._system(), self._user()], tools, self._rng.random() < 0.5

    def _system(self) -> dict[str, Any]:
        """That of an application; of one, in two blocks, of which the second is another for each
        conversation."""
        length = self._rng.choice(_SYSTEM_LENS)
        if self._rng.random() < 0.7:
            return {"role": "system", "content": words.text(length, f"{length} {self.seed}")}
        blocks = [f"{words.text(600, f'block {self.seed}')}\n\n", self._text("folder", 60)]
        return {"role": "system", "content": [{"type": "text", "text": text} for text in blocks]}

    def _next_turn(self) -> _Asked | None:
        found = self._one_of(lambda ask: not _calls(ask))
        if found is None or found.answer is None:
            return None
        return [*found.messages, found.answer, self._user()], found.tools, found.with_thought

    def _tool_step(self) -> _Asked | None:
        found = self._one_of(_calls)
        if found is None or found.answer is None:
            return None
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": self._text("result")}
            for call in found.answer["tool_calls"]
        ]
        return [*found.messages, found.answer, *results], found.tools, found.with_thought

    def _edit(self) -> _Asked | None:
        """One of the last questions is asked in other words, or to another end."""
        found = self._one_of(lambda ask: True)
        if found is None:
            return None
        places = [i for i, m in enumerate(found.messages) if m["role"] == "user"][-3:]
        place = self._rng.choice(places)
        text = found.messages[place]["content"]
        document, _, question = text.rpartition("\n\n")
        if document:
            text = f"{document}\n\n{self._text('question', 30)}"
        elif self._rng.random() < 0.4:
            kept = question.split(" ")
            text = " ".join([*kept[: len(kept) // 2], self._text("end", 30)])
        else:
            text = self._text("edited")
        edited = [*found.messages[:place], {"role": "user", "content": text}]
        return edited, found.tools, found.with_thought

    def _again(self) -> _Asked | None:
        found = self._one_of(lambda ask: True)
        return None if found is None else (found.messages, found.tools, found.with_thought)

    def _one_of(self, fits: Any) -> Ask | None:
        """Most go on from what was asked of late."""
        fitting = [a for a in self._asked if fits(a) and len(a.messages) < _MAX_MESSAGES]
        if not fitting:
            return None
        return self._rng.choice(fitting[-4:] if self._rng.random() < 0.7 else fitting)

    # Words

    def _user(self) -> dict[str, Any]:
        if self._rng.random() < 0.15:
            document = self._text("document", self._rng.randint(*_DOCUMENT_LEN))
            return {"role": "user", "content": f"{document}\n\n{self._text('question', 30)}"}
        return {"role": "user", "content": self._text("user")}

    def _foreign(self, ask: Ask) -> dict[str, Any]:
        """What another server might have said."""
        said: dict[str, Any] = {"role": "assistant", "content": ""}
        if ask.with_thought:
            said["reasoning_content"] = self._text("thought", 50)
        if ask.script.is_call:
            call = {"name": "look", "arguments": f'{{"at": "{self._text("call", 6)}"}}'}
            self._num_texts += 1
            calls = [{"id": f"call_{self._num_texts}", "type": "function", "function": call}]
            return {**said, "tool_calls": calls}
        return {**said, "content": self._text("reply")}

    def _text(self, what: str, length: int | None = None) -> str:
        """One that did not come before."""
        self._num_texts += 1
        if length is None:
            length = self._rng.randint(*self._rng.choices(_LENGTHS, _LENGTH_WEIGHTS)[0])
        return words.text(length, f"{what} {self.seed} {self._num_texts}")


_Asked = tuple[list[dict[str, Any]], list[dict[str, Any]], bool]


def _calls(ask: Ask) -> bool:
    return bool(ask.answer and ask.answer.get("tool_calls"))


def _tools(seed: int) -> list[dict[str, Any]]:
    """One that replies call, and others that describe themselves at length."""
    num_others = 6
    others = [
        function(f"act{i}", words.text(_TOOLS_LEN // num_others, f"tool {seed} {i}"), ["at"])
        for i in range(num_others)
    ]
    return [*others, function("look", "Looks at it.", ["at"])]
