"""The tools of a request under the names that the model calls them by, and back. Chat templates
know functions alone: other kinds of tools become functions, and calls of them what the client
asked for. Plain data; any thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keepwarm.server.errors import refused
from keepwarm.server.protocols.responses.schema import ToolSpec

Kind = Literal["function", "custom", "tool_search"]

SEARCH = "tool_search"


@dataclass(frozen=True, slots=True)
class Known:
    """One tool as the client knows it."""

    kind: Kind
    name: str
    namespace: str | None = None

    @property
    def flat_name(self) -> str:
        """The one name that a template can write: Codex calls its MCP tools so itself."""
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"


class Tools:
    """All tools of one request: those that the prompt begins with, and those found later."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.notes: list[str] = []
        self.first: list[dict[str, Any]] = []  # in OpenAI's form of chats
        self.later: list[dict[str, Any]] = []
        self._known: dict[str, Known] = {}
        # Tools that only a search of the client's can find are written when it has found them.
        can_search = any(spec.type == SEARCH and spec.execution == "client" for spec in specs)
        for known, spec in self._flat(specs, None):
            is_new = known.flat_name not in self._known
            self._known[known.flat_name] = known
            if is_new and not (spec.defer_loading and can_search):
                self.first.append(_as_function(known, spec))

    def find(self, found: Iterable[dict[str, Any]]) -> str:
        """Takes up tools that a search has found. Returns their definitions as the model reads
        them. Raises ApiError for what is no tool. Mutates."""
        try:
            specs = [ToolSpec.model_validate(spec) for spec in found]
        except ValueError as error:
            raise refused(
                f"a tool of a tool_search_output cannot be read: {error}", "input"
            ) from error
        texts = []
        for known, spec in self._flat(specs, None):
            function = _as_function(known, spec)
            if all(
                tool["function"]["name"] != known.flat_name for tool in (*self.first, *self.later)
            ):
                self.later.append(function)
            self._known[known.flat_name] = known
            texts.append(json.dumps(function["function"], ensure_ascii=False))
        if not texts:
            return "No tools were found."
        return "From here on these tools can be called, too:\n" + "\n".join(texts)

    def known(self, flat_name: str) -> Known:
        """What the model means by a name."""
        return self._known.get(flat_name) or Known("function", flat_name)

    def called(self, name: str, namespace: str | None, kind: Kind) -> Known:
        """A tool that was called before, whether it is still there or not."""
        return self._known.get(Known(kind, name, namespace).flat_name) or Known(
            kind, name, namespace
        )

    def _flat(
        self, specs: Sequence[ToolSpec], namespace: str | None
    ) -> Iterator[tuple[Known, ToolSpec]]:
        for spec in specs:
            if spec.type in ("function", "custom"):
                kind: Kind = "custom" if spec.type == "custom" else "function"
                yield Known(kind, spec.name or "", namespace), spec
            elif spec.type == "namespace" and namespace is None:
                yield from self._flat(spec.tools or (), spec.name)
            elif spec.type == SEARCH and spec.execution == "client":
                yield Known("tool_search", SEARCH), spec
            elif spec.type != SEARCH:
                self.notes.append(
                    f"tool {spec.name or spec.type} left out: only the client's own tools are run"
                )


def _as_function(known: Known, spec: ToolSpec) -> dict[str, Any]:
    description, parameters = spec.description or "", spec.parameters
    if known.kind == "custom":
        parameters = {
            "type": "object",
            "properties": {"input": {"type": "string", "description": _format_words(spec)}},
            "required": ["input"],
            "additionalProperties": False,
        }
        # It often says that its input is no JSON, which holds for the client's side.
        description = f"{description}\nGive its input as the one argument `input`.".strip()
    function = {"name": known.flat_name, "description": description}
    if parameters is not None:
        function["parameters"] = parameters  # type: ignore[assignment]
    return {"type": "function", "function": function}


def _format_words(spec: ToolSpec) -> str:
    if spec.format is None or not spec.format.definition:
        return "The whole input, as text."
    syntax = spec.format.syntax or "a"
    return f"The whole input, as text that fits this {syntax} grammar:\n{spec.format.definition}"


def custom_input(arguments: str) -> str:
    """The input of a custom tool in the arguments that the model gave."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    if isinstance(parsed, dict) and isinstance(parsed.get("input"), str):
        return str(parsed["input"])
    return parsed if isinstance(parsed, str) else arguments
