"""Small sums with their working, comparing, counting and ordering."""

from __future__ import annotations

from random import Random

from models.sprout.chat import Chat, Turn
from models.sprout.facts import casual
from models.sprout.lexicon import Lexicon, plural

_ADD_ASKS = (
    "What is {a} + {b}?", "what is {a} plus {b}", "{a} + {b}", "{a}+{b}", "How much is {a} plus {b}?", "Add {a} and {b}.",
    "Please add {a} and {b}.", "what's {a} + {b}?", "Calculate {a} + {b}.", "{a} plus {b}?", "compute {a} + {b}",
    "What is the sum of {a} and {b}?", "{a} + {b} = ?", "Can you add {a} and {b}?",
    "I have {a} {t} and get {b} more. How many do I have?", "There are {a} {t} here and {b} {t} there. How many are there?",
)  # fmt: skip
_SUB_ASKS = (
    "What is {a} - {b}?", "what is {a} minus {b}", "{a} - {b}", "{a}-{b}", "How much is {a} minus {b}?",
    "Subtract {b} from {a}.", "what's {a} - {b}?", "Calculate {a} - {b}.", "{a} minus {b}?", "{a} - {b} = ?",
    "Take {b} away from {a}.", "I have {a} {t} and give away {b}. How many are left?",
)  # fmt: skip


def _pair(rng: Random, lexicon: Lexicon, largest: int, sign: str) -> tuple[int, int]:
    """Two numbers whose sum (or the first of which) is at most `largest`; whole pairs are held out."""
    while True:
        total = rng.randint(2, largest)
        part = rng.randint(1, total - 1)
        one, other = (part, total - part) if sign == "+" else (total, part)
        if lexicon.allows(f"{one}{sign}{other}"):
            return one, other


def _steps(one: int, other: int, sign: str) -> str:
    """ "27 + 15: 27 + 10 = 37, 37 + 5 = 42." """
    steps, value = [], one
    for part in (other // 100 * 100, other // 10 % 10 * 10, other % 10):
        if part:
            following = value + part if sign == "+" else value - part
            steps.append(f"{value} {sign} {part} = {following}")
            value = following
    return ", ".join(steps)


def sum_turn(chat: Chat) -> Turn:
    rng, lexicon = chat.rng, chat.lexicon
    sign = rng.choice("++-")
    without_working = (10, 20, 20, 30, 50, 100) if lexicon.is_training else (10, 20, 30)
    largest = rng.choice((20, 50, 100, 100, 200) if chat.shows_working else without_working)
    one, other = _pair(rng, lexicon, largest, sign)
    result = one + other if sign == "+" else one - other
    thing = plural(lexicon.draw(rng, "item"))
    asked = lexicon.wording(rng, _ADD_ASKS if sign == "+" else _SUB_ASKS).format(
        a=one, b=other, t=thing
    )
    thought = f"I compute {one} {sign} {other}. {_steps(one, other, sign)}."
    answers = (f"{one} {sign} {other} = {result}.", f"The answer is {result}.", f"It is {result}.", f"{result}.",
               f"{one} {sign} {other} is {result}.")  # fmt: skip
    return Turn(asked, thought, rng.choice(answers), "arithmetic", values=(str(result),), checks=(("last_number", str(result)),), short=str(result),
                is_upper_safe=True)  # fmt: skip


_LARGER_ASKS = (
    "Which is larger, {a} or {b}?", "which number is bigger {a} or {b}", "What is more: {a} or {b}?",
    "Is {a} or {b} larger?", "Which one is greater, {a} or {b}?",
)  # fmt: skip
_SMALLER_ASKS = (
    "Which is smaller, {a} or {b}?", "which number is smaller {a} or {b}", "What is less: {a} or {b}?",
    "Is {a} or {b} smaller?",
)  # fmt: skip


def compare_turn(chat: Chat) -> Turn:
    rng = chat.rng
    one, other = rng.sample(range(1, rng.choice((20, 100, 200, 1000))), 2)
    is_larger = rng.random() < 0.6
    asked = chat.lexicon.wording(rng, _LARGER_ASKS if is_larger else _SMALLER_ASKS)
    wanted = max(one, other) if is_larger else min(one, other)
    thought = f"I compare {one} and {other}. {min(one, other)} is less than {max(one, other)}."
    word = "larger" if is_larger else "smaller"
    answers = (f"{wanted} is {word}.", f"{wanted}.", f"The {word} one is {wanted}.")
    return Turn(asked.format(a=one, b=other), thought, rng.choice(answers), "arithmetic",
                values=(str(wanted),), checks=(("last_number", str(wanted)),), short=str(wanted), is_upper_safe=True)  # fmt: skip


_COUNT_ASKS = (
    "How many things are these: {l}?", "Count these: {l}.", "count: {l}", "How many words are here? {l}",
    "I see {l}. How many things is that?", "How long is this list: {l}?",
)  # fmt: skip


def count_turn(chat: Chat) -> Turn:
    rng, lexicon = chat.rng, chat.lexicon
    num = rng.randint(2, 9 if chat.shows_working else 5)
    found: list[str] = []
    while len(found) < num:
        item = lexicon.draw(rng, rng.choice(("item", "food", "animal")))
        if item not in found:
            found.append(item)
    asked = lexicon.wording(rng, _COUNT_ASKS).format(l=", ".join(found))
    counted = ", ".join(f"{i} {item}" for i, item in enumerate(found, 1))
    answers = (f"There are {num}.", f"{num}.", f"That makes {num}.", f"I count {num}.")
    return Turn(casual(rng, asked), f"I count them: {counted}.", rng.choice(answers), "arithmetic",
                values=(str(num),), checks=(("last_number", str(num)),), short=str(num), is_upper_safe=True)  # fmt: skip


def elder_turn(chat: Chat) -> Turn | None:
    """Compares two ages that the conversation tells."""
    rng = chat.rng
    aged = [fact for fact in chat.book.facts if fact.relation.label == "age"]
    if len(aged) < 2:
        return None
    one, other = rng.sample(aged, 2)
    if one.value == other.value:
        return None
    is_older = rng.random() < 0.6
    old, young = sorted((one, other), key=lambda fact: -int(fact.value))
    wanted, word = (old, "older") if is_older else (young, "younger")
    asked = rng.choice(
        ("Who is {w}, {a} or {b}?", "Is {a} or {b} {w}?", "Which of them is {w}: {a} or {b}?")
    )
    thought = (
        f"I read: {one.sentence} And: {other.sentence} {young.value} is less than {old.value}."
    )
    answers = (f"{wanted.subject} is {word}.", f"{wanted.subject}.")
    return Turn(asked.format(w=word, a=one.subject, b=other.subject), thought, rng.choice(answers),
                "arithmetic", values=(wanted.subject,),
                checks=(("avoids", (young if is_older else old).subject),))  # fmt: skip


def number_turn(chat: Chat) -> Turn:
    """Any question about numbers."""
    roll = chat.rng.random()
    if roll < 0.08:
        turn = elder_turn(chat)
        if turn is not None:
            return turn
    if roll < 0.65:
        return sum_turn(chat)
    return compare_turn(chat) if roll < 0.8 else count_turn(chat)
