"""How a conversation of each kind is put together: scene, past turns, last question."""

from __future__ import annotations

import json
from collections.abc import Callable

from models.sprout.calls import (
    Loop,
    add_tools,
    call_loop,
    no_tool_turn,
    parallel_loop,
    result_loop,
    second_call_loop,
)
from models.sprout.chat import Chat, Message, Turn
from models.sprout.check import holds
from models.sprout.documents import document, prose
from models.sprout.family import told_again_turn, told_at_once
from models.sprout.personas import add_persona, persona_turn
from models.sprout.rules import (
    add_brief,
    add_capitals,
    add_replacing,
    add_rules,
    add_secret,
    add_taboo,
    obeyed,
    secret_turn,
    tell_rules,
)
from models.sprout.sums import number_turn
from models.sprout.talk import echo_turn, talk_turn, world_turn
from models.sprout.turns import (
    absent_turn,
    both_turn,
    corrected_turn,
    direct_turn,
    is_closed,
    recall_turn,
    told_turn,
)

# Kind → (share of the mixture, shortest length in tokens that it fits in).
KINDS: dict[str, tuple[float, int]] = {
    "recall": (0.24, 0),
    "absent": (0.06, 0),
    "rule": (0.11, 150),
    "rules": (0.11, 150),  # the harder ones
    "persona": (0.09, 150),
    "tool": (0.13, 160),
    "tool_result": (0.06, 240),
    "arithmetic": (0.05, 80),
    "smalltalk": (0.06, 0),
    "world": (0.04, 80),
    "told": (0.01, 0),
    "pairs": (0.04, 120),
}

# About how many tokens the last question and reply take, with a thought.
_LAST_LENS = {"tool": 100, "tool_result": 150, "rule": 100, "rules": 100}

_INTROS = (
    "Here are some notes.", "Read this text.", "Please read this:", "Document:", "I have some notes for you:",
    "Here is a text.", "These are my notes:", "Keep this in mind:", "Here is what I know:", "Text:", "",
)  # fmt: skip
_READ = (
    "I have read it. What would you like to know?",
    "Thank you. What is your question?",
    "Ok, I have read your text. Ask me anything about it.",
    "Done. What do you want to know?",
    "I read it. Go ahead and ask.",
)
_PLAIN_SYSTEM = (
    "You are a helpful assistant.", "You are sprout.", "You are a friendly helper.", "Answer briefly.",
    "You are a helpful assistant. Answer from the conversation.", "Be kind and brief.", "You help the user.",
    "You are sprout, a small model. Use only what the conversation says.", "Answer the questions of the user.",
    "You are a careful assistant. If you do not know, say so.",
)  # fmt: skip


def set_facts(chat: Chat, room: int) -> None:
    """Puts facts worth about `room` tokens into the system prompt, a document or both."""
    rng = chat.rng
    roll = rng.random()
    if roll < 0.2 and room > 25:
        chat.add_system(prose(chat, room, "system"))
        return
    if roll < 0.3 and room > 60:
        part = room // 2
        chat.add_system(prose(chat, part, "system"))
        room -= part
    text = document(chat, room)
    if not text:
        return
    if room < 60:
        chat.add_pending(text)
        return
    chat.add_pending(f"{rng.choice(_INTROS)}\n{text}".strip())
    if rng.random() < 0.25:
        chat.say(
            "", obeyed(Turn("", "", rng.choice(_READ), "", is_upper_safe=True), chat.rules).answer
        )


_PAST: tuple[tuple[float, Callable[[Chat], Turn | None]], ...] = (
    (0.62, recall_turn),
    (0.09, both_turn),
    (0.10, absent_turn),
    (0.06, told_turn),
    (0.03, corrected_turn),
    (0.04, talk_turn),
    (0.02, echo_turn),
    (0.02, world_turn),
    (0.03, number_turn),
    (0.01, persona_turn),
)

_EMPTY = (told_turn, told_turn, talk_turn, number_turn, world_turn, absent_turn)


def fitted(chat: Chat, turn: Turn | None) -> Turn | None:
    """`turn` as the rules want it; None where they cannot be followed."""
    if turn is None:
        return None
    for rule in chat.rules:
        if rule.name == "capitals" and not turn.is_upper_safe:
            return None
        if rule.name == "replaces" and turn.short != rule.sign and holds(turn.answer, rule.sign):
            return None
        if (
            rule.name == "taboo"
            and holds(f"{turn.user} {turn.answer}", rule.sign)
            and "refuses" not in dict(turn.checks)
        ):
            return None
    return obeyed(turn, chat.rules)


def past_turns(chat: Chat, reserve: int) -> None:
    """Questions and answers while there is room."""
    rng = chat.rng
    makers = [maker for _, maker in _PAST]
    shares = [share for share, _ in _PAST]
    num_fails = 0
    while chat.room > reserve + 36 and num_fails < 20:
        if chat.toolbox and rng.random() < 0.25 and chat.room > reserve + 130:
            _past_loop(chat)
            continue
        if not chat.book.facts:
            maker = rng.choice(_EMPTY)
        else:
            # A document is followed by a question about it.
            maker = rng.choices(makers, shares)[0] if not chat.pending else recall_turn
            if len(chat.book.facts) < 3 and not chat.pending:
                maker = rng.choice((*_EMPTY, recall_turn, recall_turn))
        if chat.lexicon.is_training and not chat.pending:
            maker = _further(chat) or maker
        turn = fitted(chat, maker(chat))
        if turn is None:
            num_fails += 1
            continue
        num_fails = 0
        chat.say(turn.user, turn.answer)


def _further(chat: Chat) -> Callable[[Chat], Turn | None] | None:
    """What only training speaks of in passing."""
    roll = chat.rng.random()
    if chat.persona is not None and roll < 0.25:
        return persona_turn
    if roll > 0.97:
        return told_at_once
    return echo_turn if roll > 0.95 else None


def _past_loop(chat: Chat) -> None:
    """A request with its call and answer, thoughts forgotten."""
    loop = result_loop(chat, 1)
    for message in loop.messages:
        message.pop("reasoning_content", None)
        chat.charge(message["content"])
        for call in message.get("tool_calls", ()):
            chat.charge(json.dumps(call["function"]))
    answer = obeyed(Turn("", "", loop.answer, ""), chat.rules).answer
    chat.charge(answer)
    chat.spent += 20
    chat.messages += [*loop.messages, {"role": "assistant", "content": answer}]


def _first_of(chat: Chat, *makers: Callable[[Chat], Turn | None]) -> Turn:
    """The first turn that can be made and fits the rules; makers are tried several times."""
    for maker in makers:
        for _ in range(8):
            turn = fitted(chat, maker(chat))
            if turn is not None:
                return turn
    return obeyed(talk_turn(chat), chat.rules)


# How often each kind of rule is the one that is asked for.
_RULE_NAMES = ("plain", "brief", "capitals", "replaces", "secret", "taboo")
_VARIANTS = {"rule": (60, 9, 8, 8, 8, 7), "rules": (62, 14, 7, 7, 4, 6)}


def _set_scene(chat: Chat, kind: str, variant: str) -> None:
    """The system prompt, before facts are added."""
    rng = chat.rng
    # A manner of speaking goes with rules about the ends of an answer, not with all.
    can_play = kind != "tool" and variant in ("", "plain") and chat.target_len > 150
    if kind == "persona" or (can_play and rng.random() < 0.06):
        add_persona(chat)
    elif rng.random() < 0.3 and chat.target_len > 80:
        chat.add_system(chat.lexicon.wording(rng, _PLAIN_SYSTEM))
    if kind not in ("rule", "rules", "tool") and chat.target_len > 150 and rng.random() < 0.08:
        add_rules(chat, 1)
    if kind in ("tool", "tool_result"):
        add_tools(chat, max(1, min(rng.randint(1, 6), (chat.target_len - 90) // 60)))
    elif chat.target_len > 500 and rng.random() < 0.05:
        add_tools(chat, rng.randint(1, 3))


def compose(chat: Chat, kind: str, is_thinking: bool) -> Loop:
    """Fills `chat` and gives the last question and reply, as messages with what makes it right."""
    rng = chat.rng
    reserve = _LAST_LENS.get(kind, 75) - (0 if is_thinking else 30)
    variant = rng.choices(_RULE_NAMES, _VARIANTS[kind])[0] if kind in _VARIANTS else ""
    _set_scene(chat, kind, variant)
    if kind in _VARIANTS:
        plain = _plain_rules if kind == "rule" else _hard_rules
        _RULE_SCENES.get(variant, plain)(chat)
    if kind == "pairs":
        _tell_at_once(chat, reserve)
    room = int((chat.room - reserve) * _fact_share(chat, kind))
    if kind in ("recall", "absent", "rule", "rules") or room > 30:
        set_facts(chat, max(room, 14))
    extra = _late_rule(chat, variant)
    past_turns(chat, reserve)
    chat.shows_working = is_thinking
    if kind in ("tool", "tool_result"):
        return _tool_end(chat, kind)
    return _as_loop(chat, _last_turn(chat, kind, variant, extra))


def _fact_share(chat: Chat, kind: str) -> float:
    """How much of the room facts take; the rest is for questions, from which recall is learned."""
    if kind not in ("recall", "absent", "rule", "rules"):
        return chat.rng.uniform(0.0, 0.7)
    return chat.rng.uniform(0.3, 0.85) if chat.target_len > 200 else chat.rng.uniform(0.7, 1.0)


def _plain_rules(chat: Chat) -> None:
    add_rules(chat, 1 if chat.rng.random() < 0.75 else 2)


def _hard_rules(chat: Chat) -> None:
    """Mostly two at once; at times the user gives them."""
    num_rules = 2 if chat.rng.random() < 0.75 else 1
    if chat.rng.random() < 0.25 and chat.target_len > 200:
        tell_rules(chat, num_rules)
    else:
        add_rules(chat, num_rules)


def _tell_at_once(chat: Chat, reserve: int) -> None:
    """The user tells several things, each time more than one."""
    for _ in range(chat.rng.randint(1, 3)):
        turn = fitted(chat, told_at_once(chat)) if chat.room > reserve + 40 else None
        if turn is not None:
            chat.say(turn.user, turn.answer)


_RULE_SCENES: dict[str, Callable[[Chat], None]] = {
    "brief": add_brief,
    "capitals": add_capitals,
    "secret": add_secret,
    "replaces": lambda _: None,  # needs a fact first
    "taboo": lambda _: None,
}


def _late_rule(chat: Chat, variant: str) -> Turn | None:
    """Rules about one of the facts. Gives the turn that shows whether it is followed."""
    rng = chat.rng
    if variant == "replaces":
        options = [
            f
            for f in chat.book.facts
            if " " not in f.value
            and f.relation.value in ("place", "person", "colour", "item", "word", "pet")
        ]
        if options:
            fact = rng.choice(options)
            other = chat.lexicon.draw(rng, fact.relation.value)
            if other != fact.value:
                add_replacing(chat, fact, other)
                return direct_turn(chat, fact)
    if variant == "taboo":
        options = [f for f in chat.book.facts if f.relation.subject == "person"]
        if options:
            fact = rng.choice(options)
            add_taboo(chat, fact)
            return direct_turn(chat, fact)
    return None


def _last_turn(chat: Chat, kind: str, variant: str, extra: Turn | None) -> Turn:
    if len(chat.book.facts) < 3:
        chat.asked.clear()
    if kind == "recall":
        is_double = chat.target_len > 250 and chat.rng.random() < 0.06
        return _first_of(chat, both_turn if is_double else recall_turn, recall_turn, told_turn)
    if kind in _VARIANTS:
        return _rule_end(chat, variant, extra)
    makers: dict[str, Callable[[Chat], Turn | None]] = {
        "absent": absent_turn,
        "persona": persona_turn,
        "arithmetic": number_turn,
        "smalltalk": echo_turn if chat.messages and chat.rng.random() < 0.12 else talk_turn,
        "world": world_turn,
        "told": told_turn,
        "pairs": told_again_turn,
    }
    rest = (told_at_once,) if kind == "pairs" else ()
    return _first_of(chat, makers[kind], makers[kind], *rest)


def _rule_end(chat: Chat, variant: str, extra: Turn | None) -> Turn:
    if extra is not None:
        return obeyed(extra, chat.rules)
    if variant == "secret":
        return _first_of(chat, secret_turn)
    if variant in ("brief", "capitals"):
        if variant == "capitals":
            closed = [fact for fact in chat.book.facts if is_closed(fact)]
            if closed:
                return obeyed(direct_turn(chat, chat.rng.choice(closed)), chat.rules)
            return _first_of(chat, talk_turn)
        return _first_of(chat, recall_turn)
    makers = (recall_turn, recall_turn, talk_turn, number_turn, absent_turn, told_turn)
    return _first_of(chat, chat.rng.choice(makers), recall_turn)


def _tool_end(chat: Chat, kind: str) -> Loop:
    rng = chat.rng
    roll = rng.random()
    if kind == "tool_result":
        loop = result_loop(chat, 2 if roll < 0.15 and chat.target_len > 400 else 1)
        turn = obeyed(Turn("", loop.thought, loop.answer, kind, values=loop.values), chat.rules)
        loop.thought, loop.answer, loop.checks = turn.thought, turn.answer, turn.checks
        final: Message = {
            "role": "assistant",
            "content": turn.answer,
            "reasoning_content": turn.thought,
        }
        loop.messages.append(final)
        return loop
    if roll < 0.12:
        return _as_loop(chat, _first_of(chat, no_tool_turn))
    if roll < 0.18 and chat.book.facts:
        return _as_loop(chat, _first_of(chat, recall_turn))
    if roll < 0.28 and chat.target_len > 300:
        return parallel_loop(chat)
    if roll < 0.38 and chat.target_len > 350:
        return second_call_loop(chat)
    return call_loop(chat)


def _as_loop(chat: Chat, turn: Turn) -> Loop:
    user: Message = {"role": "user", "content": chat.user_text(turn.user)}
    reply: Message = {
        "role": "assistant",
        "content": turn.answer,
        "reasoning_content": turn.thought,
    }
    return Loop(
        [user, reply], (), turn.values, turn.thought, turn.answer,
        any_of=turn.any_of, checks=turn.checks, fact_text=turn.fact_text,
    )  # fmt: skip
