"""Several facts told at once, as people tell them: "My name is Julia and I live in Lisbon.", "My
sister Eva is a baker." Each is asked for by itself. For training, and for the suite of its name."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from models.sprout.chat import Chat, Turn
from models.sprout.facts import Fact
from models.sprout.mine import MINE
from models.sprout.relations import PEOPLE, Relation
from models.sprout.turns import direct_turn

_TOLD = (
    "Got it. {a}", "I will remember that. {a}", "Thank you for telling me. {a}", "Noted: {a}", "I see. {a}",
    "Ok, I will keep that in mind.", "Good to know.", "Thanks, I will remember it.",
)  # fmt: skip
_MET = ("Nice to meet you, {n}!", "Hello {n}, nice to meet you!", "Nice to meet you, {n}. {a}")
_ABOUT = ("city", "job", "age", "food", "colour", "hobby", "dog", "instrument", "month")
_GREETINGS = ("", "", "Hi! ", "Hello! ", "Hi, ", "Hello, ", "Hey, ", "hi ", "Hey there! ")
_NAME = next(relation for relation in MINE if relation.label == "my name")
_RELATIVE = next(relation for relation in MINE if relation.label == "my relative")
# Told by a sentence that can be joined to another; the name and the home come first to mind.
_PAIRED = tuple(
    relation
    for relation in MINE
    for _ in range(4 if relation.label in ("my name", "my home", "my job", "my age") else 1)
    if any(text.startswith(("My ", "I ")) for text in relation.says)
)


def _of_the_users(relation: Relation) -> Relation:
    """What is known of a person, told of "my sister"."""
    return replace(
        relation,
        label=f"my relative's {relation.label}",
        subject="relative",
        says=tuple(text.replace("{s}", "my {s}") for text in relation.says),
        gist=relation.gist.replace("{s}", "the user's {s}"),
        asks=tuple(text.replace("{s}", "my {s}") for text in relation.asks),
        answers=tuple(text.replace("{s}", "your {s}") for text in relation.answers),
        asks_subject=(),
        gist_subject="",
        group="mine",
    )


FAMILY = {r: _of_the_users(r) for r in PEOPLE if r.label in _ABOUT}


def _retold(chat: Chat, facts: list[Fact], text: str) -> list[Fact]:
    """The facts, all told by `text`."""
    chat.book.at_once.add(text)
    told = [replace(fact, text=text) for fact in facts]
    for old, new in zip(facts, told):
        chat.book.replace(old, new)
    return told


def _joined(parts: list[str]) -> str:
    """ "A." and "B." as "A and B."; words that only begin a sentence lose their capital."""
    bare = [part.rstrip(".") for part in parts]
    if len(bare) == 1:
        return f"{bare[0]}."
    rest = [
        part[0].lower() + part[1:] if part.startswith(("My ", "You", "The ")) else part
        for part in bare[1:]
    ]
    bare = [bare[0], *rest]
    return f"{', '.join(bare[:-1])} and {bare[-1]}."


def _acknowledged(chat: Chat, facts: list[Fact], user: str) -> Turn:
    rng = chat.rng
    said = _joined([fact.filled(fact.relation.answers[0]) for fact in facts])
    name = next((fact.value for fact in facts if fact.relation.label == "my name"), None)
    wordings = _MET if name is not None and rng.random() < 0.5 else _TOLD
    answer = rng.choice(wordings).format(a=said, n=name)
    if rng.random() < 0.3:
        user = user.rstrip(".")
    kept = ("noted", "remember", "mind", "know", "got it", "thanks", "thank you", "meet you")
    return Turn(
        user, f"The user tells me: {facts[0].sentence} I will remember it.", answer, "told",
        any_of=(*(fact.value for fact in facts), *kept),
    )  # fmt: skip


def _greeted(rng: Random, greetings: tuple[str, ...], text: str) -> str:
    greeting = rng.choice(greetings)
    if greeting.endswith((", ", "i ")) and text.startswith(("My ", "You ", "They ")):
        text = text[0].lower() + text[1:]
    return greeting + text


def pair_turn(chat: Chat) -> Turn | None:
    """The user tells two or three things about themselves in one sentence."""
    rng, book = chat.rng, chat.book
    num_facts = 2 if rng.random() < 0.8 else 3
    facts: list[Fact] = []
    texts: list[str] = []
    for relation in (rng.choice(_PAIRED) for _ in range(8)):
        says = tuple(text for text in relation.says if text.startswith(("My ", "I ", "I'm ")))
        fact = book.make(relation, chat.lexicon.draw(rng, relation.subject), "user")
        if fact is not None:
            facts.append(fact)
            texts.append(fact.filled(chat.lexicon.wording(rng, says)))
        if len(facts) == num_facts:
            break
    if not facts:
        return None
    user = _joined(texts)
    return _acknowledged(chat, _retold(chat, facts, user), _greeted(rng, _GREETINGS, user))


def met_turn(chat: Chat) -> Turn | None:
    """The user greets and says their name."""
    fact = chat.book.make(_NAME, "me", "user")
    if fact is None:
        return None
    facts = _retold(chat, [fact], fact.text)
    return _acknowledged(chat, facts, _greeted(chat.rng, _GREETINGS[2:], fact.text))


def of_one_turn(chat: Chat) -> Turn | None:
    """Two things about one person in one sentence: "Anna lives in Lund and plays the harp." """
    rng, book = chat.rng, chat.book
    subject = book.new_subject("person")
    if subject is None:
        return None
    facts = [book.make(r, subject, "user") for r in rng.sample(list(FAMILY), 2)]
    made = [fact for fact in facts if fact is not None]
    if not made:
        return None
    user = f"{subject} {' and '.join(rng.choice(_predicates(fact)) for fact in made)}."
    return _acknowledged(chat, _retold(chat, made, user), user)


def _predicates(fact: Fact) -> list[str]:
    """The fact without its subject: "lives in Lund"."""
    says = [text for text in fact.relation.says if text.startswith("{s} ")]
    return [fact.filled(text)[len(fact.subject) + 1 :].rstrip(".") for text in says]


def relative_turn(chat: Chat) -> Turn | None:
    """The user tells something of "my sister", or of "my sister Eva", who is then known as both."""
    rng, book = chat.rng, chat.book
    relation = rng.choice(list(FAMILY))
    relative = chat.lexicon.draw(rng, "relative")
    if any(fact.subject == relative for fact in book.facts):
        return None
    named = book.make(_RELATIVE, relative, "user") if rng.random() < 0.65 else None
    known = book.make(FAMILY[relation], relative, "user")
    if named is None or known is None:
        told = known or named
        if told is None:
            return None
        return _acknowledged(chat, _retold(chat, [told], told.text), told.text)
    by_name = book.also(known, relation, named.value)
    user = rng.choice(
        (f"My {relative} {named.value} {rng.choice(_predicates(by_name))}.",
         f"My {relative} is called {named.value} and {rng.choice(_predicates(by_name))}.",
         f"{named.value} is my {relative} and {rng.choice(_predicates(by_name))}.")
    )  # fmt: skip
    _, known, _ = _retold(chat, [named, known, by_name], user)
    book.linked.add(user)
    return _acknowledged(chat, [known], user)


def told_at_once(chat: Chat) -> Turn | None:
    """Any of these."""
    makers = (pair_turn, pair_turn, pair_turn, relative_turn, relative_turn, of_one_turn, met_turn)
    return chat.rng.choice(makers)(chat)


def told_again_turn(chat: Chat) -> Turn | None:
    """A question for one of the facts that were told at once."""
    told = [fact for fact in chat.book.facts if fact.text in chat.book.at_once]
    if not told:
        return None
    return direct_turn(chat, chat.rng.choice(told))
