"""What a client asks for, in the one form that all protocols are read into. Plain data, no mlx;
any thread.

Each protocol of `server/protocols/` reads its own body into `AskedChat` (or `AskedTexts`), and
writes its answer from what an `Exchange` tells. Between the two nothing knows the protocol, and no
protocol knows the model.

Messages are those of `prompt/messages.py`: OpenAI's roles and fields, thoughts as
`reasoning_content`, calls as `tool_calls`, results as messages of the role `tool`. Content is a
text or a list of text parts; system messages keep their parts, since hygiene looks at each. What
protocols say differently (results inside of a user's message, arguments as objects) is theirs to
bring into this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from keepwarm.engine.request import Grammar
from keepwarm.prompt.messages import Message


@dataclass(frozen=True, slots=True)
class SamplingAsked:
    """How tokens are to be chosen; None leaves it to the server's settings and to the model."""

    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ThinkingAsked:
    """How much to think; None leaves it to the model."""

    is_on: bool | None = None
    effort: str | None = None
    budget_tokens: int | None = None

    def template_kwargs(self) -> dict[str, Any]:
        """Templates know one name or the other for how much to think."""
        given: dict[str, Any] = {}
        if self.effort is not None:
            given["reasoning_effort"] = self.effort
        if self.effort == "none":
            given["enable_thinking"] = False
        if self.is_on is not None:
            given["enable_thinking"] = self.is_on
        return given


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the reply may, must or must not call tools, and which of them."""

    mode: Literal["auto", "required", "none"] = "auto"
    names: tuple[str, ...] = ()  # only these; all where it is empty
    is_parallel: bool = True  # more than one call in a reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every request has."""

    namespace: str = ""  # of the cache
    streams: bool = False
    num_choices: int = 1  # of each prompt
    max_tokens: int | None = None
    sampling: SamplingAsked = SamplingAsked()
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None  # of the answer, as it was asked for: not checked yet
    grammar_field: str = "response_format"  # that said so
    num_logprobs: int | None = None  # None: no log probabilities; 0: the chosen token's only
    ignore_eos: bool = False
    notes: tuple[str, ...] = ()  # what was asked for and is left out

    @property
    def prompt_field(self) -> str:
        """What the prompt is called in messages to the client."""
        return "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChat(Asked):
    """To continue a conversation."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None  # in OpenAI's form, which chat templates read
    # Tools that the messages themselves write: not in front, where they would part the prefix.
    later_tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: ToolChoice = ToolChoice()
    thinking: ThinkingAsked = ThinkingAsked()
    has_thought_logprobs: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # go before `thinking`

    @property
    def prompt_field(self) -> str:
        return "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTexts(Asked):
    """To continue texts, or tokens, as they are."""

    prompts: tuple[str | list[int], ...]
    echoes: bool = False  # the prompt comes before the reply, with its log probabilities
