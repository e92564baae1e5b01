"""Facts as texts: prose with filler between, records, bullets, numbered lists."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from models.sprout import words
from models.sprout.chat import Chat, estimated_len
from models.sprout.facts import Fact
from models.sprout.relations import PEOPLE, Relation
from models.sprout.things import THINGS

GROUPS: dict[str, tuple[Relation, ...]] = {}
for _relation in PEOPLE + THINGS:
    GROUPS[_relation.group] = (*GROUPS.get(_relation.group, ()), _relation)

_NUM_SUBJECTS = {"venue": 14, "event": 14}  # of the small classes, so that absent ones are left

_FILLER = (
    "The {weather} {lasted}.",
    "{Somebody} {did} and {did}.",
    "{Somebody} {did}, but nobody {noticed}.",
    "In the {season} the {where} is {state}.",
    "There was {smell} in the air near the {where}.",
    "A {animal} crossed the {where} and {went}.",
    "It was a {state} {daytime}.",
    "Nobody knows why the {where} is so {state}.",
    "Every {daytime} {somebody} {does}.",
    "People say that the {where} was {state} long ago.",
    "Then the {weather} came back.",
    "After that {somebody} {did}.",
)  # fmt: skip
_FILLS = {
    "weather": ["rain", "snow", "wind", "fog", "storm", "sunshine", "frost", "mist", "heat", "thunder"],
    "lasted": (
        "lasted all week", "went on for hours", "came early this year", "surprised everyone",
        "made the roads slow", "was gone by noon", "kept the children inside",
    ),
    "did": (
        "laughed", "opened a window", "made some tea", "waited for an hour", "looked at the sky",
        "went for a walk", "swept the floor", "told a long story", "closed the door softly",
        "wrote a short note", "sang an old song", "counted the steps", "fed the birds",
    ),
    "does": (
        "goes for a walk", "makes some tea", "reads the news", "looks at the sky", "sings a song",
        "feeds the birds", "sweeps the floor", "writes a note",
    ),
    "noticed": ("noticed", "minded", "answered", "cared", "was there to see it", "said a word"),
    "season": ("spring", "summer", "autumn", "winter"),
    "where": (
        "square", "road", "hill", "forest", "field", "river bank", "yard", "path", "shore",
        "meadow", "village", "valley",
    ),
    "state": (
        "quiet", "cold", "busy", "empty", "green", "dark", "bright", "slow", "warm", "windy",
        "pleasant", "lonely",
    ),
    "smell": ("smoke", "salt", "bread", "a smell of flowers", "dust", "a sound of bells"),
    "animal": ("fox", "cat", "hare", "dog", "crow", "goat", "frog"),
    "went": ("ran off", "stopped to look", "vanished", "sat down in the shade", "went on"),
    "daytime": ("morning", "evening", "night", "afternoon", "day"),
    "somebody": (
        "someone", "an old man", "a child", "a stranger", "one of the guests", "a visitor",
        "a young woman", "the neighbours", "a traveller",
    ),
}  # fmt: skip
_SINGULAR_ONLY = "the neighbours"


def filler(rng: Random) -> str:
    """A sentence that tells nothing anyone will ask for."""
    filled = {name: rng.choice(options) for name, options in _FILLS.items()}
    if filled["somebody"] == _SINGULAR_ONLY:
        filled["does"] = "make some tea"
    filled["Somebody"] = filled["somebody"][0].upper() + filled["somebody"][1:]
    text = rng.choice(_FILLER)
    if text.count("{did}") == 2:
        one, other = rng.sample(_FILLS["did"], 2)
        return text.replace("{did}", one, 1).replace("{did}", other).format(**filled)
    return text.format(**filled)


def make_facts(chat: Chat, room: int, source: str) -> list[list[Fact]]:
    """Facts about a few kinds of things, by subject, that take about `room` tokens as sentences."""
    rng, book = chat.rng, chat.book
    groups = rng.sample(list(GROUPS), min(len(GROUPS), 1 + room // 500 + (rng.random() < 0.4)))
    made: list[list[Fact]] = []
    left = room
    num_fails = 0
    while left > 9 and num_fails < 8:
        relations = GROUPS[rng.choice(groups)]
        kind = relations[0].subject if len({r.subject for r in relations}) == 1 else ""
        kind = kind or rng.choice(relations).subject
        relations = tuple(r for r in relations if r.subject == kind)
        subject = book.new_subject(kind)
        if subject is None:
            num_fails += 1
            groups = list(GROUPS)  # those chosen have no more subjects
            continue
        per_subject = 1 if rng.random() < 0.55 else rng.randint(1, min(4, len(relations)))
        facts = []
        for relation in rng.sample(relations, per_subject):
            fact = book.make(relation, subject, source) if left > 9 else None
            if fact is not None:
                facts.append(fact)
                left -= estimated_len(fact.text)
        if facts:
            made.append(facts)
        else:  # no values are left
            num_fails += 1
            groups = list(GROUPS)
    return made


def _as_records(chat: Chat, by_subject: list[list[Fact]]) -> str:
    """One line for each subject: "Anna: city Lund, room 214"."""
    mark = chat.rng.choice(("", "- ", "* "))
    lines = []
    for facts in by_subject:
        subject = facts[0].subject
        head = f"Order {subject}" if facts[0].relation.subject == "order" else subject
        told = [f"{fact.relation.label} {fact.value}".strip() for fact in facts]
        lines.append(f"{mark}{head}: {', '.join(told)}")
        for fact, piece in zip(facts, told):
            chat.book.replace(fact, replace(fact, text=f"{head}: {piece}"))
    return "\n".join(lines)


def _as_bullets(chat: Chat, by_subject: list[list[Fact]]) -> str:
    facts = [fact for facts in by_subject for fact in facts]
    chat.rng.shuffle(facts)
    return "\n".join(f"- {fact.text}" for fact in facts)


def _as_prose(chat: Chat, by_subject: list[list[Fact]]) -> str:
    rng = chat.rng
    facts = [fact for facts in by_subject for fact in facts]
    if rng.random() < 0.5:
        rng.shuffle(facts)
    filler_share = rng.choice((0.0, 0.0, 0.15, 0.3))
    paragraph_len = rng.choice((4, 8, 1000))
    sentences: list[str] = []
    pieces: list[str] = []
    for fact in facts:
        sentences.append(fact.text)
        if rng.random() < filler_share:
            sentences.append(filler(rng))
        if len(sentences) >= paragraph_len:
            pieces.append(" ".join(sentences))
            sentences = []
    if sentences:
        pieces.append(" ".join(sentences))
    return "\n".join(pieces)


def prose(chat: Chat, room: int, source: str) -> str:
    """Sentences with facts, for a system prompt or a message."""
    return _as_prose(chat, make_facts(chat, room, source))


def document(chat: Chat, room: int) -> str:
    """A text, records or lists with facts of about `room` tokens; "" where there is no room."""
    rng = chat.rng
    sections = []
    left = room
    num_sections = 1 if room < 150 else rng.randint(1, 1 + room // 400)
    for i in range(num_sections):
        part = left // (num_sections - i)
        roll = rng.random()
        if roll < 0.12 and part > 40 and not any(f.relation is ITEM for f in chat.book.facts):
            text = _numbered(chat, part)
        else:
            made = make_facts(chat, part, "document")
            layout = _as_prose if roll < 0.62 else _as_records if roll < 0.82 else _as_bullets
            text = layout(chat, made) if made else ""
        if text:
            sections.append(text)
            left -= estimated_len(text)
    return "\n\n".join(sections)


# The numbered list of a conversation. There is one at most: "the third item" names it.
ITEM = Relation(
    "item", "ordinal", "item",
    ("{s}. {v}",),
    "what the {s} item is",
    ("What is the {s} item?", "Which item is {s}?", "What is the {s} thing on the list?",
     "What comes {s} on the list?"),
    ("The {s} item is the {v}.", "{v}.", "It is the {v}."),
    ("Which place on the list has the {v}?",), "which place the {v} has",
)  # fmt: skip


def _numbered(chat: Chat, room: int) -> str:
    rng = chat.rng
    lines = [rng.choice(("The list:", "List of things:", "Shopping list:", "Things to buy:"))]
    num_items = min(len(words.ORDINALS), max(3, room // 6), rng.randint(3, 10))
    for i in range(num_items):
        fact = chat.book.make(ITEM, words.ORDINALS[i])
        if fact is None:
            break
        line = f"{i + 1}. {fact.value}"
        chat.book.replace(fact, replace(fact, text=line))
        lines.append(line)
    return "\n".join(lines)
