"""The self-test: a prompt read cold and from the cache must give the same logits on this model and
machine, and a short chat shows what the cache saves. A minute at most."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import mlx.core as mx

from keepwarm.cache.placement import Placement
from keepwarm.cache.store import PrefixCache
from keepwarm.cli.doctor.findings import Level, Section
from keepwarm.engine.decode import decode
from keepwarm.engine.limits import context_len_of
from keepwarm.engine.request import Sampling
from keepwarm.engine.sampling import Draw
from keepwarm.own_loop import prefill
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.template import trouble_with
from keepwarm.session import Session

# Of the minute, one cold reading of the long prompt takes about this much; there are four.
_COLD_S = 4.0
_REPLY_S = 2.0
_MIN_LEN, _MAX_LEN = 192, 6144
# A state that is wrong moves logits by about their spread, rounding in 16 bits by some hundredths.
_ROUNDING = 0.25
_NUM_TURNS = 4
_CHAT_TURNS = 40
_WORDS = "The gardener counts plums and pears in the {} row and writes the number down. "


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second."""

    prefill: float
    decode: float


def trial_section(model: Any, tokenizer: Any, template_kwargs: dict[str, Any]) -> Section:
    section = Section("test", "Self-test")
    subject = _Subject(model, tokenizer, template_kwargs)
    length = subject.affordable_len()
    _add_exactness(section, subject, length)
    speeds = _add_speeds(section, subject, length)
    if subject.chats:
        _add_chat(section, subject, speeds)
    return section


class _Subject:
    """The model that is tried, and prompts for it. On the thread that owns the arrays."""

    def __init__(self, model: Any, tokenizer: Any, template_kwargs: dict[str, Any]) -> None:
        self.model, self.tokenizer, self.template_kwargs = model, tokenizer, template_kwargs
        self.chats = trouble_with(tokenizer) is None

    def affordable_len(self) -> int:
        """Tokens that a cold reading takes a few seconds for, found with a short one."""
        self.read(PrefixCache(self.model, budget_bytes=0), self.prompt(64))  # compiles what it must
        began = perf_counter()
        prompt = self.prompt(_MIN_LEN)
        self.read(PrefixCache(self.model, budget_bytes=0), prompt)
        speed = len(prompt) / (perf_counter() - began)
        longest = min(_MAX_LEN, (context_len_of(self.model) or _MAX_LEN) // 2)
        return int(min(longest, max(_MIN_LEN, _COLD_S * speed)))

    def prompt(self, num_tokens: int, question: str = "How many plums are there?") -> Prompt:
        """Of about that many tokens: a text in two messages, then a question."""
        sentence_len = max(1, len(self.tokenizer.encode(_WORDS.format("first"))))
        count = max(2, num_tokens // sentence_len)
        lines = [_WORDS.format(i) for i in range(count)]
        halves = ["".join(lines[: count // 2]), "".join(lines[count // 2 :])]
        if not self.chats:
            text = render_text(self.tokenizer, "\n\n".join([*halves, question]))
            # Without messages: a place that a client asks for.
            return Prompt(text.tokens, [Boundary(num_tokens // 2, BoundaryKind.MARK)])
        talk = [
            {"role": "user", "content": halves[0]},
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": f"{halves[1]}\n\n{question}"},
        ]
        return render_chat(self.tokenizer, talk, template_kwargs=self.template_kwargs)

    def read(self, cache: PrefixCache, prompt: Prompt) -> tuple[mx.array, int, float]:
        """The logits after a prompt, how many of its tokens were cached, and the seconds."""
        cached_len = cache.peek(prompt).cached_len
        began = perf_counter()
        _, logits = prefill(self.model, cache, prompt)
        mx.eval(logits)
        return logits, cached_len, perf_counter() - began


def _add_exactness(section: Section, subject: _Subject, length: int) -> None:
    """Cold and hot, in both modes: a prompt that parts from a stored one in its last message."""
    first = subject.prompt(length)
    second = subject.prompt(length, "And how many pears? Tell me row by row.")
    for mode, is_exact in (("default", False), ("exact", True)):
        cold, _, cold_s = subject.read(
            _made(subject, length, exact=is_exact, budget_bytes=0), second
        )
        warm = _made(subject, length, exact=is_exact)
        subject.read(warm, first)
        hot, cached_len, hot_s = subject.read(warm, second)
        warm.check()
        same_bits = bool(mx.array_equal(cold, hot))
        same_token = bool(mx.all(mx.argmax(cold, axis=-1) == mx.argmax(hot, axis=-1)))
        gap = float(mx.max(mx.abs(cold.astype(mx.float32) - hot.astype(mx.float32))))
        spread = float(mx.std(cold.astype(mx.float32)))
        apart = f"by {gap / spread:.2g} of their spread"
        if warm.disabled_because is not None:
            words, level = f"nothing is cached: {warm.disabled_because}", Level.PROBLEM
        elif not cached_len:
            words, level = "the cache had nothing of a prompt that it should have", Level.PROBLEM
        elif same_bits:
            words, level = "hot equals cold, bit for bit", Level.OK
        elif not is_exact and gap < _ROUNDING * spread:
            likeliest = "the same" if same_token else "another, in a near tie"
            words = f"hot equals cold up to rounding: logits differ {apart}, the likeliest token is"
            words, level = f"{words} {likeliest}", Level.OK
        else:
            words = f"hot differs from cold: logits {apart}"
            words, level = words + ("" if is_exact else "; --exact may help"), Level.PROBLEM
        words += (
            f" ({cached_len} of {len(second)} tokens from the cache, {hot_s:.2f} s;"
            f" cold {cold_s:.2f} s)"
        )
        section.add(
            f"{mode} mode",
            words,
            level,
            same_bits=same_bits,
            same_token=same_token,
            largest_gap=gap,
            prompt_tokens=len(second),
            cached_tokens=cached_len,
            cold_s=cold_s,
            hot_s=hot_s,
        )


def _made(
    subject: _Subject, length: int, *, exact: bool, budget_bytes: int | None = None
) -> PrefixCache:
    """A cache that has a checkpoint in a prompt of that length, however slow the machine is."""
    placement = Placement(min_span=max(16, min(Placement().min_span, length // 4)))
    return PrefixCache(subject.model, exact=exact, budget_bytes=budget_bytes, placement=placement)


def _add_speeds(section: Section, subject: _Subject, length: int) -> Speeds:
    prompt = subject.prompt(length)
    cache = PrefixCache(subject.model, budget_bytes=0)
    began = perf_counter()
    live, logits = prefill(subject.model, cache, prompt)
    mx.eval(logits)
    read_s = perf_counter() - began
    replies = decode(subject.model, live, logits, Draw(Sampling(), prompt=prompt.tokens))
    next(replies)
    count, began = 0, perf_counter()
    while perf_counter() - began < _REPLY_S and count < 128:
        next(replies)
        count += 1
    speeds = Speeds(len(prompt) / read_s, count / (perf_counter() - began))
    section.add(
        "speed",
        f"reads {_rate(speeds.prefill)} tokens a second (a prompt of {len(prompt)}), writes"
        f" {_rate(speeds.decode)}",
        prefill_tokens_per_s=speeds.prefill,
        decode_tokens_per_s=speeds.decode,
        prompt_tokens=len(prompt),
    )
    return speeds


def _add_chat(section: Section, subject: _Subject, speeds: Speeds) -> None:
    """Some turns are talked; the rest of a long chat is what these say, continued."""
    session = Session(
        subject.model, subject.tokenizer, template_kwargs=dict(subject.template_kwargs)
    )
    reply_len = int(min(48, max(8, _REPLY_S * speeds.decode)))
    turns: list[tuple[int, int]] = []
    for i in range(_NUM_TURNS):
        words = "".join(_WORDS.format(f"{i}-{j}") for j in range(4)) + "What comes next?"
        with session.chat(words, max_tokens=reply_len, sampling=Sampling()) as stream:
            for _ in stream:
                pass
        turns.append((stream.result.prompt_tokens, stream.result.cached_tokens))
    growth = (turns[-1][0] - turns[0][0]) / (_NUM_TURNS - 1)
    read = sum(prompt - cached for prompt, cached in turns[1:]) / (_NUM_TURNS - 1)
    cold = sum(turns[0][0] + i * growth for i in range(_CHAT_TURNS))
    hot = turns[0][0] + (_CHAT_TURNS - 1) * read
    share = 100 * (1 - hot / cold)
    section.add(
        f"{_CHAT_TURNS} turns",
        f"a chat of {_CHAT_TURNS} turns, each {growth:.0f} tokens longer: {_thousands(cold)} tokens"
        f" of prompts, {_thousands(hot)} of them read. The cache spares {share:.0f}%:"
        f" {_seconds(hot / speeds.prefill)} of reading where it was {_seconds(cold / speeds.prefill)}",
        turns=[{"prompt_tokens": p, "cached_tokens": c} for p, c in turns],
        cold_tokens=round(cold),
        hot_tokens=round(hot),
        cold_s=cold / speeds.prefill,
        hot_s=hot / speeds.prefill,
    )


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _thousands(count: float) -> str:
    return f"{count:,.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
