"""What the engine is asked for: plain data, no mlx; made on any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Any

from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Prompt, as_prompt
from keepwarm.prompt.tags import Markup

_NUMBERS = (
    "temperature", "top_p", "min_p", "top_k",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of one request are chosen: by default always the likeliest.

    With a `seed` the same request gives the same tokens, whatever else runs beside it. The
    presence and frequency penalties look at the reply only, the repetition penalty at the
    prompt too. Raises BadInput for values that cannot be meant.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    # mlx-lm's logits processors: (all tokens so far, logits (1, vocab)) -> logits.
    processors: Sequence[Callable[[Any, Any], Any]] = ()

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if not _is_number(getattr(self, name)):
                raise BadInput(f"{name} must be a number, got {getattr(self, name)!r}")
        for name, is_good, wanted in (
            ("temperature", 0.0 <= self.temperature < float("inf"), "at least 0"),
            ("top_p", 0.0 <= self.top_p <= 1.0, "between 0 and 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < float("inf"), "above 0"),
        ):
            if not is_good:
                raise BadInput(f"{name} must be {wanted}, got {getattr(self, name)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


class GrammarKind(StrEnum):
    """What the text of a grammar is."""

    JSON_SCHEMA = "json_schema"
    LARK = "lark"  # or GBNF, which has no rule `start`
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply must look like. It binds once `after` has been generated (the end of a
    thought), or from the first token on where that is empty.

    With `opens` the reply is free up to that text; the grammar says how it goes on from there, and
    behind what the grammar describes it is free again. Between the texts of a pair in `hides`
    nothing opens.
    """

    kind: GrammarKind
    text: str
    after: str = ""
    opens: str = ""
    hides: tuple[tuple[str, str], ...] = ()
    is_composed: bool = False  # Lark made of parts that were checked one by one: may be longer

    @classmethod
    def json(cls, schema: Mapping[str, Any] | bool | str, *, after: str = "") -> Grammar:
        """JSON that fits a JSON schema, given as a dict or as its text."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(GrammarKind.JSON_SCHEMA, text, after)

    @classmethod
    def regex(cls, pattern: str, *, after: str = "") -> Grammar:
        """Text that a regular expression matches as a whole, in the syntax of Rust's `regex`."""
        return cls(GrammarKind.REGEX, pattern, after)

    @classmethod
    def lark(cls, text: str, *, after: str = "") -> Grammar:
        """Text that a grammar in llguidance's dialect of Lark describes."""
        return cls(GrammarKind.LARK, text, after)


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """How long the thoughts of one reply may be together, and how they are ended: the model reads
    `close` as if it had drawn it. Raises BadInput for what would end nothing."""

    max_tokens: int
    opens: tuple[int, ...]  # the tokens that open a thought in a reply
    closes: tuple[int, ...]  # those that close it
    close: tuple[int, ...]  # those, behind what a template writes before them
    is_open: bool = False  # the prompt has opened one

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise BadInput(f"a thinking budget must be at least 0, got {self.max_tokens}")
        if not self.closes or self.close[-len(self.closes) :] != self.closes:
            raise BadInput("a thought is closed by the tokens that close it")


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    `prompt` may be given as a list of token ids, and `stop` as a single text. Raises BadInput for
    values that cannot be meant.
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling | None = None  # None: as the model's makers want it, see `own_sampling`
    stop: str | Sequence[str] = ()
    markup: Markup | None = None  # of a chat: stop texts bind in the content alone
    namespace: str = ""
    top_logprobs: int | None = None  # None: no log probabilities; 0: the chosen token's only
    grammar: Grammar | None = None
    thought: ThoughtLimit | None = None
    ignore_eos: bool = False
    # That the reply may call: its calls are bound to their schemas, and read by them.
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"  # or "required", "none", or the name of one of the tools
    continues_text: bool = False  # a space that the reply begins with is part of it
    # How likely the prompt's own tokens are, from this one on; the very first has no score. Then
    # `max_tokens` may be 0.
    scores_from: int | None = None
    num_score_top: int = 0  # of the likeliest tokens beside each

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", as_prompt(self.prompt))
        object.__setattr__(self, "stop", as_stop(self.stop))
        if self.scores_from is None:
            check_max_tokens(self.max_tokens)
        elif self.scores_from < 0 or self.max_tokens < 0 or self.num_score_top < 0:
            raise BadInput("scores_from, max_tokens and num_score_top cannot be negative")
        if self.sampling is not None:
            check_is(self.sampling, Sampling, "sampling", "Sampling(temperature=0.7)")
        if self.grammar is not None:
            check_is(self.grammar, Grammar, "grammar", "Grammar.json(schema)")


def as_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Stop texts as they were meant: one text is one, not its letters. Raises BadInput."""
    found: list[object] = [stop] if isinstance(stop, str) else list(stop)
    texts = tuple(text for text in found if isinstance(text, str))
    if len(texts) < len(found):
        raise BadInput(f"stop is a text or a list of texts, got {stop!r}")
    if not all(texts):
        raise BadInput("stop cannot hold an empty text")
    return texts


def check_max_tokens(max_tokens: int) -> None:
    """Raises BadInput."""
    if not max_tokens >= 1:
        raise BadInput(f"max_tokens must be at least 1, got {max_tokens!r}")


def check_is(value: object, wanted: type, name: str, example: str) -> None:
    """Raises BadInput, with an example of what was expected."""
    if not isinstance(value, wanted):
        raise BadInput(f"{name} must be like {example}, got {type(value).__name__}")


class IdlePrefill(StrEnum):
    """What to read while nothing runs."""

    OFF = "off"
    STRIPPED = "stripped"  # conversations whose template rewrites the reply in the next turn
    ALL = "all"  # and whatever else of the next turn is known but not stored


class DecodeMode(StrEnum):
    """How running sequences share the model."""

    BATCH = "batch"  # one step for all, where the model's caches can be merged
    TURN = "turn"  # one after another: each token is computed as if it ran alone


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's own settings; the cache has others."""

    max_running: int = 32  # sequences that decode at once
    max_queue: int = 256  # requests that wait; more are refused
    max_stall_s: float = 0.05  # how long prefill may hold up running streams at a time
    idle_prefill: IdlePrefill = IdlePrefill.ALL
    decode: DecodeMode = DecodeMode.BATCH
    memory_bytes: int | None = None  # for the cache and all running sequences; None: measured
    context_len: int | None = None  # None: what the model's config says

    def __post_init__(self) -> None:
        for name in ("max_running", "max_queue", "memory_bytes", "context_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")
        if not self.max_stall_s > 0:
            raise BadInput(f"max_stall_s must be above 0, got {self.max_stall_s}")
