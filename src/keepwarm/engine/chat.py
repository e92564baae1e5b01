"""What a request means by the markup of its model, and its reply told part by part. No mlx; any
thread, a `Teller` one at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import fields, replace
from queue import SimpleQueue
from typing import Any

from keepwarm.engine.calls import Calls, Function, Guides
from keepwarm.engine.request import Grammar, GrammarKind, Request
from keepwarm.errors import BadInput
from keepwarm.events import ChatResult, Delta, Done, Event, Failed, Result
from keepwarm.prompt.kinds import Kind, Kinds
from keepwarm.prompt.parse import Reply, opens_thought, parse_reply
from keepwarm.prompt.scan import markup_of


def bound_to_markup(request: Request, tokenizer: Any, guides: Callable[[], Guides]) -> Request:
    """The request as it is meant: its calls can be parsed, its stop texts bind in the content, and
    its grammar behind the thought that the prompt has opened. A text that is continued has no
    markup. Compiles grammars: not for the engine thread. Raises BadInput."""
    if request.continues_text:
        return request
    if request.tools and request.tool_choice != "none":
        grammar = _call_grammar(request, Calls(guides(), tokenizer, _functions(request)))
        request = replace(request, grammar=grammar)
    if request.stop and request.markup is None:
        request = replace(request, markup=markup_of(tokenizer, request.prompt))
    grammar = request.grammar
    if grammar is not None and not grammar.after and opens_thought(tokenizer, request.prompt):
        request = replace(request, grammar=replace(grammar, after=tokenizer.think_end))
    return request


def _functions(request: Request) -> list[Function]:
    """Those that may be called."""
    functions: list[Function] = [tool["function"] for tool in request.tools]
    if request.tool_choice in ("auto", "required"):
        return functions
    chosen = [each for each in functions if each["name"] == request.tool_choice]
    if not chosen:
        names = ", ".join(each["name"] for each in functions)
        raise BadInput(
            f"tool_choice is auto, required, none or one of {names}, not {request.tool_choice!r}"
        )
    return chosen


def _call_grammar(request: Request, calls: Calls) -> Grammar | None:
    """For calls alone, beside the schema that was asked for, or for what begins as a call."""
    is_free, answer = request.tool_choice == "auto", request.grammar
    if is_free and answer is None:
        return calls.once_opened_if_possible()
    if calls.syntax is None:
        raise BadInput(
            "this model's tool format has no grammar here: tool_choice can be auto or none, and no"
            " grammar can be combined with tools"
        )
    if is_free and answer is not None:
        if not calls.can_answer:
            raise BadInput("no grammar can be combined with tools in this model's tool format")
        if answer.kind is not GrammarKind.JSON_SCHEMA:
            raise BadInput("only a JSON schema can be combined with tools that may be called")
        grammar = calls.or_answer(answer, is_single=False)
    else:
        grammar = calls.required(is_single=False)
    calls.guides.check(grammar)
    return grammar


class Teller:
    """One reply as it comes in: each piece with its kind, and the whole taken apart at the end."""

    def __init__(
        self, tokenizer: Any, request: Request, template_kwargs: dict[str, Any] | None = None
    ) -> None:
        """`template_kwargs` are those that the prompt was rendered with."""
        self._tokenizer = tokenizer
        self._request = request
        self._template_kwargs = template_kwargs
        self._kinds = (
            None
            if request.continues_text
            else Kinds(tokenizer, request.prompt, list(request.tools))
        )
        self._kind = Kind.CONTENT  # of what was told last

    def told(self, delta: Delta) -> Iterator[Delta]:
        """What is certain with this piece: the token comes at once, text that may be a tag once it
        is known. Mutates."""
        pieces = self._kinds.push(delta.text) if self._kinds is not None else []
        if self._kinds is None:
            yield delta
            return
        first, *rest = pieces or [(self._kind, "")]
        self._kind = (rest or [first])[-1][0]
        yield replace(delta, kind=first[0], text=first[1])
        for kind, text in rest:
            yield Delta(text, kind=kind)

    def rest(self, finish_reason: str) -> Iterator[Delta]:
        """What was held back, at the end. Mutates."""
        if self._kinds is not None:
            for kind, text in self._kinds.end(finish_reason):
                yield Delta(text, kind=kind)

    def result(self, result: Result) -> ChatResult:
        """The same with the reply: content, reasoning and calls."""
        known = {field.name: getattr(result, field.name) for field in fields(Result)}
        return ChatResult(**known, reply=self._reply(result))

    def events(self, told: SimpleQueue[Event]) -> Generator[Event, None, ChatResult]:
        """What the request is told, part by part, up to its end. Waits. Raises what it failed of."""
        while True:
            event = told.get()
            if isinstance(event, Failed) and event.error is not None:
                raise event.error
            if isinstance(event, Delta):
                yield from self.told(event)
            elif isinstance(event, Done):
                assert event.result is not None
                yield from self.rest(event.result.finish_reason)
                result = self.result(event.result)
                yield Done(result=result)
                return result
            else:
                yield event

    def last(self, told: SimpleQueue[Event]) -> ChatResult:
        """Of a request that was cancelled: the engine ends it within a chunk."""
        *_, last = self.events(told)
        assert isinstance(last, Done)
        assert isinstance(last.result, ChatResult)
        return last.result

    def _reply(self, result: Result) -> Reply:
        if self._kinds is None:
            return Reply(result.text)
        return parse_reply(
            self._tokenizer,
            result.text,
            prompt=self._request.prompt,
            tools=list(self._request.tools),
            template_kwargs=self._template_kwargs,
            # What is cut off may end within a call, whatever cut it off.
            finish_reason="length" if result.finish_reason == "cancelled" else result.finish_reason,
        )
