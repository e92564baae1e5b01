"""What the generator promises: every sample can be answered from its own text, its own reply is
right, another is wrong, and evaluation never meets what training saw."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models.sprout.check import holds
from models.sprout.encode import encode
from models.sprout.eval import SUITES, held_out, is_right_text, reply_of, score
from models.sprout.lexicon import HELD_OUT, TRAINING, is_held_out
from models.sprout.render import spans, text_of
from models.sprout.samples import KINDS, Sample, is_right, make_sample
from models.sprout.tokenizer import load
from models.sprout.words import COLOURS, DAYS, MONTHS

TOKENIZER = load()


def made(kind: str, length: int, num: int, lexicon: Any = TRAINING) -> list[Sample]:
    return [
        make_sample(random.Random(f"test-{kind}-{length}-{i}"), length, kind, lexicon)
        for i in range(num)
    ]


def told(sample: Sample) -> str:
    """What others than the model said."""
    return "\n".join(str(m["content"]) for m in sample.messages if m["role"] != "assistant")


@pytest.mark.parametrize("kind", KINDS)
def test_own_reply_is_right(kind: str) -> None:
    for lexicon in (TRAINING, HELD_OUT):
        for sample in made(kind, 350, 40, lexicon):
            last = sample.messages[-1]
            assert is_right(sample, last["content"], last.get("tool_calls", ()))
            raw = spans(sample.messages, sample.tools, sample.is_thinking)[-2][0]
            assert is_right_text(sample, raw)


@pytest.mark.parametrize("kind", ["recall", "persona", "arithmetic", "tool_result", "rule"])
def test_wrong_value_is_wrong(kind: str) -> None:
    num_changed = 0
    for sample in made(kind, 350, 60):
        for value in sample.accepts.values:
            content = sample.messages[-1]["content"]
            changed = re.sub(re.escape(value), "Quxley", content, flags=re.IGNORECASE)
            assert not is_right(sample, changed)
            num_changed += 1
    assert num_changed > 20


def test_value_of_another_fact_is_wrong() -> None:
    for sample in made("recall", 350, 60):
        content = sample.messages[-1]["content"]
        for other in sample.accepts.rejects[:5]:
            assert not is_right(sample, f"{content} {other}.")


@pytest.mark.parametrize("kind", ["absent", "world"])
def test_knowing_what_nobody_told_is_wrong(kind: str) -> None:
    assert not any(is_right(sample, "It is Lund.") for sample in made(kind, 350, 30))


def test_broken_rule_is_wrong() -> None:
    num_plain = 0
    for sample in made("rule", 350, 80):
        values = " ".join(sample.accepts.values)
        if {what for what, _ in sample.accepts.checks} & {"ends", "begins", "mentions", "wraps"}:
            assert not is_right(sample, f"The answer is {values}, I do not know more, hello.")
            num_plain += 1
    assert num_plain > 20


def test_call_with_another_name_or_argument_is_wrong() -> None:
    for sample in made("tool", 350, 60):
        calls = json.loads(json.dumps(sample.messages[-1].get("tool_calls", [])))
        if not calls:
            assert not is_right(sample, "", [("get_weather", {"city": "Lund"})])
            continue
        assert not is_right(sample, "")
        function = calls[0]["function"]
        function["arguments"] = dict(function["arguments"], extra=1)
        assert not is_right(sample, "", calls)
        function["name"] += "x"
        assert not is_right(sample, "", calls)


def test_reply_with_open_thought_or_broken_call_is_none() -> None:
    assert reply_of("I think", True) is None
    assert reply_of('a\n</think>\n\n<tool_call>\n{"name": "f"\n</tool_call>', True) is None
    assert reply_of("a\n</think>\n\nHello.<|im_end|>", True) == ("Hello.", [])


@pytest.mark.parametrize("lexicon", [TRAINING, HELD_OUT], ids=["training", "held out"])
def test_recalled_value_stands_in_the_context(lexicon: Any) -> None:
    for sample in made("recall", 500, 120, lexicon):
        text = told(sample)
        number = {"first": "1.", "second": "2.", "third": "3.", "fourth": "4.", "fifth": "5."}
        number |= {"sixth": "6.", "seventh": "7.", "eighth": "8.", "ninth": "9.", "tenth": "10."}
        for value in sample.accepts.values:
            assert holds(text, value) or number.get(value, "no number") in text, (value, text)


def test_thought_quotes_the_source() -> None:
    num_quotes = 0
    for sample in made("recall", 350, 60):
        thought = sample.messages[-1].get("reasoning_content")
        if thought and sample.accepts.values and sample.messages[-1]["content"]:
            values = [v for v in sample.accepts.values if holds(thought, v)]
            num_quotes += bool(values)
    assert num_quotes > 25


def test_one_key_has_one_value_unless_it_was_corrected() -> None:
    for sample in made("recall", 800, 25):
        texts = [str(m["content"]) for m in sample.messages if m["role"] in ("system", "user")]
        if any(re.search(r"Actually|I was wrong|Correction|has changed", text) for text in texts):
            continue
        homes: dict[str, str] = {}
        for who, where in re.findall(r"(\w[\w ]*?) lives in (\w+)\.", " ".join(texts)):
            assert homes.setdefault(who.strip(), where) == where


@pytest.mark.parametrize("length", [128, 256, 512, 1024, 3000])
def test_samples_are_about_as_long_as_wanted(length: int) -> None:
    num_samples = 200 if length < 1000 else 12
    lengths = [
        len(encode(make_sample(random.Random(f"train-7-{i}"), length), TOKENIZER)[0])
        for i in range(num_samples)
    ]
    assert max(lengths) <= length * 1.1
    assert sum(lengths) / num_samples > length * 0.6


def test_same_seed_gives_the_same_sample() -> None:
    one, other = (make_sample(random.Random("train-0-5"), 600) for _ in range(2))
    assert one == other
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301


def test_sample_does_not_depend_on_hashes() -> None:
    code = (
        "import random, zlib; from models.sprout.samples import make_sample;"
        "print(zlib.crc32(repr([make_sample(random.Random(f'train-0-{i}'), 300)"
        " for i in range(40)]).encode()))"
    )
    root = Path(__file__).parents[3]
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_held_out_values_are_never_trained() -> None:
    trained = [s for kind in ("recall", "tool_result") for s in made(kind, 500, 120)]
    text = "\n".join(text_of(spans(s.messages, s.tools, s.is_thinking)) for s in trained)
    spoken = set(re.findall(r"[A-Z][a-z]+|[A-Z]\d-\d\d", text))
    spoken -= {word.capitalize() for word in (*COLOURS, *DAYS, *MONTHS)}  # few, and in both
    for sample in made("recall", 500, 60, HELD_OUT):
        for value in sample.accepts.values:
            if re.fullmatch(r"[A-Z][a-z]{3,}|[A-Z]\d-\d\d", value) and is_held_out(value):
                assert value not in spoken


def test_score_counts_right_replies() -> None:
    suite = next(suite for suite in SUITES if suite.name == "tool")
    samples = held_out(suite, num_samples=10)
    golds = [spans(s.messages, s.tools, s.is_thinking)[-2][0] for s in samples]
    found = score(suite, lambda _: golds, TOKENIZER, num_samples=10)
    assert (found.right, found.wrong) == (1.0, [])
    half = [*golds[:5], *(["Hello.\n</think>\n\nHello."] * 5)]
    found = score(suite, lambda _: half, TOKENIZER, num_samples=10)
    assert (found.right, len(found.wrong)) == (0.5, 5)


def test_suites_have_the_distance_they_name() -> None:
    for suite in SUITES:
        if suite.distance is None:
            continue
        for sample in held_out(suite, num_samples=2):
            ids, _ = encode(sample, TOKENIZER)
            assert len(ids) > suite.distance[0]
            nearest, farthest = suite.distance
            assert nearest <= (sample.distance_tokens or 0) <= farthest
            later = "\n".join(str(m["content"]) for m in sample.messages[2:-1])
            assert not any(holds(later, value) for value in sample.accepts.values)
