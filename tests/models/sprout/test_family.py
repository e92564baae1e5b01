"""What is told at once is asked for one by one, by every name it goes by."""

from __future__ import annotations

import random

import pytest

from models.sprout import family
from models.sprout.chat import Chat, Turn
from models.sprout.check import holds
from models.sprout.lexicon import HELD_OUT, TRAINING, Lexicon
from models.sprout.turns import corrected_turn, direct_turn

LEXICONS = pytest.mark.parametrize("lexicon", [TRAINING, HELD_OUT], ids=["training", "held out"])


def told(maker: object, seed: int, lexicon: Lexicon) -> tuple[Chat, Turn]:
    """A conversation in which something was told by `maker`."""
    chat = Chat.empty(random.Random(f"family-{seed}"), lexicon, 300)
    turn = None
    while turn is None:
        turn = maker(chat)  # type: ignore[operator]
    chat.say(turn.user, turn.answer)
    return chat, turn


@LEXICONS
@pytest.mark.parametrize(
    "maker", [family.pair_turn, family.of_one_turn, family.relative_turn, family.met_turn]
)
def test_every_fact_stands_in_what_was_said(maker: object, lexicon: Lexicon) -> None:
    for seed in range(60):
        chat, turn = told(maker, seed, lexicon)
        assert chat.book.facts
        for fact in chat.book.facts:
            assert holds(turn.user, fact.value)
            question = direct_turn(chat, fact)
            assert holds(question.answer, fact.value)
            assert question.values == (fact.value,)


def test_two_facts_stand_in_one_sentence() -> None:
    for seed in range(60):
        chat, turn = told(family.pair_turn, seed, TRAINING)
        assert len(chat.book.facts) in (2, 3)
        assert len({fact.text for fact in chat.book.facts}) == 1
        assert " and " in turn.user


def test_named_relative_is_known_by_name_and_as_relative() -> None:
    num_named = 0
    for seed in range(80):
        chat, turn = told(family.relative_turn, seed, TRAINING)
        if len(chat.book.facts) == 3:
            named, known, by_name = chat.book.facts
            assert named.value == by_name.subject
            assert known.value == by_name.value
            assert holds(turn.user, f"my {known.subject}")
            assert holds(turn.user, named.value)
            assert f"my {known.subject}" in family.FAMILY[by_name.relation].asks[0].format(
                s=known.subject
            )
            num_named += 1
    assert num_named > 30


def test_what_goes_by_two_names_is_never_taken_back() -> None:
    """Else one of them would keep the old value."""
    num_named = 0
    for seed in range(40):
        chat, _ = told(family.relative_turn, seed, TRAINING)
        if len(chat.book.facts) == 3:
            assert corrected_turn(chat) is None
            num_named += 1
    assert num_named > 10
