"""Train sprout: `python -m models.sprout.train --help`. One process owns the accelerator, the
others make data; see README.md beside this file for the commands that made the shipped weights."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch
from torch.nn import functional

from models.sprout import carry, checkpoint, decode, delta, net
from models.sprout.config import SPROUT, TINY, num_parameters
from models.sprout.curriculum import LENGTHS, Curriculum, Plan
from models.sprout.eval import SUITES, is_right_text
from models.sprout.feed import Batch, Feed, ProbeJob, load_tokenizer
from models.sprout.net import Sprout, initialize
from models.sprout.optimizer import Optimizer
from models.sprout.report import report

TOKENIZER_FOLDER = Path(__file__).parents[2] / "src" / "keepwarm" / "model" / "sprout"
PROBE_NEW_TOKENS = 96  # a brief thought and a short answer
QUICK_SAMPLES = 40


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=9.0, help="of training in this run")
    parser.add_argument("--total-minutes", type=float, help="of all runs: drives the schedule")
    parser.add_argument("--steps", type=int, help="stop after so many steps of this run")
    parser.add_argument("--resume", type=Path, help="a full checkpoint, or a folder of its parts")
    parser.add_argument("--init", type=Path, help="weights of an earlier run, to begin with")
    parser.add_argument("--init-tokenizer", type=Path, help="its tokenizer.json, if not the same")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--state", type=Path, default=Path.home() / "sprout" / "full.pt")
    parser.add_argument("--save-full", action="store_true", help="also full.part* into --out")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER_FOLDER)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a very small model, for smoke runs")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--max-uses", type=int, default=4, help="of one batch, if data runs short")
    parser.add_argument("--pass-mark", type=float, default=0.9)
    parser.add_argument("--never-force", action="store_true", help="lengthen by recall alone")
    parser.add_argument("--optimizer", choices=["muon", "adamw"], default="muon")
    parser.add_argument("--lr-scale", type=float, default=1.0)
    parser.add_argument("--decay-share", type=float, default=0.2, help="of the time, at the end")
    parser.add_argument("--compile", action="store_true", help="fuse the delta rule's small parts")
    parser.add_argument("--probe-every-s", type=float, default=12.0)
    parser.add_argument("--num-probes", type=int, default=128)
    parser.add_argument("--log-every-s", type=float, default=10.0)
    parser.add_argument("--save-every-s", type=float, default=60.0)
    parser.add_argument(
        "--sweep-s", type=float, default=0.0, help="first time every length so long"
    )
    parser.add_argument("--num-eval", type=int, default=150, help="samples of each suite, or 0")
    parser.add_argument("--suites-every-s", type=float, default=120.0, help="a quick look at them")
    args = parser.parse_args()
    args.total_minutes = args.total_minutes or args.minutes
    return args


class Log:
    """Lines for people on stdout, and the same figures as JSON lines in a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def note(self, event: str, **figures: Any) -> None:
        rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in figures.items()}
        self._file.write(json.dumps({"event": event, **rounded}, default=str) + "\n")
        self.say(f"{event:8} " + " ".join(f"{k}={_short(v)}" for k, v in rounded.items()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1000 else str(value)


class Trainer:
    """The loop and all that a checkpoint holds."""

    def __init__(self, args: argparse.Namespace, log: Log) -> None:
        self.args, self.log = args, log
        # Workers are forked, so they start before anything touches the accelerator.
        self.feed = Feed(
            args.seed,
            args.tokenizer,
            num_workers=args.workers,
            batch_tokens=args.batch_tokens,
            max_uses=args.max_uses,
        )
        for length in args.lengths:
            self.feed.ask_probe(ProbeJob(f"recall at {length}", args.num_probes, length))
        for suite in SUITES if args.num_eval else ():
            self.feed.ask_probe(ProbeJob(suite.name, args.num_eval))
        self.tokenizer, _, self.end_id = load_tokenizer(args.tokenizer)
        torch.set_float32_matmul_precision("high")
        shape = TINY if args.tiny else SPROUT
        dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
        self.model = Sprout(shape, dtype)
        initialize(self.model, args.seed)
        self.model.to(args.device)
        if self.tokenizer.get_vocab_size() > shape.vocab_size:
            raise ValueError(f"{self.tokenizer.get_vocab_size()} tokens > {shape.vocab_size}")
        self.optimizer = Optimizer(self.model, args.optimizer, args.lr_scale)
        plan = Plan(
            args.total_minutes * 60,
            tuple(args.lengths),
            args.pass_mark,
            decay_share=args.decay_share,
        )
        if args.never_force:
            plan = replace(plan, last_share=-1e9)
        self.curriculum = Curriculum(plan)
        self.step = self.num_tokens = 0
        self.before_s = 0.0  # training seconds of earlier runs
        self.started = time.perf_counter()
        if args.resume is not None:
            self._restore(checkpoint.load_full(args.resume))
        elif args.init is not None:
            self._begin_trained(args.init, args.init_tokenizer)
        log.note(
            "start",
            parameters=num_parameters(shape),
            torch=torch.__version__,
            elapsed_s=self.before_s,
            step=self.step,
            args=json.dumps(vars(args), default=str),
        )

    @property
    def elapsed_s(self) -> float:
        return self.before_s + time.perf_counter() - self.started

    def pick_length(self) -> int:
        rng = random.Random(f"length-{self.args.seed}-{self.feed.next_index}")
        return self.curriculum.pick_length(rng, self.elapsed_s)

    def learn(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """One step; returns loss and gradient norm without waiting for the device."""
        device = self.args.device
        ids = torch.from_numpy(batch.ids.astype(np.int32)).to(device, non_blocking=True).long()
        # Places whose next token is learned, as indices into the flattened (rows, length).
        places = np.flatnonzero(np.pad(batch.is_target[:, 1:], ((0, 0), (0, 1))))
        places_there = torch.from_numpy(places).to(device, non_blocking=True)
        hidden = self.model(ids).flatten(0, 1).index_select(0, places_there)
        wanted = ids.flatten().index_select(0, places_there + 1)
        loss = functional.cross_entropy(self.model.logits(hidden), wanted)
        loss.backward()
        norm = self.optimizer.step(self.curriculum.rate(self.elapsed_s, self.step))
        self.step += 1
        self.num_tokens += ids.numel()
        return loss.detach(), norm

    def run(self) -> None:
        args, log = self.args, self.log
        self.started = time.perf_counter()
        stop_s = min(self.before_s + args.minutes * 60, args.total_minutes * 60)
        last_step = None if args.steps is None else self.step + args.steps
        next_log = next_save = next_probe = self.elapsed_s
        next_suites = next_log + args.suites_every_s
        next_save += args.save_every_s
        next_probe += args.probe_every_s
        losses: list[torch.Tensor] = []
        seen = (self.elapsed_s, self.num_tokens)
        while self.elapsed_s < stop_s and self.step != last_step:
            self.feed.ask(self.pick_length)
            batch = self.feed.take(random.Random(f"again-{args.seed}-{self.step}"))
            loss, norm = self.learn(batch)
            losses.append(loss)
            if self.elapsed_s >= next_log:
                mean_loss = float(torch.stack(losses).mean())  # waits for the device
                now = (self.elapsed_s, self.num_tokens)
                self._report(batch, mean_loss, float(norm), (now[1] - seen[1]) / (now[0] - seen[0]))
                losses, seen, next_log = [], now, self.elapsed_s + args.log_every_s
                if not np.isfinite(mean_loss):
                    raise FloatingPointError(f"loss is {mean_loss} at step {self.step}")
            if self.elapsed_s >= next_probe:
                self.probe()
                next_probe = self.elapsed_s + args.probe_every_s
            if args.num_eval and self.elapsed_s >= next_suites:
                self.look()
                next_suites = self.elapsed_s + args.suites_every_s
            if self.elapsed_s >= next_save:
                checkpoint.save_full(self.state(), args.state)
                next_save = self.elapsed_s + args.save_every_s
        log.note("end", step=self.step, elapsed_s=self.elapsed_s, tokens=self.num_tokens)

    def _report(self, batch: Batch, loss: float, norm: float, tokens_per_s: float) -> None:
        is_cuda = self.args.device == "cuda"
        feed = self.feed
        self.log.note(
            "train",
            s=round(self.elapsed_s, 1),
            step=self.step,
            stage=self.curriculum.length,
            loss=loss,
            norm=norm,
            rate=self.curriculum.rate(self.elapsed_s, self.step),
            tok_s=round(tokens_per_s),
            supply=round(feed.supply()),
            ready=feed.num_ready,
            fresh=feed.num_fresh,
            again=feed.num_replayed,
            waited_s=feed.num_waiting_s,
            filled=batch.num_real / batch.ids.size,
            learned=float(batch.is_target.mean()),
            cut=feed.num_cut,
            gib=torch.cuda.max_memory_allocated() / 2**30 if is_cuda else 0.0,
        )

    def probe(self) -> None:
        """Measure recall at the present length by real replies; lengthen if it is good."""
        probe = self.feed.probe(f"recall at {self.curriculum.length}")
        started = time.perf_counter()
        texts = self.reply(probe.prompts, PROBE_NEW_TOKENS)
        recall = _share(map(is_right_text, probe.samples, texts))
        took_s = time.perf_counter() - started
        self.log.note("probe", length=self.curriculum.length, recall=recall, took_s=took_s)
        move = self.curriculum.observe(self.elapsed_s, recall)
        if move is not None:
            self.log.note("longer", **asdict(move))
            if move.is_forced:
                self.log.say(f"WARNING: recall {recall:.0%} is below the mark; forced by the clock")

    def look(self) -> None:
        """The first samples of every suite, to see how things go."""
        scores = {}
        for suite in SUITES:
            probe = self.feed.probe(suite.name)
            texts = self.reply(probe.prompts[:QUICK_SAMPLES], PROBE_NEW_TOKENS)
            scores[suite.name] = _share(map(is_right_text, probe.samples, texts))
        self.log.note("look", s=round(self.elapsed_s, 1), **scores)

    def reply(self, prompts: Any, max_new: int) -> list[str]:
        self.model.eval()
        made = decode.greedy(
            self.model,
            prompts,
            end_id=self.end_id,
            max_new=max_new,
            batch_tokens=self.args.batch_tokens * 2,
        )
        self.model.train()
        return [self.tokenizer.decode(ids, skip_special_tokens=False) for ids in made]

    def sweep(self) -> None:
        """Time every length for a while without a schedule, longest first: memory shows at once."""
        for length in reversed(self.args.lengths):
            rows = max(1, self.args.batch_tokens // length)
            rng = np.random.default_rng(length)
            ids = rng.integers(0, 4096, (rows, length), dtype=np.uint16)
            batch = Batch(None, ids, rng.random(ids.shape) < 0.35, ids.size, 0, 0.0)  # type: ignore[arg-type]
            num_steps, started = -2, time.perf_counter()
            while time.perf_counter() - started < self.args.sweep_s or num_steps < 1:
                loss, _ = self.learn(batch)
                num_steps += 1
                if num_steps == 0:
                    float(loss)
                    started = time.perf_counter()
                elif num_steps % 4 == 0:
                    float(loss)
            float(loss)
            speed = num_steps * ids.size / (time.perf_counter() - started)
            is_cuda = self.args.device == "cuda"
            gib = torch.cuda.max_memory_allocated() / 2**30 if is_cuda else 0.0
            self.log.note("sweep", length=length, rows=rows, tok_s=round(speed), gib=gib)
        initialize(self.model, self.args.seed)
        self.optimizer = Optimizer(self.model, self.args.optimizer, self.args.lr_scale)
        self.step = self.num_tokens = 0

    def state(self) -> dict[str, Any]:
        return {
            "weights": self.model.state_dict(),
            "optimizer": self.optimizer.state(),
            "curriculum": self.curriculum.state(),
            "step": self.step,
            "num_tokens": self.num_tokens,
            "elapsed_s": self.elapsed_s,
            "next_index": self.feed.next_index,
        }

    def _begin_trained(self, weights: Path, tokenizer: Path | None) -> None:
        """Begin with the weights of an earlier run, which needs no short rows to learn to recall."""
        old = tokenizer or self.args.tokenizer / "tokenizer.json"
        self.model.load_state_dict(carry.load_carried(weights, old, self.tokenizer))
        self.curriculum.stage = len(self.curriculum.plan.lengths) - 1

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["weights"])
        self.optimizer.restore(state["optimizer"])
        self.curriculum.restore(state["curriculum"])
        self.step, self.num_tokens = state["step"], state["num_tokens"]
        self.before_s, self.feed.next_index = state["elapsed_s"], state["next_index"]


def _share(rights: Iterable[bool]) -> float:
    return float(np.mean(list(rights)))


def _compile_parts() -> None:
    import torch._dynamo
    import torch.fx.experimental._config

    # Sizes that happen to be equal once would be taken for equal always, and recompiled.
    torch.fx.experimental._config.use_duck_shape = False
    torch._dynamo.config.cache_size_limit = 64
    delta.compile_parts()
    net.compile_parts()


def main() -> None:
    args = parse_args()
    log = Log(args.out / "log.jsonl")
    trainer = Trainer(args, log)
    try:
        if args.compile:
            _compile_parts()
        if args.sweep_s:
            trainer.sweep()
        trainer.run()
        checkpoint.save_full(trainer.state(), args.state)
        checkpoint.save_weights(trainer.model.state_dict(), args.out / "weights.safetensors")
        if args.save_full:
            checkpoint.save_parts(trainer.state(), args.out)
        if args.num_eval:
            report(trainer)
    finally:
        trainer.feed.close()


if __name__ == "__main__":
    main()
