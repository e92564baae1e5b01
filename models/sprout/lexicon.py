"""Where values come from: word lists, invented words, numbers and codes. Whatever can be held out
is: a word belongs to training or to evaluation by its checksum, never to both. Any thread."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from models.sprout import words

_HELD_OUT_ONE_IN = 10
_ONSETS = [
    "b",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "br",
    "cr",
    "dr",
    "fl",
    "gl",
    "gr",
    "kl",
    "kr",
    "pl",
    "pr",
    "sk",
    "sl",
    "sm",
    "sn",
    "st",
    "tr",
    "th",
    "sh",
    "ch",
]
_VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ai", "ea", "ee", "io", "oa", "ou"]
_CODAS = ["", "", "", "", "n", "r", "l", "s", "m", "k", "t", "x", "nd", "rn", "st", "ck", "lt"]
_ATTRIBUTE_KINDS = {
    **dict.fromkeys(("height", "weight", "length", "number", "pin", "plate"), "number"),
    **dict.fromkeys(("price", "age", "size", "rank", "score"), "small"),
    **dict.fromkeys(("owner", "maker", "friend", "name", "nickname"), "person"),
    **dict.fromkeys(("origin", "address", "goal", "hometown", "stop"), "place"),
    "colour": "colour",
    "code": "code",
    "password": "word",
    "date": "day",
}
_ANY = ("word", "word", "number", "small", "person", "place", "code", "colour", "item", "title")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def is_held_out(text: str) -> bool:
    """Whether training must never see `text` as a value, a key or a wording."""
    return zlib.crc32(text.lower().encode()) % _HELD_OUT_ONE_IN == 0


def is_for_training(text: str) -> bool:
    return not is_held_out(text)


@lru_cache(maxsize=4096)
def _part(options: tuple[str, ...], allows: Callable[[str], bool]) -> tuple[str, ...]:
    """Those of `options` that are allowed; all where none or only one is, as in closed classes."""
    kept = tuple(option for option in options if allows(option))
    return kept or options


class Lexicon:
    """Draws values of a kind. `allows` decides which of the open classes it may use, `known_share`
    how many of the wordings are nevertheless those of training."""

    def __init__(self, allows: Callable[[str], bool], known_share: float = 0.75) -> None:
        self.allows, self.known_share = allows, known_share
        self._makers: dict[str, Callable[[Random], str]] = {
            "person": self.person,
            "pet": self.pet,
            "place": self.place,
            "item": lambda rng: self.noun(rng, words.ITEMS),
            "food": lambda rng: self.noun(rng, words.FOODS),
            "animal": lambda rng: self.noun(rng, words.ANIMALS),
            "job": lambda rng: self.noun(rng, words.JOBS),
            "hobby": lambda rng: self.noun(rng, words.HOBBIES),
            "instrument": lambda rng: rng.choice(words.INSTRUMENTS),
            "colour": lambda rng: rng.choice(words.COLOURS),
            "day": lambda rng: rng.choice(words.DAYS),
            "month": lambda rng: rng.choice(words.MONTHS),
            "number": self.number,
            "small": lambda rng: str(rng.randint(2, 40)),
            "age": lambda rng: str(rng.randint(5, 95)),
            "year": lambda rng: self._until(lambda: str(rng.randint(1900, 2040))),
            "time": lambda rng: self._until(
                lambda: (
                    f"{rng.randint(6, 23)}:{rng.choice(('00', '05', '10', '15', '20', '30', '35', '40', '45', '50'))}"
                )
            ),
            "code": self.code,
            "word": self.word,
            "title": self.title,
            "object": self.thing,
            "site": lambda rng: f"{rng.choice(words.SIDES)} {rng.choice(words.SITES)}",
            "spot": self.spot,
            "venue": lambda rng: rng.choice(words.VENUES),
            "event": lambda rng: rng.choice(words.EVENTS),
            "relative": lambda rng: rng.choice(words.RELATIVES),
            "order": lambda rng: self._until(lambda: str(rng.randint(100, 99999))),
            "any": self.anything,
            "attribute": self.attribute,
            "my attribute": self.my_attribute,
            "me": lambda _: "me",
            "pet kind": lambda rng: rng.choice(
                ("dog", "cat", "horse", "parrot", "rabbit", "hamster", "turtle", "goldfish")
            ),
            "favourite": lambda rng: rng.choice(
                ("book", "song", "game", "film", "band", "place", "word", "flower", "drink")
            ),
            "numbered": lambda rng: rng.choice(
                ("locker", "room", "desk", "bus", "seat", "house", "ticket", "phone", "table")
            ),
            "vehicle": lambda rng: rng.choice(
                ("car", "bike", "boat", "van", "house", "jacket", "front door")
            ),
            "own thing": lambda rng: rng.choice(
                (
                    "key",
                    "phone",
                    "wallet",
                    "bag",
                    "notebook",
                    "umbrella",
                    "passport",
                    "laptop",
                    "hat",
                )
            ),
            "appointment": lambda rng: rng.choice(
                (
                    "exam",
                    "dentist visit",
                    "birthday",
                    "flight",
                    "interview",
                    "piano lesson",
                    "meeting",
                )
            ),
            "goods": lambda rng: f"{rng.randint(2, 60)} {plural(self.noun(rng, words.ITEMS))}",
        }

    def draw(self, rng: Random, kind: str) -> str:
        return self._makers[kind](rng)

    @property
    def is_training(self) -> bool:
        return self.allows is is_for_training

    def of(self, rng: Random, options: tuple[str, ...], more: tuple[str, ...] = ()) -> str:
        """One of `options` that may be used; training draws from `more`, too."""
        if more and self.is_training:
            options += more
        return rng.choice(_part(options, self.allows))

    def noun(self, rng: Random, options: tuple[str, ...]) -> str:
        """One of these, or sometimes a word that only looks like one: what is to be copied is not
        always known."""
        if rng.random() < 0.15:
            return self._until(lambda: _blended(rng, options))
        return self.of(rng, options)

    def wording(self, rng: Random, options: tuple[str, ...], more: tuple[str, ...] = ()) -> str:
        """A way of asking or telling. Evaluation mixes a quarter of new ones with those of training
        and knows nothing of `more`, but for those that are to be all new."""
        if self.allows is is_held_out and rng.random() < self.known_share:
            return rng.choice(_part(options, is_for_training))
        if not self.known_share:
            options += more
        return self.of(rng, options, more)

    def _until(self, make: Callable[[], str]) -> str:
        while not self.allows(text := make()):
            pass
        return text

    def invented(self, rng: Random) -> str:
        """A word that is in no list: mostly one that can be spoken."""
        return self._until(lambda: _random_letters(rng) if rng.random() < 0.12 else _syllables(rng))

    def person(self, rng: Random) -> str:
        roll = rng.random()
        if roll < 0.55:
            return self.noun(rng, words.NAMES)
        # Training meets more of those with two names: the second is easily dropped.
        if roll < (0.8 if self.is_training else 0.9):
            return self.invented(rng).capitalize()
        return f"{self.of(rng, words.NAMES)} {self.invented(rng).capitalize()}"

    def pet(self, rng: Random) -> str:
        roll = rng.random()
        if roll < 0.4:
            return self.of(rng, words.PETS)
        if roll < 0.5:
            return self.of(rng, words.NAMES)
        made = self.invented(rng)
        return made if roll < 0.65 else made.capitalize()

    def place(self, rng: Random) -> str:
        return (
            self.noun(rng, words.PLACES) if rng.random() < 0.6 else self.invented(rng).capitalize()
        )

    def number(self, rng: Random) -> str:
        return self._until(lambda: str(rng.randint(100, 10 ** rng.randint(3, 5) - 1)))

    def code(self, rng: Random) -> str:
        return self._until(lambda: _code(rng))

    def word(self, rng: Random) -> str:
        roll = rng.random()
        if roll < 0.35:
            return self.noun(rng, words.PLAIN)
        if roll < 0.85:
            return self.invented(rng)
        return f"{self.of(rng, words.PLAIN)} {self.of(rng, words.ITEMS)}"

    def anything(self, rng: Random) -> str:
        return self.draw(rng, rng.choice(_ANY))

    def value_of(self, rng: Random, attribute: str) -> str:
        """What an attribute may be: a colour for "colour of the lamp", anything for most."""
        parts = attribute.split()
        kind = _ATTRIBUTE_KINDS.get(parts[0]) or _ATTRIBUTE_KINDS.get(parts[-1])
        return self.draw(rng, kind or rng.choice(_ANY))

    def attribute(self, rng: Random) -> str:
        """ "height of the tower"."""
        owner = self.noun(rng, words.ITEMS + words.ANIMALS + words.PLAIN)
        return f"{rng.choice(words.ATTRIBUTES)} of the {owner}"

    def my_attribute(self, rng: Random) -> str:
        if rng.random() < 0.6:
            return rng.choice(words.MY_ATTRIBUTES)
        return f"{self.of(rng, words.ITEMS + words.PLAIN)} {rng.choice(words.ATTRIBUTES)}"

    def title(self, rng: Random) -> str:
        noun = self.of(rng, words.PLAIN).capitalize()
        if rng.random() < 0.4:
            return self.invented(rng).capitalize()
        return f"{rng.choice(words.COLOURS).capitalize()} {noun}"

    def thing(self, rng: Random) -> str:
        item = self.noun(rng, words.ITEMS)
        roll = rng.random()
        if roll < 0.35:
            return item
        return f"{rng.choice(words.COLOURS if roll < 0.6 else words.ADJECTIVES)} {item}"

    def spot(self, rng: Random) -> str:
        roll = rng.random()
        if roll < 0.6:
            return f"in the {rng.choice(words.COLOURS + words.ADJECTIVES)} {rng.choice(words.CONTAINERS)}"
        if roll < 0.85:
            return f"in the {rng.choice(words.ROOMS)}"
        return f"{rng.choice(('under', 'behind', 'next to'))} the {self.of(rng, words.ITEMS)}"


def _syllables(rng: Random) -> str:
    num = 2 if rng.random() < 0.75 else 3
    text = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(num))
    return text + rng.choice(_CODAS)


def _blended(rng: Random, options: tuple[str, ...]) -> str:
    """The head of one word on the tail of another."""
    head, tail = rng.choice(options), rng.choice(options)
    return (
        head[: rng.randint(2, max(2, len(head) - 1))]
        + tail[-rng.randint(2, max(2, len(tail) - 2)) :].lower()
    )


def _random_letters(rng: Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(3, 7)))


def _code(rng: Random) -> str:
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    roll = rng.random()
    if roll < 0.5:
        return f"{rng.choice(letters)}{rng.randint(1, 9)}-{rng.randint(10, 99)}"
    if roll < 0.75:
        return f"{rng.choice(letters)}{rng.choice(letters)}{rng.randint(10, 999)}"
    return f"{rng.randint(10, 99)}-{rng.choice(letters)}-{rng.randint(10, 99)}"


_IRREGULAR = {"knife": "knives", "shelf": "shelves"}


def plural(noun: str) -> str:
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


TRAINING = Lexicon(is_for_training)
HELD_OUT = Lexicon(is_held_out)
UNSEEN = Lexicon(is_held_out, known_share=0.0)  # no wording that training met, where there is one
