"""What a request means by the markup of its model, and its reply told part by part."""

from __future__ import annotations

from keepwarm.cache.explain import Reason
from keepwarm.engine.chat import Teller, bound_to_markup
from keepwarm.engine.request import Grammar, Request
from keepwarm.events import Delta, Result, Timings
from keepwarm.prompt.kinds import Kind
from keepwarm.prompt.render import render_chat
from tests.server.serving import tokenizer

MESSAGES = [{"role": "user", "content": "Where?"}]


def request_for(thinks: bool, **settings: object) -> Request:
    kwargs = {"thinks": True} if thinks else {}
    prompt = render_chat(tokenizer(), MESSAGES, template_kwargs=kwargs)
    return Request(prompt, 9, **settings)  # type: ignore[arg-type]


def test_grammar_binds_behind_a_thought_that_the_prompt_opens() -> None:
    grammar = Grammar.json({})
    bound = [bound_to_markup(request_for(t, grammar=grammar), tokenizer()) for t in (True, False)]
    assert [r.grammar.after for r in bound if r.grammar is not None] == ["</think>", ""]
    named = request_for(thinks=True, grammar=Grammar.json({}, after="now"))
    assert bound_to_markup(named, tokenizer()) == named


def test_stop_texts_bind_in_the_content_of_a_chat() -> None:
    asked = request_for(thinks=True, stop="end")
    assert asked.markup is None
    bound = bound_to_markup(asked, tokenizer())
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
