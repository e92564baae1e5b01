"""A conversation while it is being made: what is known, what was said and how much room is left."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from models.sprout import words
from models.sprout.common import COMMON
from models.sprout.facts import Fact, FactBook
from models.sprout.lexicon import Lexicon

if TYPE_CHECKING:
    from models.sprout.personas import Persona
    from models.sprout.rules import Rule
    from models.sprout.toolbox import Tool

Message = dict[str, Any]

_PIECES = re.compile(r"[A-Za-z]+|[0-9]|[^\w\s]+|\n+| (?=[0-9])")
_MARKUP_LEN = 5  # <|im_start|>, role, newline, <|im_end|>, newline


def _word_lens() -> dict[str, int]:
    """Tokens of known words, with the space before them where that is one of its own."""
    lists = [value for value in vars(words).values() if isinstance(value, tuple)]
    known = {word: 2 for part in lists for word in part}
    known |= {word.capitalize(): 2 for word in (*words.PLAIN, *words.COLOURS)}
    known |= {word.capitalize(): 1 for word in COMMON}
    return known | dict.fromkeys(COMMON, 1)


_WORD_LENS = _word_lens()


def _piece_len(piece: str) -> float:
    return 1 if not piece.isalpha() else 1 + len(piece) / 2.4


def estimated_len(text: str) -> int:
    """About how many tokens a text has: invented words have several."""
    known = _WORD_LENS
    return int(sum(known.get(piece) or _piece_len(piece) for piece in _PIECES.findall(text))) + 1


@dataclass(frozen=True)
class Turn:
    """A question and its reply. `values`, `any_of` and `checks` say what makes a reply right."""

    user: str
    thought: str
    answer: str
    kind: str
    values: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    fact_text: str = ""  # where the needed fact stands
    short: str = ""  # the answer in as few words as can be
    is_upper_safe: bool = False  # holds no word whose capitals were never seen

    def with_answer(self, answer: str) -> Turn:
        return replace(self, answer=answer)


@dataclass
class Chat:
    rng: Random
    lexicon: Lexicon
    target_len: int
    book: FactBook
    system: list[str] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    persona: Persona | None = None
    tools: list[Message] | None = None
    toolbox: list[Tool] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)  # said by the user, not yet answered
    asked: list[Fact] = field(default_factory=list)
    shows_working: bool = False  # whether the next turn has a thought to work in
    spent: int = 0

    @classmethod
    def empty(cls, rng: Random, lexicon: Lexicon, target_len: int) -> Chat:
        return cls(rng, lexicon, target_len, FactBook(rng, lexicon))

    @property
    def room(self) -> int:
        return self.target_len - self.spent

    def charge(self, text: str) -> None:
        self.spent += estimated_len(text)

    def add_system(self, text: str) -> None:
        if not self.system:
            self.spent += _MARKUP_LEN
        self.system.append(text)
        self.charge(text)

    def add_pending(self, text: str) -> None:
        """Text that stands before the next question in the same message."""
        self.pending.append(text)
        self.charge(text)

    def user_text(self, question: str) -> str:
        """The whole user message that ends with `question`. Empties what was pending."""
        parts, self.pending = [*self.pending, question], []
        if len(parts) == 2 and "\n" in parts[0] and question and self.rng.random() < 0.15:
            parts = [question, parts[0]]  # the question may come first
        is_apart = any(
            "\n" in part or len(part) > 200 or not part.endswith(".") for part in parts[:-1]
        )
        return ("\n\n" if is_apart else " ").join(part for part in parts if part)

    def say(self, user: str, answer: str) -> None:
        """An exchange of the past."""
        self.charge(user)
        self.charge(answer)
        self.spent += 2 * _MARKUP_LEN
        self.messages.append({"role": "user", "content": self.user_text(user)})
        self.messages.append({"role": "assistant", "content": answer})

    def system_message(self) -> list[Message]:
        if not self.system:
            return []
        # People write one paragraph as well as one line for each rule.
        is_paragraph = self.lexicon.is_training and self.rng.random() < 0.3
        return [{"role": "system", "content": (" " if is_paragraph else "\n").join(self.system)}]
