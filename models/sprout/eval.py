"""Scores on held-out samples: values, names and numbers that training never saw.

    python -m models.sprout.eval [--model FOLDER] [--suite NAME ...] [--num 100] [--show 3]

The suites and `reply_of` need no model library: training runs the same suites in torch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from models.sprout.check import holds, read_calls
from models.sprout.encode import prompt_ids
from models.sprout.lexicon import HELD_OUT, UNSEEN, Lexicon
from models.sprout.samples import Sample, is_right, make_sample
from models.sprout.tokenizer import FOLDER, load

MAX_REPLY_LEN = 160  # tokens, thought included; what has not ended by then is wrong


@dataclass(frozen=True)
class Suite:
    """`length` is that of the whole conversation; a `distance` asks for facts that far back."""

    name: str
    kind: str
    length: int
    wanted: float  # the share that the model must reach
    distance: tuple[int, int] | None = None
    num_samples: int = 150
    lexicon: Lexicon = HELD_OUT


SUITES = (
    Suite("recall_300", "recall", 360, 0.95),
    Suite("recall_1000", "recall", 1300, 0.95, (850, 1250)),
    Suite("recall_3000", "recall", 3500, 0.90, (2700, 3400)),
    Suite("tool", "tool", 500, 0.95),
    Suite("tool_result", "tool_result", 500, 0.95),
    Suite("rule", "rule", 400, 0.95),
    Suite("absent", "absent", 600, 0.90),
    Suite("arithmetic", "arithmetic", 200, 0.90),
    Suite("persona", "persona", 300, 0.95),
    Suite("smalltalk", "smalltalk", 150, 0.95),
    Suite("world", "world", 200, 0.90),
    Suite("rules", "rules", 300, 0.90),
    Suite("pairs", "pairs", 300, 0.90),
    Suite("unseen_rule", "rule", 400, 0.90, lexicon=UNSEEN),  # every rule in a new wording
)


def held_out(suite: Suite, seed: int = 0, num_samples: int | None = None) -> list[Sample]:
    """The samples of a suite; the same for the same seed."""
    wanted = num_samples or suite.num_samples
    samples: list[Sample] = []
    index = 0
    while len(samples) < wanted:
        rng = Random(f"held-out-{seed}-{suite.name}-{index}")
        sample = make_sample(rng, suite.length, suite.kind, suite.lexicon)
        index += 1
        if suite.distance is None or _is_told_once(sample, suite.distance):
            samples.append(sample)
    return samples


def _is_told_once(sample: Sample, distance: tuple[int, int]) -> bool:
    """Whether the fact lies that far back, and no later answer says its value again."""
    far = sample.distance_tokens
    if far is None or not distance[0] <= far <= distance[1]:
        return False
    contents = [str(message["content"]) for message in sample.messages[:-1]]
    return all(sum(holds(text, value) for text in contents) == 1 for value in sample.accepts.values)


def reply_of(text: str, is_thinking: bool) -> tuple[str, list[tuple[str, str]]] | None:
    """Content and calls of a reply as the model made it, up to its end. None where a thought was
    not closed or a call is not well formed."""
    text = text.split("<|im_end|>", maxsplit=1)[0]
    if is_thinking:
        _, closed, text = text.partition("</think>")
        if not closed:
            return None
    try:
        return read_calls(text.strip())
    except ValueError:
        return None


def is_right_text(sample: Sample, text: str) -> bool:
    """Whether what the model made behind the generation prompt is right."""
    reply = reply_of(text, sample.is_thinking)
    return reply is not None and is_right(sample, *reply)


# From prompts' ids to the texts made behind them, tags and `<|im_end|>` included.
Generate = Callable[[Sequence[Sequence[int]]], Iterable[str]]


@dataclass(frozen=True)
class Score:
    """`right` counts replies that hold what was asked for and keep every rule of their
    conversation, `held` those that hold it."""

    right: float
    held: float
    wrong: list[str]  # with what was wanted


def score(suite: Suite, generate: Generate, tokenizer: Any, **kwargs: Any) -> Score:
    """How many of a suite's replies are right."""
    samples = held_out(suite, **kwargs)
    prompts = [prompt_ids(sample, tokenizer).tolist() for sample in samples]
    wrong, num_held = [], 0
    for sample, text in zip(samples, generate(prompts)):
        without_rules = replace(sample, accepts=replace(sample.accepts, checks=()))
        num_held += is_right_text(without_rules, text)
        if not is_right_text(sample, text):
            wrong.append(_shown(sample, text))
    return Score(1 - len(wrong) / len(samples), num_held / len(samples), wrong)


def _shown(sample: Sample, text: str) -> str:
    last, asked = sample.messages[-1], sample.messages[-2]
    wanted = last["content"] or json.dumps([c["function"] for c in last.get("tool_calls", ())])
    return f"asked  {str(asked['content'])[-160:]!r}\nmade   {text!r}\nwanted {wanted!r}"


@contextmanager
def generating(folder: Path) -> Iterator[Generate]:
    """Greedy replies by keepwarm's own engine, many at a time."""
    from keepwarm import Engine, Prompt, Request
    from keepwarm import load as load_model

    with Engine(lambda: load_model(str(folder))) as engine:
        engine.wait_ready()

        def reply(prompt: Sequence[int]) -> str:
            result = engine.stream(Request(Prompt(list(prompt)), MAX_REPLY_LEN)).result
            return str(result.text)

        def generate(prompts: Sequence[Sequence[int]]) -> list[str]:
            with ThreadPoolExecutor(16) as pool:
                return list(pool.map(reply, prompts))

        yield generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--suite", nargs="*", choices=[suite.name for suite in SUITES])
    parser.add_argument("--num", type=int, help="samples of each suite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="how many wrong replies to print")
    args = parser.parse_args()
    tokenizer = load(args.model)
    with generating(args.model) as generate:
        for suite in SUITES:
            if not args.suite or suite.name in args.suite:
                _print_score(suite, generate, tokenizer, args)


def _print_score(
    suite: Suite, generate: Generate, tokenizer: Any, args: argparse.Namespace
) -> None:
    begun = time.monotonic()
    found = score(suite, generate, tokenizer, seed=args.seed, num_samples=args.num)
    took_s = time.monotonic() - begun
    held = f", {found.held:.1%} without its rules" if suite.name.startswith("recall") else ""
    sys.stdout.write(
        f"{suite.name:12} {found.right:6.1%} (wanted {suite.wanted:.0%}){held}, {took_s:.0f} s\n"
    )
    for text in found.wrong[: args.show]:
        sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
