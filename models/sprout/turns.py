"""Questions about what a conversation holds or does not hold, as turns."""

from __future__ import annotations

from dataclasses import replace

from models.sprout import words
from models.sprout.chat import Chat, Turn
from models.sprout.documents import GROUPS, ITEM
from models.sprout.facts import (
    SOURCES,
    Fact,
    Question,
    ask,
    ask_value,
    asks_for,
    bare_question,
    casual,
    contracted,
)
from models.sprout.mine import MINE
from models.sprout.relations import Relation
from models.sprout.rules import refused

_UNKNOWN = (
    "I do not know {g}.",
    "I don't know {g}.",
    "Sorry, I do not know {g}.",
    "That is not said here, so I do not know {g}.",
    "I cannot say {g}: nobody told me.",
    "I was not told {g}.",
    "The conversation does not say {g}.",
    "I don't know. You have not told me {g}.",
)
_NOTHING = (
    "The user asks{f} {g}. I find nothing about {s}. I do not know it.",
    "The user asks{f} {g}. Nothing is said about {s}.",
    "The question is {g}. {source} nothing about {s}.",
)
_NOT_THIS = (
    "The user asks{f} {g}. I know of {s}, but not this.",
    "The user asks{f} {g}. {s} is named, but this is not said.",
)
_ABSENT_ASKS = (
    "Do you know {g}?", "Tell me {g}.", "Can you tell me {g}?", "Remind me {g}.", "I forgot {g}. Can you help?",
)  # fmt: skip
# Whose values may be told through another relation: a person's things, friends.
_NAMES = frozenset(words.NAMES)
_CLOSED = ("colour", "day", "month", "number", "small", "age", "year", "time", "code", "instrument")
_TANGLED = ("gift", "friend", "owner", "maker", "place")


def recall_turn(chat: Chat) -> Turn | None:
    """A question about one of the facts; None where there are none."""
    if not chat.book.facts:
        return None
    fact = chat.rng.choice(chat.book.facts)
    if fact in chat.asked[-2:]:  # nobody asks the same again at once
        fact = chat.rng.choice(chat.book.facts)
        if fact in chat.asked[-2:]:
            return None
    chat.asked.append(fact)
    return _asked(chat, fact, ask(chat.rng, chat.lexicon, fact))


def direct_turn(chat: Chat, fact: Fact) -> Turn:
    """A question for the value of `fact`."""
    return _asked(chat, fact, ask_value(chat.rng, chat.lexicon, fact))


def is_closed(fact: Fact) -> bool:
    """Whether its value is of a closed class, so that its capitals are known."""
    return fact.relation.value in _CLOSED


def _asked(chat: Chat, fact: Fact, question: Question) -> Turn:
    is_value = question.value == fact.value
    asked = casual(chat.rng, question.asked)
    if chat.lexicon.is_training:
        asked = contracted(chat.rng, asked)
    if is_value and fact.subject in _NAMES and chat.rng.random() < 0.08:
        asked = asked.lower()  # "where does anna live"
    turn = Turn(
        asked,
        question.thought,
        question.answer,
        "recall",
        values=(question.value,),
        fact_text=fact.text,
        short=question.value,
        is_upper_safe=is_value and is_closed(fact),
    )
    return refused(chat, turn, fact) if is_value else turn


def both_turn(chat: Chat) -> Turn | None:
    """Two questions in one message."""
    if len(chat.book.facts) < 2:
        return None
    facts = chat.rng.sample(chat.book.facts, 2)
    one, other = (bare_question(chat.rng, chat.lexicon, fact) for fact in facts)
    told = [fact.filled(fact.relation.answers[0]) for fact in facts]
    joined = chat.rng.choice((f"{one} And {other[0].lower()}{other[1:]}", f"{one} {other}"))
    sources = [chat.rng.choice(SOURCES[fact.source]) for fact in facts]
    thought = f"There are two questions. {sources[0]}: {facts[0].sentence} {sources[1]}: {facts[1].sentence}"
    return Turn(joined, thought, " ".join(told), "recall", values=(facts[0].value, facts[1].value),
                fact_text=facts[0].text)  # fmt: skip


def _unknown_subject(chat: Chat) -> tuple[Relation, str] | None:
    """A subject of a kind that is talked about, which is not."""
    rng, book = chat.rng, chat.book
    known = [fact.relation for fact in book.facts if fact.relation.group in GROUPS]
    relation = rng.choice(known) if known and rng.random() < 0.85 else rng.choice(GROUPS["people"])
    subject = book.new_subject(relation.subject)
    if relation.subject == "order" and rng.random() < 0.3:  # one digit off
        digits = list(
            rng.choice([f.subject for f in book.facts if f.relation.subject == "order"] or ["100"])
        )
        digits[-1] = rng.choice("0123456789")
        near = "".join(digits)
        subject = near if not any(f.subject == near for f in book.facts) else subject
    return None if subject is None else (relation, subject)


def _untold_relation(chat: Chat) -> tuple[Relation, str] | None:
    """A known subject with something that is not said about it."""
    rng, book = chat.rng, chat.book
    known = [fact for fact in book.facts if fact.relation.group in GROUPS]
    if not known:
        return None
    subject = rng.choice(known)
    options = [
        relation
        for relation in GROUPS[subject.relation.group]
        if relation.subject == subject.relation.subject
        and relation.label not in _TANGLED
        and not book.has_key(relation, subject.subject)
    ]
    return (rng.choice(options), subject.subject) if options else None


def absent_turn(chat: Chat) -> Turn | None:
    """A question that the conversation does not answer, near misses included."""
    rng = chat.rng
    roll = rng.random()
    if roll < 0.2:
        untold = [r for r in MINE if not any(f.relation.key == r.key for f in chat.book.facts)]
        relation = rng.choice(untold) if untold else None
        found = (relation, chat.lexicon.draw(rng, relation.subject)) if relation else None
        thoughts = _NOTHING[:2]
    elif roll < 0.5:
        found, thoughts = _untold_relation(chat), _NOT_THIS
    else:
        found, thoughts = _unknown_subject(chat), _NOTHING
    if found is None:
        found, thoughts = _unknown_subject(chat), _NOTHING
    if found is None:
        return None
    relation, subject = found
    return _unanswered(chat, Fact(relation, subject, "", ""), thoughts)


def _unanswered(chat: Chat, probe: Fact, thoughts: tuple[str, ...]) -> Turn:
    """Asks for the value of `probe`, which nobody told."""
    rng, kind, gist = chat.rng, probe.relation.subject, probe.gist
    asked = bare_question(rng, chat.lexicon, probe)
    if rng.random() < 0.3:
        asked = chat.lexicon.wording(rng, _ABSENT_ASKS).format(g=gist.replace("the user's", "my"))
    named = probe.subject
    if probe.relation.group == "mine":
        named = "it"
    elif kind in ("object", "site", "venue", "event", "order", "attribute"):
        named = f"order {named}" if kind == "order" else f"the {named}"
    source = rng.choice(("The text says", "The conversation says", "I find"))
    thought = rng.choice(thoughts).format(f=asks_for(gist), g=gist, s=named, source=source)
    for sentence in (". the ", ". order "):
        thought = thought.replace(sentence, f". {sentence[2:].capitalize()}")
    answer = rng.choice(_UNKNOWN).format(g=gist.replace("the user's", "your"))
    return Turn(casual(rng, asked), thought, answer, "absent", checks=(("unknown", ""),),
                short="I do not know", is_upper_safe=True)  # fmt: skip


_TOLD_REPLIES = (
    "Got it. {a}",
    "I will remember that. {a}",
    "Thank you for telling me. {a}",
    "Noted: {a}",
    "Ok, I will keep that in mind.",
    "Thanks, I will remember it.",
    "Good to know.",
    "All right, noted.",
    "I see. {a}",
)


def told_turn(chat: Chat) -> Turn | None:
    """The user tells something about themselves."""
    rng, book = chat.rng, chat.book
    if rng.random() < 0.35:
        return _told_of_others(chat)
    relation = rng.choice(MINE)
    fact = book.make(relation, chat.lexicon.draw(rng, relation.subject), "user")
    if fact is None:
        return None
    if rng.random() < 0.25 and relation.value != "code":  # as people type: "i live in lund"
        lower = replace(fact, value=fact.value.lower(), text=fact.text.lower().rstrip("."))
        book.replace(fact, lower)
        fact = lower
    return _acknowledged(chat, fact)


def _told_of_others(chat: Chat) -> Turn | None:
    """The user tells something about someone or something, new or known."""
    rng, book = chat.rng, chat.book
    known = [fact for fact in book.facts if fact.relation.group in GROUPS]
    if known and rng.random() < 0.4:
        about = rng.choice(known)
        relations = [r for r in GROUPS[about.relation.group] if r.subject == about.relation.subject]
        relation, subject = rng.choice(relations), about.subject
    else:
        relation = rng.choice(GROUPS[rng.choice(list(GROUPS))])
        subject = book.new_subject(relation.subject) or ""
    fact = book.make(relation, subject, "user") if subject else None
    return None if fact is None else _acknowledged(chat, fact)


def _acknowledged(chat: Chat, fact: Fact) -> Turn:
    rng = chat.rng
    user = fact.text if rng.random() < 0.6 else fact.text[0].lower() + fact.text[1:].rstrip(".")
    answer = rng.choice(_TOLD_REPLIES).format(a=fact.filled(fact.relation.answers[0]))
    said = rng.choice(("The user tells me: {t}", "The user says: {t} I will remember it."))
    return Turn(
        user, said.format(t=fact.sentence), answer, "told",
        any_of=(fact.value, "noted", "remember", "mind", "know", "got it", "thanks", "thank you"),
    )  # fmt: skip


_CORRECTIONS = (
    "Actually, {x}",
    "Sorry, I was wrong. {x}",
    "Correction: {x}",
    "That has changed: {x}",
)


def corrected_turn(chat: Chat) -> Turn | None:
    """The user takes a fact back: from now on the new value counts."""
    rng = chat.rng
    linked = chat.book.linked
    options = [f for f in chat.book.facts if f.relation is not ITEM and f.text not in linked]
    if not options:
        return None
    old = rng.choice(options)
    newer = chat.book.correct(old, rng.choice(old.relation.says))
    if newer is None:
        return None
    user = rng.choice(_CORRECTIONS).format(x=newer.text)
    turn = _acknowledged(chat, newer)
    return Turn(user, turn.thought, turn.answer, "told", any_of=turn.any_of)
