"""What a trained model can do, in torch: the held-out suites, and dialogues to judge by eye."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from models.sprout.encode import prompt_ids
from models.sprout.eval import MAX_REPLY_LEN, SUITES, is_right_text
from models.sprout.samples import KINDS, Sample, make_sample

if TYPE_CHECKING:
    from models.sprout.train import Trainer

NUM_SHOWN = 16
TAIL_CHARS = 500


def report(trainer: Trainer) -> None:
    """Score every suite on its held-out samples, then show some replies."""
    for suite in SUITES:
        probe = trainer.feed.probe(suite.name)
        texts = trainer.reply(probe.prompts, MAX_REPLY_LEN)
        rights = [is_right_text(sample, text) for sample, text in zip(probe.samples, texts)]
        trainer.log.note(
            "suite",
            suite=suite.name,
            score=sum(rights) / len(rights),
            wanted=suite.wanted,
            samples=len(rights),
            mean_len=round(sum(map(len, probe.prompts)) / len(rights)),
        )
        for i in [i for i, is_right in enumerate(rights) if not is_right][:2]:
            _show(trainer, "wrong", probe.samples[i], probe.prompts[i], texts[i])
    _show_some(trainer)


def _show_some(trainer: Trainer) -> None:
    rng = random.Random(f"shown-{trainer.args.seed}")
    kinds = [*KINDS, *rng.choices(list(KINDS), k=NUM_SHOWN)][:NUM_SHOWN]
    samples = [make_sample(rng, rng.choice((250, 400, 800)), kind) for kind in kinds]
    prompts = [prompt_ids(sample, trainer.tokenizer) for sample in samples]
    for sample, prompt, text in zip(samples, prompts, trainer.reply(prompts, MAX_REPLY_LEN)):
        _show(trainer, "shown", sample, prompt, text)


def _show(trainer: Trainer, label: str, sample: Sample, prompt: Any, text: str) -> None:
    tail = trainer.tokenizer.decode(prompt.tolist(), skip_special_tokens=False)[-TAIL_CHARS:]
    verdict = "right" if is_right_text(sample, text) else "WRONG"
    wants = sample.messages[-1].get("content") or sample.accepts.calls
    trainer.log.say(
        f"--- {label}: {sample.kind}, {len(prompt)} tokens, {verdict}; wants {wants!r}\n"
        f"…{tail}⟶{text}"
    )
