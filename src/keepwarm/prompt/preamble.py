"""Learns how prompts begin: the part that tools, system messages and the template's own preamble
make, which all conversations of an application share. Asks the template; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keepwarm.prompt.boundaries import BoundaryKind
from keepwarm.prompt.markup import ALPHA, QUEBEC, added_tokens, common_prefix, settled
from keepwarm.prompt.messages import Message
from keepwarm.prompt.template import Template, Tokenizer, digest

# No template begins with more characters than this that say nothing.
_MAX_UNTOLD = 256


@dataclass(frozen=True, slots=True)
class Part:
    """A beginning of prompts. A length and a digest stand for the text, which may be long."""

    kind: BoundaryKind
    num_chars: int
    digest: bytes

    def begins(self, text: str) -> bool:
        return digest(text[: self.num_chars]) == self.digest


@dataclass(frozen=True, slots=True)
class SystemParts:
    """How prompts with the same tools and system messages begin."""

    sample: bytes | None  # of a rendering; another one today means that the rest is out of date
    parts: tuple[Part, ...]

    def begun_by(self, text: str) -> list[Part]:
        """The parts that `text` begins with."""
        return [part for part in self.parts if part.begins(text)]


def sample_system(template: Template, leading: Sequence[Message]) -> bytes | None:
    """The digest of the rendering that `SystemParts` are made from."""
    text = _begun(template, leading, ALPHA)
    return digest(text) if text is not None else None


def find_system_parts(
    template: Template,
    leading: Sequence[Message],
    user_header: str,
    breaks: Sequence[tuple[int, int]] = (),
) -> SystemParts:
    """The part that tools, the system messages `leading` and the template's own preamble make.
    Where tools come first, the part before the system messages ends as well, and so do those up to
    `breaks`, which are indices of system messages and characters of their text: other applications
    may share them, but prefill need not always stop there."""
    sample = sample_system(template, leading)
    ends = list(_part_ends(template, leading, user_header))
    if leading:
        ends += _part_ends(template, (), user_header)
    ends += _head_ends(template, leading, [*([(0, 0)] if template.tools else []), *breaks])
    if sample_system(template, leading) != sample:
        return SystemParts(sample, ())  # it writes the time
    kinds = [BoundaryKind.SYSTEM, *[BoundaryKind.HEAD] * len(ends)]
    parts = (Part(kind, len(text), digest(text)) for kind, text in zip(kinds, ends))
    return SystemParts(sample, tuple(parts))


def _part_ends(template: Template, leading: Sequence[Message], user_header: str) -> Iterator[str]:
    """The beginning that prompts with these tools and system messages share. Two of them where
    tools stand before the last user message: that of every turn, and that of a first turn."""
    one, other = _begun(template, leading, ALPHA), _begun(template, leading, QUEBEC)
    if one is None or other is None:
        return
    part = common_prefix([one, other]).removesuffix(user_header)
    longer = _begun(template, leading, ALPHA, ALPHA, QUEBEC)
    if longer is not None and not longer.startswith(part):
        shared = settled(template.tokenizer, common_prefix([part, longer]), [one, longer])
        # Only where the first user message begins; anywhere else the template rewrites its past.
        if user_header and longer.startswith(user_header, len(shared)):
            yield from _if_told(template.tokenizer, shared)
    yield from _if_told(template.tokenizer, settled(template.tokenizer, part, [one, other]))


def _head_ends(
    template: Template, leading: Sequence[Message], breaks: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """What all prompts begin with whose system messages are the same up to there."""
    for index, num_chars in breaks:
        message = leading[index] if leading else {"role": "system", "content": ""}
        kept = (message["content"] or "")[:num_chars]
        one, other = (
            _begun(template, [*leading[:index], {**message, "content": kept + more}], ALPHA)
            for more in (ALPHA, QUEBEC)
        )
        if one is not None and other is not None:
            shared = settled(template.tokenizer, common_prefix([one, other]), [one, other])
            if len(shared) > _MAX_UNTOLD:
                yield shared


def _begun(template: Template, leading: Sequence[Message], *texts: str) -> str | None:
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    return template.try_text([*leading, *messages], add_generation_prompt=False)


def _if_told(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    """`text`, if it is more than the tokens every conversation begins with."""
    told = text[: _MAX_UNTOLD + 1]
    if len(told) <= _MAX_UNTOLD:
        for token in added_tokens(tokenizer):
            told = told.replace(token, "")
    if told.strip():
        yield text
