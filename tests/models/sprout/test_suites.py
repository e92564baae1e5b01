"""The suites stay the samples that the model card's scores were made with, whatever training learns
beside them."""

from __future__ import annotations

import random
import re
import zlib

import pytest

from models.sprout import more, personas, rules, talk
from models.sprout.eval import SUITES, Suite, held_out
from models.sprout.lexicon import HELD_OUT, is_held_out
from models.sprout.render import spans, text_of
from models.sprout.samples import Sample, make_sample

# Change one only where a suite is meant to change, and then take its score anew.
FINGERPRINTS = {
    "recall_300": 0xE19CF9EC,
    "recall_1000": 0x89982844,
    "recall_3000": 0x21038F66,
    "tool": 0xB719315E,
    "tool_result": 0x4AB43CCC,
    "rule": 0xF9CDAA03,
    "absent": 0x7403D6BD,
    "arithmetic": 0xB864C8E8,
    "persona": 0xA43A7E19,
    "smalltalk": 0x0A81F603,
    "world": 0xE44E1CC8,
    "rules": 0x23EA6BF3,
    "pairs": 0x5A1BBCE6,
    "unseen_rule": 0xD43657D2,
}


def shown(sample: Sample) -> str:
    return text_of(spans(sample.messages, sample.tools, sample.is_thinking))


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_suite_holds_the_samples_it_was_scored_with(suite: Suite) -> None:
    samples = held_out(suite, num_samples=8)
    assert zlib.crc32(repr(samples).encode()) == FINGERPRINTS[suite.name]


def as_pattern(wording: str) -> str:
    """Matches the wording with anything in its holes."""
    return re.sub(r"\\{\w+\\}", ".{1,40}?", re.escape(wording))


def test_held_out_rules_are_never_trained() -> None:
    wordings = [w for part in (*rules._WORDINGS.values(), rules.BRIEF, rules._TABOO) for w in part]
    patterns = [re.compile(as_pattern(w)) for w in wordings if is_held_out(w)]
    assert len(patterns) > 5
    for i in range(300):
        kind = ("rule", "rules")[i % 2]
        text = shown(make_sample(random.Random(f"suites-{i}"), 200, kind))
        assert not any(pattern.search(text) for pattern in patterns)


def test_held_out_questions_of_small_talk_and_personas_are_never_trained() -> None:
    asks = [ask for intent in talk.INTENTS for ask in intent.asks]
    asks += [*personas._NAME_ASKS, *personas._GREETINGS, *personas._PET_ASKS]
    wordings = {ask.lower() for ask in asks if is_held_out(ask)}
    assert len(wordings) > 10
    for i in range(300):
        sample = make_sample(random.Random(f"suites-{i}"), 200, ("smalltalk", "persona")[i % 2])
        said = {str(m["content"]).lower() for m in sample.messages if m["role"] == "user"}
        assert not said & wordings


def test_suites_know_nothing_of_the_wordings_for_training() -> None:
    """Neither rules nor questions; a few words alone say too little to be told apart."""
    own = {ask for intent in talk.INTENTS for ask in intent.asks}
    tables = [*more.RULES.values(), more.BRIEF, more.CAPITALS, more.REPLACING, more.SECRET]
    tables += [more.TABOO, more.PERSONA_PROMPTS, more.NAME_ASKS, *more.TALK.values()]
    wordings = {w for part in tables for w in part if len(w) > 24} - own
    patterns = [re.compile(as_pattern(wording)) for wording in wordings]
    for suite in SUITES:
        is_wordy = suite.kind in ("rule", "rules", "persona", "smalltalk")
        if is_wordy and suite.lexicon is HELD_OUT:
            for sample in held_out(suite, num_samples=25):
                text = shown(sample)
                assert [p.pattern for p in patterns if p.search(text)] == []


def test_unseen_rules_stand_in_no_wording_of_training() -> None:
    (suite,) = [suite for suite in SUITES if suite.name == "unseen_rule"]
    tables = [rules._WORDINGS["ends"], rules._WORDINGS["begins"], rules.BRIEF]
    tables += [more.RULES["ends"], more.RULES["begins"], more.BRIEF]
    wordings = [wording for part in tables for wording in part]
    trained = [re.compile(f"^{as_pattern(w)}$", re.M) for w in wordings if not is_held_out(w)]
    unseen = [re.compile(f"^{as_pattern(w)}$", re.M) for w in wordings if is_held_out(w)]
    num_unseen = 0
    for sample in held_out(suite, num_samples=60):
        system = str(sample.messages[0]["content"])
        num_unseen += any(pattern.search(system) for pattern in unseen)
        assert [p.pattern for p in trained if p.search(system)] == []
    assert num_unseen > 15
