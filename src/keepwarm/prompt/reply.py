"""What a model answered, whole and in the pieces it is streamed in. Plain data; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keepwarm.prompt.messages import Message


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` are JSON text, as clients expect."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning. An empty one only says that there was a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A complete tool call, the `index`-th of its reply from 0."""

    index: int
    call: ToolCall


Piece = Said | Thought | Called


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered. `reasoning` is None where it did not think at all."""

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Reply:
        """The whole that `pieces` make."""
        pieces = list(pieces)
        thoughts = [piece.text for piece in pieces if isinstance(piece, Thought)]
        return cls(
            content="".join(piece.text for piece in pieces if isinstance(piece, Said)),
            reasoning="".join(thoughts) if thoughts else None,
            tool_calls=tuple(piece.call for piece in pieces if isinstance(piece, Called)),
        )

    def as_message(self) -> Message:
        """The assistant's message in OpenAI's form, to be sent back with the next turn."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message
