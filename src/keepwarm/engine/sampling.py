"""How the tokens of one sequence are chosen, whatever runs beside it: each has its own random
key, its own counts and its own grammar. Belongs to the engine thread."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from keepwarm.engine.request import Sampling, ThoughtLimit
from keepwarm.engine.thought import Thought
from keepwarm.prompt.boundaries import Tokens

if TYPE_CHECKING:  # without grammars their library need not be loaded
    from keepwarm.engine.guide import Guide

# Dividing by less or by more than these leaves float32.
_COLDEST, _HOTTEST = 1e-30, 1e30
# Gumbel noise falls below this only where a uniform draw is exactly 0, and is -inf there.
_LEAST_NOISE = -5.0
_LARGEST = float(np.finfo(np.float32).max)


class Draw:
    """Chooses the tokens of one sequence. Nothing here waits for the device.

    First the bias, the penalties and the processors, then the grammar, which has the last word;
    then temperature, top_k, top_p and min_p, in the order that models' recommended settings are
    meant for. `accept` is told every token in turn; where `needs_last`, before the next one is
    drawn. A thought at its limit is closed by tokens that are given in place of drawn ones.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt: Tokens,
        guide: Guide | None = None,
        thought: ThoughtLimit | None = None,
    ) -> None:
        self._sampling = sampling
        self._guide = guide
        self._thought = Thought(thought) if thought is not None else None
        self._key = mx.random.key(_folded(sampling.seed))[None]  # (1, 2)
        self._prompt = prompt
        self._memory: _Memory | None = None  # needs the size of the vocabulary
        self._history: mx.array | None = None  # (num_tokens,), for processors only
        if sampling.processors:
            self._history = mx.array(np.asarray(prompt, dtype=np.int32))
        self._bias: mx.array | None = None

    @property
    def needs_last(self) -> bool:
        """Whether the value of the last token must be told before the next is drawn."""
        return self._guide is not None or (self._thought is not None and self._thought.needs_last)

    @property
    def is_greedy(self) -> bool:
        """Whether the argmax of the raw logits is the answer."""
        return self._sampling.temperature == 0 and self._is_raw

    @property
    def is_plain(self) -> bool:
        """Whether it is drawn at random and nothing but the raw logits decides."""
        return self._sampling.temperature != 0 and self._is_raw

    @property
    def _is_raw(self) -> bool:
        """Whether nothing but the raw logits, and chance, decides on the next token."""
        s = self._sampling
        return not (
            self._is_bound or self._is_forced or s.processors or s.logit_bias or self._looks_back
        )

    @property
    def _is_forced(self) -> bool:
        return self._thought is not None and self._thought.is_forced

    def draw(self, logits: mx.array) -> mx.array:
        """The next token (1,) from `logits` (1, vocab). Mutates: remembers it."""
        if self.is_greedy:
            return mx.argmax(logits, axis=-1)
        if self._thought is not None and self._thought.is_forced:
            token = mx.array([self._thought.take()], dtype=mx.uint32)
            self._remember(token, logits.shape[-1])
            return token
        logits = self._restrained(self._adjusted(logits))
        if self._sampling.temperature:
            token, self._key = _sampled(logits, self._key, [self._sampling])
        else:
            token = mx.argmax(logits, axis=-1)
        self._remember(token, logits.shape[-1])
        return token

    def accept(self, token: int) -> None:
        """The value of the next token that was drawn. Mutates."""
        if self._guide is not None:
            self._guide.accept(token)
        if self._thought is not None:
            self._thought.accept(token)

    @property
    def _is_bound(self) -> bool:
        return self._guide is not None and self._guide.is_binding

    @property
    def _looks_back(self) -> bool:
        s = self._sampling
        return (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) != (1.0, 0.0, 0.0)

    def _adjusted(self, logits: mx.array) -> mx.array:
        sampling, num_vocab = self._sampling, logits.shape[-1]
        logits = logits.astype(mx.float32)
        if sampling.logit_bias:
            if self._bias is None:
                self._bias = _bias_row(sampling.logit_bias, num_vocab)
            logits = logits + self._bias
        if self._looks_back:
            logits = self._memory_for(num_vocab).penalized(logits, sampling)
        for processor in sampling.processors:
            logits = processor(self._history, logits)
        return logits

    def _restrained(self, logits: mx.array) -> mx.array:
        """Finite numbers, and -inf where the grammar forbids: always something to choose from."""
        logits = _finite(logits.astype(mx.float32))
        mask = self._guide.mask(logits.shape[-1]) if self._guide is not None else None
        return logits if mask is None else mx.where(mx.array(mask)[None], logits, -math.inf)

    def _remember(self, token: mx.array, num_vocab: int) -> None:
        if self._looks_back:
            self._memory_for(num_vocab).add(token)
        if self._history is not None:
            self._history = mx.concatenate([self._history, token.astype(mx.int32)])

    def _memory_for(self, num_vocab: int) -> _Memory:
        if self._memory is None:
            self._memory = _Memory(self._prompt, num_vocab)
        return self._memory


def draw_together(draws: Sequence[Draw], logits: mx.array) -> mx.array:
    """The next tokens (B,) from `logits` (B, vocab): what each draw would draw alone, with one
    pass for all that only look at temperature and likelihood. Mutates the draws."""
    if all(draw.is_greedy for draw in draws):
        return mx.argmax(logits, axis=-1)
    is_sampled = [draw.is_plain for draw in draws]
    rows = [i for i, plain in enumerate(is_sampled) if plain]
    if len(rows) < 2:
        return mx.concatenate([draw.draw(logits[i : i + 1]) for i, draw in enumerate(draws)])
    keys = mx.concatenate([draws[i]._key for i in rows])
    finite = _finite(logits[mx.array(rows)].astype(mx.float32))
    tokens, keys = _sampled(finite, keys, [draws[i]._sampling for i in rows])
    for place, i in enumerate(rows):
        draws[i]._key = keys[place : place + 1]
    others = [i for i, plain in enumerate(is_sampled) if not plain]
    if not others:
        return tokens
    drawn = [draws[i].draw(logits[i : i + 1]) for i in others]
    order = sorted(range(len(draws)), key=[*rows, *others].__getitem__)
    return mx.concatenate([tokens, *drawn])[mx.array(order)]


class _Memory:
    """What was said so far, counted on the device."""

    def __init__(self, prompt: Tokens, num_vocab: int) -> None:
        known = prompt[(prompt >= 0) & (prompt < num_vocab)]
        in_prompt = np.zeros((1, num_vocab), dtype=bool)
        in_prompt[0, known] = True
        self._in_prompt = mx.array(in_prompt)  # (1, vocab)
        self._counts = mx.zeros((1, num_vocab))  # of the reply

    def add(self, token: mx.array) -> None:
        self._counts = self._counts.at[:, token].add(1.0)

    def penalized(self, logits: mx.array, sampling: Sampling) -> mx.array:
        is_said = self._counts > 0
        if sampling.repetition_penalty != 1:
            factor = sampling.repetition_penalty
            smaller = mx.where(logits < 0, logits * factor, logits / factor)
            logits = mx.where(is_said | self._in_prompt, smaller, logits)
        if sampling.frequency_penalty:
            logits = logits - sampling.frequency_penalty * self._counts
        if sampling.presence_penalty:
            logits = logits - sampling.presence_penalty * is_said
        return logits


def logprobs(
    logits: mx.array, token: mx.array, num_top: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Of raw `logits` (1, vocab): the log probability of `token` (1,), and the ids and log
    probabilities of the `num_top` likeliest tokens, or of all where there are fewer. Lazy."""
    logits = logits.astype(mx.float32)
    row = _finite(logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0]  # (vocab,)
    top = mx.argsort(-row)[: max(num_top, 0)]
    return row[token], top, row[top]


def _finite(x: mx.array) -> mx.array:
    return mx.nan_to_num(x, nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)


def _sampled(
    logits: mx.array, keys: mx.array, settings: Sequence[Sampling]
) -> tuple[mx.array, mx.array]:
    """A token for each row (B,), and the keys (B, 2) for the next ones.

    Every row has noise for the whole vocabulary from its own key, so that its token does not
    depend on the rows beside it or on their settings.
    """
    temperatures = [min(max(s.temperature, _COLDEST), _HOTTEST) for s in settings]
    # The likeliest is 0 after this, so that no scaling overflows.
    scaled = (logits - mx.max(logits, axis=-1, keepdims=True)) / mx.array(temperatures)[:, None]
    if any(s.top_p < 1 or 0 < s.top_k < logits.shape[-1] for s in settings):
        scaled = _nucleus(scaled, settings)
    if any(s.min_p for s in settings):
        least = mx.array([math.log(s.min_p) if s.min_p else -math.inf for s in settings])
        scaled = mx.where(scaled < least[:, None], -math.inf, scaled)
    split = mx.vmap(mx.random.split)(keys)  # (B, 2, 2)
    noise = mx.vmap(lambda key: mx.random.gumbel(logits.shape[1:], key=key))(split[:, 1])
    # The likeliest with this noise is a draw from the softmax.
    return mx.argmax(scaled + mx.maximum(noise, _LEAST_NOISE), axis=-1), split[:, 0]


def _nucleus(scaled: mx.array, settings: Sequence[Sampling]) -> mx.array:
    """`scaled` (B, vocab), -inf but for the `top_k` likeliest, and of those for the first that
    together have a share of `top_p`. The likeliest itself always stays."""
    order = mx.argsort(-scaled, axis=-1)  # the likeliest first
    ranks = mx.arange(scaled.shape[-1])
    num_kept = mx.array([s.top_k or scaled.shape[-1] for s in settings])[:, None]
    ranked = mx.take_along_axis(scaled, order, axis=-1)
    ranked = mx.where(ranks < num_kept, ranked, -math.inf)
    if any(s.top_p < 1 for s in settings):
        probs = mx.softmax(ranked, axis=-1)
        shares = mx.array([s.top_p if s.top_p < 1 else math.inf for s in settings])[:, None]
        is_in = (mx.cumsum(probs, axis=-1) - probs < shares) | (ranks == 0)
        ranked = mx.where(is_in, ranked, -math.inf)
    return mx.put_along_axis(scaled, order, ranked, axis=-1)


def _bias_row(logit_bias: Mapping[int, float], num_vocab: int) -> mx.array:
    """Ids beyond the vocabulary are left out: mlx would write there without a look."""
    row = np.zeros((1, num_vocab), dtype=np.float32)
    for token, bias in logit_bias.items():
        if 0 <= token < num_vocab:
            row[0, token] = bias
    return mx.array(row)


def _folded(seed: int | None) -> int:
    """Any integer as the 64 bits that mlx takes; a fresh one for None."""
    return secrets.randbits(64) if seed is None else seed % 2**64
