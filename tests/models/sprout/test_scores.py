"""A short look at what sprout can do; `python -m models.sprout.eval` takes the full one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from models.sprout.eval import SUITES, Generate, Suite, generating, score
from models.sprout.tokenizer import FOLDER, load

NUM_SAMPLES = 12
# Of 12 samples three may be wrong: a model that gets 95% right fails this in 2 of 1,000 draws.
LEAST = 0.75
SHORT = [suite for suite in SUITES if suite.name not in ("recall_3000", "world", "unseen_rule")]


@pytest.fixture(scope="module")
def generate() -> Iterator[Generate]:
    with generating(FOLDER) as made:
        yield made


@pytest.mark.parametrize("suite", SHORT, ids=lambda suite: suite.name)
def test_held_out_questions_are_answered(suite: Suite, generate: Generate) -> None:
    found = score(suite, generate, load(FOLDER), num_samples=NUM_SAMPLES)
    assert found.right >= LEAST, "\n\n".join(found.wrong)
