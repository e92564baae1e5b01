"""Facts of one conversation: made with keys that never clash, told, asked for and answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from models.sprout.lexicon import Lexicon, article
from models.sprout.relations import Relation

# Ways to ask that only need the gist: "where Anna lives".
_BY_GIST = (
    "Tell me {g}.",
    "Can you tell me {g}?",
    "Do you know {g}?",
    "Do you remember {g}?",
    "Please tell me {g}.",
    "I forgot {g}. Can you help?",
    "I want to know {g}.",
    "Could you say {g}?",
    "Remind me {g}.",
    "I would like to know {g}.",
    "Look up {g}, please.",
    "Say {g}.",
)
_BEFORE = (
    "", "", "", "", "", "", "", "", "", "Ok, ", "And ", "So, ", "Quick question: ", "Next question: ", "Please: ",
    "Hey, ", "Hm, ", "Now, ",
)  # fmt: skip
_BEHIND = ("", "", "", "", "", "", "", " Thanks.", " Please answer.", " I forgot.")
_LOOKED = (
    "The user asks{f} {g}. {source}: {text}",
    "The user asks{f} {g}. {source}: {text}",
    "The question is {g}. {source}: {text}",
    "The user wants to know {g}. {source}: {text}",
)
SOURCES = {
    "document": ("The text says", "The document says", "I read"),
    "system": ("The system prompt says", "I was told"),
    "user": ("The user said", "The user told me"),
}


@dataclass(frozen=True)
class Fact:
    relation: Relation
    subject: str
    value: str
    text: str  # as it stands in the conversation
    source: str = "document"

    @property
    def sentence(self) -> str:
        return self.text if self.text.endswith(".") else f"{self.text}."

    def filled(self, template: str) -> str:
        """`template` with the fact in it. A value or a subject at its start stays as it is: it is
        copied, and its capital may never have been seen."""
        text = template.format(s=self.subject, v=self.value, av=article(self.value))
        return text if template.startswith("{") else text[0].upper() + text[1:]

    @property
    def gist(self) -> str:
        return self.relation.gist.format(s=self.subject, v=self.value)


@dataclass(frozen=True)
class Question:
    """A question with its thought and its answer."""

    asked: str
    thought: str
    answer: str
    value: str  # what the answer must hold


@dataclass
class FactBook:
    """All facts of a conversation. No two have one key, and no subject is part of another."""

    rng: Random
    lexicon: Lexicon
    facts: list[Fact] = field(default_factory=list)
    _keys: dict[tuple[str, str], int] = field(default_factory=dict)
    _values: dict[tuple[str, str], int] = field(default_factory=dict)
    _words: dict[str, str] = field(default_factory=dict)  # word of a subject → the subject
    linked: set[str] = field(default_factory=set)  # sentences that tell one fact under two keys
    at_once: set[str] = field(default_factory=set)  # sentences that tell several facts

    def new_subject(self, kind: str) -> str | None:
        """One that shares no telling word with another of this conversation, or None."""
        for _ in range(12):
            subject = self.lexicon.draw(self.rng, kind)
            telling = self.telling_words(subject, kind)
            if not any(self._is_taken(word, kind) for word in telling):
                for word in telling:
                    self._words.setdefault(word, subject)
                return subject
        return None

    def _is_taken(self, word: str, kind: str) -> bool:
        """Whether `word` names something else. A thing may have several attributes."""
        holder = self._words.get(word)
        if holder is None:
            return False
        return kind != "attribute" or not holder.endswith(f" of the {word}")

    @staticmethod
    def telling_words(subject: str, kind: str) -> list[str]:
        """The words by which a subject is known: names by each word, "red lamp" by the whole and
        "lamp" by itself, as "the lamp" would mean either."""
        if kind == "site":
            return [subject]
        if kind == "attribute":
            return [subject, subject.rsplit(maxsplit=1)[-1]]
        if kind == "object":
            return [subject.rsplit(maxsplit=1)[-1]]
        return [word.lower() for word in subject.split()]

    def has_key(self, relation: Relation, subject: str) -> bool:
        return (relation.key, subject.lower()) in self._keys

    def make(self, relation: Relation, subject: str, source: str = "document") -> Fact | None:
        """A new fact, not yet told; None where the key is taken or no unused value is found."""
        key = (relation.key, subject.lower())
        if key in self._keys:
            return None
        for _ in range(6):
            value = self._new_value(relation, subject)
            if self._is_free(relation, value):
                break
        else:
            return None
        self._keys[key] = len(self.facts)
        self._values[relation.key, value.lower()] = 1
        if relation.value in ("person", "pet", "word"):
            for word in value.lower().split():
                self._words.setdefault(word, value)
        elif relation.value == "object":
            self._words.setdefault(value.split()[-1], value)
        template = self.lexicon.wording(self.rng, relation.says)
        bare = Fact(relation, subject, value, "", source)
        fact = Fact(relation, subject, value, bare.filled(template), source)
        self.facts.append(fact)
        return fact

    def _is_free(self, relation: Relation, value: str) -> bool:
        """Whether `value` is new for the relation and names no subject."""
        word = value.rsplit(maxsplit=1)[-1] if relation.value == "object" else value
        return (relation.key, value.lower()) not in self._values and word.lower() not in self._words

    def _new_value(self, relation: Relation, subject: str) -> str:
        if relation.value == "any":
            return self.lexicon.value_of(self.rng, subject)
        return self.lexicon.draw(self.rng, relation.value)

    def replace(self, old: Fact, new: Fact) -> None:
        self.facts[self.facts.index(old)] = new

    def also(self, fact: Fact, relation: Relation, subject: str) -> Fact:
        """The same value under another key: what "my sister" does, Eva does."""
        alias = Fact(relation, subject, fact.value, fact.text, fact.source)
        self._keys[relation.key, subject.lower()] = len(self.facts)
        self.facts.append(alias)
        return alias

    def values(self) -> list[str]:
        return [fact.value for fact in self.facts]

    def correct(self, fact: Fact, template: str) -> Fact | None:
        """The newer version of a fact: the user takes the old value back."""
        for _ in range(6):
            value = self._new_value(fact.relation, fact.subject)
            if (fact.relation.key, value.lower()) not in self._values:
                self._values[fact.relation.key, value.lower()] = 1
                said = Fact(fact.relation, fact.subject, value, "", "user").filled(template)
                newer = Fact(fact.relation, fact.subject, value, said, "user")
                self.replace(fact, newer)
                return newer
        return None


def looked_up(rng: Random, gist: str, fact: Fact) -> str:
    """The thought that finds a fact by quoting it."""
    source = rng.choice(SOURCES[fact.source])
    return rng.choice(_LOOKED).format(f=asks_for(gist), g=gist, source=source, text=fact.sentence)


def asks_for(gist: str) -> str:
    """ "asks where Anna lives", but "asks for the code"."""
    return " for" if gist.startswith("the ") else ""


def ask(rng: Random, lexicon: Lexicon, fact: Fact) -> Question:
    """A question for the value, or for the subject where the relation can be turned round."""
    relation = fact.relation
    if relation.asks_subject and rng.random() < 0.2:
        core = fact.filled(lexicon.wording(rng, relation.asks_subject))
        gist = relation.gist_subject.format(s=fact.subject, v=fact.value)
        is_sentence = fact.text.endswith(".") and rng.random() < 0.5
        answer = fact.text if is_sentence else _subject_alone(fact)
        return Question(_worded(rng, core), looked_up(rng, gist, fact), answer, fact.subject)
    return ask_value(rng, lexicon, fact)


def ask_value(rng: Random, lexicon: Lexicon, fact: Fact) -> Question:
    relation = fact.relation
    gist = fact.gist
    if rng.random() < 0.35:
        core = lexicon.wording(rng, _BY_GIST).format(g=gist.replace("the user's", "my"))
    else:
        core = _worded(rng, bare_question(rng, lexicon, fact))
    answer = fact.filled(rng.choice(relation.answers))
    return Question(core, looked_up(rng, gist, fact), answer, fact.value)


def bare_question(rng: Random, lexicon: Lexicon, fact: Fact) -> str:
    text = lexicon.wording(rng, fact.relation.asks).format(s=fact.subject)
    return text[0].upper() + text[1:]


def _subject_alone(fact: Fact) -> str:
    kind = fact.relation.subject
    if kind in ("object", "site", "venue", "event", "ordinal"):
        return f"The {fact.subject}."
    if kind == "order":
        return f"Order {fact.subject}."
    return f"{fact.subject}."


def _worded(rng: Random, core: str) -> str:
    before = rng.choice(_BEFORE)
    if before.endswith(", ") or before == "And ":
        core = core[0].lower() + core[1:]
    return before + core + rng.choice(_BEHIND)


def casual(rng: Random, text: str) -> str:
    """As people type: small first letter, no question mark, now and then a typing slip."""
    roll = rng.random()
    if roll < 0.55:
        return text
    if roll < 0.85:
        text = text[0].lower() + text[1:]
    if roll > 0.65:
        text = text.rstrip("?.")
    if roll > 0.95:
        text = _slipped(rng, text)
    return text


_SLIPS = (
    ("what", "waht"), ("what is", "whats"), ("where", "were"), ("does", "dose"), ("you", "u"),
    ("please", "pls"), ("remember", "remeber"), ("the", "teh"), ("which", "wich"), ("who is", "whos"),
    ("favourite", "favorite"), ("colour", "color"), ("number", "nr"), ("tell me", "tel me"),
)  # fmt: skip


def _slipped(rng: Random, text: str) -> str:
    right, wrong = rng.choice(_SLIPS)
    head, found, tail = text.partition(f"{right} ")
    return f"{head}{wrong} {tail}" if found else text


_CONTRACTED = (("What is ", "What's "), ("Where is ", "Where's "), ("Who is ", "Who's "))


def contracted(rng: Random, text: str) -> str:
    """ "What's my name?" at times, as most people have it."""
    if rng.random() < 0.15:
        for whole, short in _CONTRACTED:
            text = text.replace(whole, short).replace(whole.lower(), short.lower())
    return text
