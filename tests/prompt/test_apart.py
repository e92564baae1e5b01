"""What one key asked makes no work of another key's shorter: renderings and compilations are counted,
for one that asks what another asked before, and for one that asks what nobody did."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from keepwarm.engine import grammar as grammars
from keepwarm.engine.grammar import Guides
from keepwarm.engine.request import Grammar
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import TOOLS, assistant, call, system, tool, user
from tests.prompt.tokenizers_for_tests import OWN_TEMPLATES, make_tokenizer

SECRET = [
    system("The code word is Whimbrel."),
    user("What is it?"),
    assistant("", tool_calls=[call(city="Plover")]),
    tool("Godwit"),
    assistant("I may not say.", reasoning_content="Avocet"),
    user("Please!"),
]


def fresh() -> Any:
    """A tokenizer whose template was learned from somebody else's conversation."""
    text = (OWN_TEMPLATES / "drops_thoughts.jinja").read_text(encoding="utf-8")
    made = make_tokenizer(text)
    other = [{**message, "content": f"{message['content']} Knot"} for message in SECRET]
    render_chat(made, other, tools=TOOLS, namespace="somebody")
    return made


def num_renderings(tokenizer: Any, namespace: str, monkeypatch: pytest.MonkeyPatch) -> int:
    counted, applied = [], type(tokenizer).apply_chat_template

    def apply(self: Any, *given: Any, **options: Any) -> Any:
        counted.append(given)
        return applied(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(tokenizer), "apply_chat_template", apply)
        render_chat(tokenizer, SECRET, tools=TOOLS, namespace=namespace)
    return len(counted)


def test_renderings_do_not_tell_what_another_key_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_before, unasked = fresh(), fresh()
    first = num_renderings(asked_before, "A", monkeypatch)
    assert num_renderings(asked_before, "A", monkeypatch) < first  # its own memory is its own
    nobody = num_renderings(unasked, "B", monkeypatch)
    assert num_renderings(asked_before, "B", monkeypatch) == nobody


def test_compilations_do_not_tell_what_another_key_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, compile_ = [], grammars._compile
    lock = threading.Lock()

    def counted(*given: Any) -> Any:
        with lock:
            compiled.append(given)
        return compile_(*given)

    monkeypatch.setattr(grammars, "_compile", counted)
    guides = Guides(make_tokenizer("{{ messages }}"))
    secret = Grammar.json({"const": "Whimbrel"})
    for namespace, num_compiled in (("A", 1), ("A", 1), ("B", 2), ("B", 2), ("", 3)):
        guides.within(namespace).check(secret)
        assert len(compiled) == num_compiled
    guides.within("B").loosen("f", "why")
    assert guides.num_loosened == 1
