"""What a request means by the markup of its model, and its reply told part by part."""

from __future__ import annotations

from functools import cache

import pytest

from keepwarm.cache.explain import Reason
from keepwarm.engine.chat import Teller, bound_to_markup
from keepwarm.engine.grammar import Guides
from keepwarm.engine.request import Grammar, Request
from keepwarm.errors import BadInput
from keepwarm.events import Delta, Result, Timings
from keepwarm.prompt.kinds import Kind
from keepwarm.prompt.render import render_chat
from tests.server.serving import WEATHER, tokenizer

MESSAGES = [{"role": "user", "content": "Where?"}]


def request_for(thinks: bool, **settings: object) -> Request:
    kwargs = {"thinks": True} if thinks else {}
    prompt = render_chat(tokenizer(), MESSAGES, template_kwargs=kwargs)
    return Request(prompt, 9, **settings)  # type: ignore[arg-type]


@cache
def guides() -> Guides:
    return Guides(tokenizer())


def with_tools(choice: str, **settings: object) -> Request:
    asked = request_for(thinks=False, tools=[WEATHER], tool_choice=choice, **settings)
    return bound_to_markup(asked, tokenizer(), guides)


def test_calls_are_bound_to_the_tools_as_they_were_chosen() -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    free, required, named = (with_tools(choice) for choice in ("auto", "required", "get_weather"))
    assert with_tools("none").grammar is None
    assert free.grammar is not None
    assert free.grammar.opens == "<tool_call>"
    for bound in (required, named):
        assert bound.grammar is not None
        assert accepts(bound.grammar, call)
        assert not accepts(bound.grammar, call.replace("Oslo", "Rome"))
        assert not accepts(bound.grammar, "Hello")
    answer = with_tools("auto", grammar=Grammar.json({"enum": [1]}))
    assert answer.grammar is not None
    assert accepts(answer.grammar, "1")
    assert accepts(answer.grammar, call)


def accepts(grammar: Grammar, text: str) -> bool:
    guide = guides().guide(grammar)
    for token in tokenizer().encode(text, add_special_tokens=False):
        mask = guide.mask(len(tokenizer()))
        if mask is not None and not mask[token]:
            return False
        guide.accept(token)
    return True


def test_tools_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(BadInput, match="one of get_weather, not 'fly'"):
        with_tools("fly")
    with pytest.raises(BadInput, match="only a JSON schema"):
        with_tools("auto", grammar=Grammar.regex("a"))


def test_grammar_binds_behind_a_thought_that_the_prompt_opens() -> None:
    grammar = Grammar.json({})
    bound = [
        bound_to_markup(request_for(t, grammar=grammar), tokenizer(), guides) for t in (True, False)
    ]
    assert [r.grammar.after for r in bound if r.grammar is not None] == ["</think>", ""]
    named = request_for(thinks=True, grammar=Grammar.json({}, after="now"))
    assert bound_to_markup(named, tokenizer(), guides) == named


def test_stop_texts_bind_in_the_content_of_a_chat() -> None:
    asked = request_for(thinks=True, stop="end")
    assert asked.markup is None
    bound = bound_to_markup(asked, tokenizer(), guides)
    assert bound.markup is not None
    assert bound.markup.state == "reasoning"


def test_reply_is_told_by_kinds_and_taken_apart() -> None:
    teller = Teller(tokenizer(), request_for(thinks=True))
    text = "Hm.\n</think>\n\nOslo"
    told = [delta for i, c in enumerate(text) for delta in teller.told(Delta(c, token=i))]
    told += teller.rest("stop")
    assert "".join(delta.text for delta in told) == text
    assert [delta.token for delta in told if delta.token is not None] == list(range(len(text)))
    assert "".join(d.text for d in told if d.kind is Kind.THOUGHT) == "Hm.\n"
    assert "".join(d.text for d in told if d.kind is Kind.CONTENT) == "\n\nOslo"
    result = Result(text, [], "stop", 3, 0, Reason.COLD, Timings())
    reply = teller.result(result).reply
    assert (reply.reasoning, reply.content) == ("Hm.", "Oslo")
