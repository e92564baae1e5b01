"""Turns in which the model calls tools, uses what they give back, or sees that none fits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from models.sprout.chat import Chat, Message, Turn, estimated_len
from models.sprout.lexicon import listed
from models.sprout.toolbox import SPECS, Tool, draw, make_tools

Args = dict[str, Any]

_CALL_THOUGHTS = (
    "The user wants: {d} I call {n} with {a}.",
    "{d} That is the tool {n}. I call it with {a}.",
    "I need the tool {n} with {a}.",
    "This fits the tool {n}. I call it with {a}.",
)
_NO_TOOL = (
    "Sorry, I have no tool for that.", "None of my tools can do that.", "I can't do that: I have no tool for it.",
    "I have no tool that fits.", "That is not possible, I have no tool for it.",
)  # fmt: skip


@dataclass
class Loop:
    """A request with its calls and results: the messages up to and including the last reply."""

    messages: list[Message]
    calls: tuple[tuple[str, Args], ...] = ()
    values: tuple[str, ...] = ()  # of the results, that the answer must hold
    thought: str = ""
    answer: str = ""
    any_of: tuple[str, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    fact_text: str = ""


def add_tools(chat: Chat, num_tools: int) -> list[Tool]:
    tools = make_tools(chat.rng, chat.lexicon, num_tools)
    chat.toolbox = tools
    chat.tools = [tool.declared() for tool in tools]
    for tool in tools:
        chat.spent += 22 + estimated_len(tool.spec.description) + 4 * len(tool.spec.params)
    return tools


def _arguments(chat: Chat, tool: Tool) -> Args:
    return {name: draw(chat.rng, chat.lexicon, kind) for name, kind in tool.spec.params}


def _told(arguments: Args) -> str:
    return " and ".join(f"{name} {value}" for name, value in arguments.items())


def _thought(chat: Chat, tool: Tool, arguments: Args) -> str:
    said = chat.rng.choice(_CALL_THOUGHTS)
    return said.format(d=tool.spec.description, n=tool.name, a=_told(arguments))


def _call(chat: Chat, calls: list[tuple[str, Args]], thought: str) -> Message:
    made = []
    for name, arguments in calls:
        call_id = f"call{chat.rng.randint(10000, 99999)}"
        function = {"name": name, "arguments": arguments}
        made.append({"id": call_id, "type": "function", "function": function})
    return {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": made}


def _result(chat: Chat, tool: Tool, arguments: Args) -> tuple[Args, str]:
    """What the tool gives back, as data and as text."""
    data = {key: draw(chat.rng, chat.lexicon, kind) for key, kind in tool.spec.results}
    roll = chat.rng.random()
    if roll < 0.65:
        shown = _wrapped(chat, data, arguments) if chat.lexicon.is_training else data
        return data, json.dumps(shown, ensure_ascii=False)
    return data, ", ".join(f"{key}: {value}" for key, value in data.items())


def _wrapped(chat: Chat, data: Args, arguments: Args) -> Args:
    """What servers put around the data that was asked for."""
    roll = chat.rng.random()
    if roll < 0.45:
        return data
    if roll < 0.65:
        return {**arguments, **data}
    if roll < 0.75:
        return {"ok": True, **data}
    if roll < 0.85:
        return {"status": "ok", "data": data}
    return {"result": data}


def _answer(
    chat: Chat, tool: Tool, arguments: Args, data: dict[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """An answer, and the values of the result that stand in it."""
    answer = chat.rng.choice(tool.spec.answers).format(**{**arguments, **data})
    return answer[0].upper() + answer[1:], tuple(str(value) for value in data.values())


def _tool_message(message: Message, index: int, content: str) -> Message:
    call = message["tool_calls"][index]
    return {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
        "content": content,
    }


def _asked(chat: Chat, tool: Tool, arguments: Args) -> str:
    return chat.lexicon.wording(chat.rng, tool.spec.asks).format(**arguments)


def call_loop(chat: Chat) -> Loop:
    """One request, one call."""
    tool = chat.rng.choice(chat.toolbox)
    arguments = _arguments(chat, tool)
    user = {"role": "user", "content": chat.user_text(_asked(chat, tool, arguments))}
    reply = _call(chat, [(tool.name, arguments)], _thought(chat, tool, arguments))
    return Loop([user, reply], ((tool.name, arguments),))


def parallel_loop(chat: Chat) -> Loop:
    """Two requests in one message, two calls in one reply."""
    first = chat.rng.choice(chat.toolbox)
    second = chat.rng.choice(chat.toolbox)
    calls = [(tool.name, _arguments(chat, tool)) for tool in (first, second)]
    asks = [_asked(chat, tool, arguments) for tool, (_, arguments) in zip((first, second), calls)]
    asks[0] += "" if asks[0].endswith((".", "?")) else "."
    joined = chat.rng.choice(("{} And: {}", "{} Also: {}", "{} Then: {}")).format(*asks)
    told = " I also call ".join(f"{name} with {_told(arguments)}." for name, arguments in calls)
    user = {"role": "user", "content": chat.user_text(joined)}
    return Loop([user, _call(chat, calls, f"I call {told}")], tuple(calls))


def result_loop(chat: Chat, num_calls: int) -> Loop:
    """Calls one after the other or at once; the last message answers from the results."""
    if num_calls == 1:
        return _single(chat)
    loop = parallel_loop(chat)
    reply = loop.messages[-1]
    by_name = {tool.name: tool for tool in chat.toolbox}
    answers, values, told = [], [], []
    for index, (name, arguments) in enumerate(loop.calls):
        data, text = _result(chat, by_name[name], arguments)
        loop.messages.append(_tool_message(reply, index, text))
        answer, found = _answer(chat, by_name[name], arguments, data)
        answers.append(answer)
        values += found
        told.append(text)
    thought = f"The tools say: {' and '.join(told)}."
    return _finished(loop, thought, " ".join(answers), tuple(values))


def _single(chat: Chat) -> Loop:
    loop = call_loop(chat)
    name, arguments = loop.calls[0]
    tool = next(tool for tool in chat.toolbox if tool.name == name)
    data, text = _result(chat, tool, arguments)
    answer, values = _answer(chat, tool, arguments, data)
    if chat.lexicon.is_training and chat.rng.random() < 0.3:
        text, answer, values = _other_result(chat)
    loop.messages.append(_tool_message(loop.messages[-1], 0, text))
    source = chat.rng.choice(("The tool says", "The result is", "The tool gave back"))
    return _finished(loop, f"{source}: {text}.", answer, values)


_KEYS = (
    "temperature", "condition", "humidity", "total", "count", "balance", "distance", "colour", "size", "title", "level", "speed", "score",
    "amount", "name", "place", "id", "code", "day", "weather", "price", "owner", "city", "time", "unit", "phone", "state",
)  # fmt: skip
_FAULTS = ("not found", "no answer", "timeout", "access denied", "unknown name", "out of order")


def _other_result(chat: Chat) -> tuple[str, str, tuple[str, ...]]:
    """A result under keys that the tool never spoke of, or a fault: text, answer and values."""
    rng = chat.rng
    if rng.random() < 0.15:
        fault = rng.choice(_FAULTS)
        answer = rng.choice((f"The tool says: {fault}.", f"Sorry, the tool failed: {fault}."))
        return json.dumps({"error": fault}), answer, (fault,)
    kinds = ("word", "small", "number", "place", "person", "colour", "code", "day", "item")
    data = {
        key: draw(rng, chat.lexicon, rng.choice(kinds))
        for key in rng.sample(_KEYS, rng.randint(1, 3))
    }
    indent = 2 if rng.random() < 0.15 else None
    said = listed([f"the {key} is {value}" for key, value in data.items()])
    answer = rng.choice((f"The tool says that {said}.", f"{said[0].upper()}{said[1:]}."))
    return json.dumps(data, indent=indent), answer, tuple(str(value) for value in data.values())


def _finished(loop: Loop, thought: str, answer: str, values: tuple[str, ...]) -> Loop:
    loop.thought, loop.answer, loop.values, loop.calls = thought, answer, values, ()
    return loop


def second_call_loop(chat: Chat) -> Loop:
    """Two requests, the second call made behind the first result."""
    loop = parallel_loop(chat)
    (one, one_args), (other, other_args) = loop.calls
    by_name = {tool.name: tool for tool in chat.toolbox}
    first = _call(chat, [(one, one_args)], _thought(chat, by_name[one], one_args))
    _, text = _result(chat, by_name[one], one_args)
    second = _call(chat, [(other, other_args)], f"Now I call {other} with {_told(other_args)}.")
    user = loop.messages[0]
    return Loop([user, first, _tool_message(first, 0, text), second], ((other, other_args),))


def no_tool_turn(chat: Chat) -> Turn:
    """A request that only a tool could fulfil, and none of those here can."""
    rng = chat.rng
    here = {tool.spec.description for tool in chat.toolbox}
    spec = rng.choice([spec for spec in SPECS if spec.description not in here])
    arguments = {name: draw(rng, chat.lexicon, kind) for name, kind in spec.params}
    asked = chat.lexicon.wording(rng, spec.asks).format(**arguments)
    thought = (
        rng.choice(("No tool here fits. ", "I look at my tools. None of them fits. ")) + "I say so."
    )
    return Turn(
        asked, thought, rng.choice(_NO_TOOL), "tool", checks=(("no_tool", ""),), is_upper_safe=True
    )
