"""What a trained model can do, in torch: the held-out suites, and dialogues to judge by eye."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from models.sprout.check import read_calls
from models.sprout.encode import prompt_ids
from models.sprout.samples import KINDS, Sample, is_right, make_sample

if TYPE_CHECKING:
    from models.sprout.train import Trainer

SUITES = [
    ("recall-1000", "recall", 1000),
    ("recall-3000", "recall", 3000),
    ("absent-1000", "absent", 1000),
    *((f"{kind}-500", kind, 500) for kind in KINDS if kind not in ("recall", "absent")),
]
MAX_NEW_TOKENS = 160
NUM_SHOWN = 16
TAIL_CHARS = 500


def is_right_reply(sample: Sample, text: str) -> bool:
    """Judge a raw reply: the thought must be closed, the calls well formed, the content right."""
    if sample.is_thinking:
        _, mark, text = text.partition("</think>")
        if not mark:
            return False
    try:
        content, calls = read_calls(text)
    except ValueError:
        return False
    return is_right(sample, content.strip(), calls)


def report(trainer: Trainer, num_samples: int) -> None:
    """Score every suite on held-out seeds, then show some replies."""
    for name, kind, length in SUITES:
        rng = random.Random(f"held-out-{trainer.args.seed}-{name}")
        samples = [make_sample(rng, length, kind) for _ in range(num_samples)]
        prompts = [prompt_ids(sample, trainer.tokenizer) for sample in samples]
        texts = trainer.reply(prompts, MAX_NEW_TOKENS)
        rights = [is_right_reply(sample, text) for sample, text in zip(samples, texts)]
        wrong = [i for i, right in enumerate(rights) if not right]
        trainer.log.note(
            "suite",
            suite=name,
            score=sum(rights) / len(rights),
            samples=len(rights),
            mean_len=round(sum(map(len, prompts)) / len(prompts)),
        )
        for i in wrong[:2]:
            _show(trainer, "wrong", samples[i], prompts[i], texts[i])
    _show_some(trainer)


def _show_some(trainer: Trainer) -> None:
    rng = random.Random(f"held-out-{trainer.args.seed}-shown")
    kinds = [*KINDS, *rng.choices(list(KINDS), k=NUM_SHOWN)][:NUM_SHOWN]
    samples = [make_sample(rng, rng.choice((250, 400, 800)), kind) for kind in kinds]
    prompts = [prompt_ids(sample, trainer.tokenizer) for sample in samples]
    for sample, prompt, text in zip(samples, prompts, trainer.reply(prompts, MAX_NEW_TOKENS)):
        _show(trainer, "shown", sample, prompt, text)


def _show(trainer: Trainer, label: str, sample: Sample, prompt: Any, text: str) -> None:
    tail = trainer.tokenizer.decode(prompt.tolist(), skip_special_tokens=False)[-TAIL_CHARS:]
    verdict = "right" if is_right_reply(sample, text) else "WRONG"
    wanted = sample.accepts
    trainer.log.say(
        f"--- {label}: {sample.kind}, {len(prompt)} tokens, {verdict}; wants {wanted.values} "
        f"{wanted.any_of} {wanted.checks} {wanted.calls}\n…{tail}⟶{text}"
    )
