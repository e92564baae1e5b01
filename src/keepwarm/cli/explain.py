"""`keepwarm explain`: what a running server would read of a request and why, or what cost the most
in a log."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from keepwarm.errors import BadInput

_EXAMPLES = """\
FILE is the body of one request, as JSON, in any protocol that the server takes: the running server
says what it has of its prompt and where that parts from the nearest one, and runs nothing. Or FILE
is a log that was written with --log-json: its misses are ranked by the tokens that were read again.

examples:
  keepwarm explain request.json
  keepwarm explain --last
  keepwarm explain --last 50 --json
  keepwarm explain server.jsonl
  pbpaste | keepwarm explain -
"""
_TIMEOUT_S = 120.0  # a prompt is rendered, and the engine may be in a long step


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "explain",
        usage="keepwarm explain FILE | --last [N]",
        help="say why a prompt was read again",
        description="Say why a prompt was read, or would be, though something like it had been.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a request or a log; - for stdin")
    parser.add_argument(
        "--last", nargs="?", type=int, const=10, metavar="N",
        help="the last N requests of this key on the running server (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="the server (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="the key to ask with (default: $KEEPWARM_API_KEY)"
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    if (args.file is None) == (args.last is None):
        raise BadInput("name a FILE, or --last; see keepwarm explain --help")
    server = _Server(args.url, args.api_key or _key_in_environment())
    if args.last is not None:
        answers = server.ask(f"/v1/cache/requests?limit={max(1, min(100, args.last))}")["data"]
        print(json.dumps(answers, indent=2) if args.json else _told(answers))
        return 0
    objects = _objects(args.file)
    if len(objects) == 1 and not _is_answer(objects[0]):
        found = server.ask("/v1/cache/explain", objects[0])
        print(json.dumps(found, indent=2) if args.json else found["words"])
        return 0
    ranking = ranked(objects)
    print(
        json.dumps([cost.as_json() for cost in ranking], indent=2) if args.json else _table(ranking)
    )
    return 0


@dataclass(frozen=True, slots=True)
class _Server:
    """A running server."""

    url: str
    key: str | None

    def ask(self, path: str, body: Any = None) -> Any:
        """Raises BadInput with the server's own words where it refuses."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        url = self.url.rstrip("/").removesuffix("/v1") + path
        try:
            with urlopen(Request(url, data=data, headers=headers), timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise BadInput(f"{self.url} refused: {_refusal(error)}") from error
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise BadInput(f"no keepwarm answers at {self.url} ({reason}); see --url") from error


def _refusal(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def _key_in_environment() -> str | None:
    """The first that a server started from here would take."""
    return os.environ.get("KEEPWARM_API_KEY", "").partition(",")[0].strip() or None


def _objects(file: str) -> list[dict[str, Any]]:
    """The JSON object in a file, or one from each of its lines. Raises BadInput."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {file}: {error}") from error
    try:
        whole = json.loads(text)
    except ValueError:
        found = [_object(line) for line in text.splitlines() if line.strip()]
        if not any(found):
            raise BadInput(f"{file} is neither a request in JSON nor a log of --log-json") from None
        return [line for line in found if line is not None]
    if not isinstance(whole, dict):
        raise BadInput(f"{file} holds no JSON object")
    return [whole]


def _object(line: str) -> dict[str, Any] | None:
    """None for what is no JSON: other programs may write to the same file."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_answer(found: dict[str, Any]) -> bool:
    return "misses" in found and "usage" in found


@dataclass(slots=True)
class Cost:
    """What one cause took at one place, in all requests of a log."""

    place: str
    cause: str
    advice: str | None
    count: int = 0
    tokens: int = 0
    seconds: float = 0.0
    example: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "cause": self.cause,
            "requests": self.count,
            "read_again_tokens": self.tokens,
            "read_again_s": round(self.seconds, 3),
            "advice": self.advice,
            "example": self.example,
        }


def ranked(answers: Iterable[dict[str, Any]]) -> list[Cost]:
    """The causes in a log, what took the most tokens first."""
    costs: dict[tuple[str, str], Cost] = {}
    for answer in answers:
        for miss in answer.get("misses") or []:
            # Which message it was differs from turn to turn.
            place = "a message" if miss["place"].startswith("message ") else miss["place"]
            key = (place, miss["cause"])
            cost = costs.setdefault(key, Cost(place, miss["cause"], miss.get("advice")))
            cost.count += 1
            cost.tokens += miss["read_again_tokens"]
            cost.seconds += miss["read_again_s"]
            cost.example = miss
    return sorted(costs.values(), key=lambda cost: -cost.tokens)


def _told(answers: Sequence[dict[str, Any]]) -> str:
    if not answers:
        return "This key has asked nothing since the server started."
    lines = [f"{answer['route']}: {answer['message']}" for answer in answers]
    again = sum(m["read_again_tokens"] for answer in answers for m in answer["misses"])
    lines.append(f"\n{len(answers)} requests, {again:,} tokens read again.")
    return "\n".join(lines)


def _table(ranking: Sequence[Cost]) -> str:
    if not ranking:
        return "Nothing was read again that had been read before."
    lines = []
    for cost in ranking:
        lines.append(
            f"{cost.tokens:>10,} tokens  {cost.seconds:>7.1f} s  {cost.count:>4} requests  in"
            f" {cost.place}: {cost.cause}"
        )
        example = cost.example
        if example.get("now"):
            was, now = (example["before"] + "|" + example[side] for side in ("was", "now"))
            lines.append(f"{'':12}such as {was!r} → {now!r}")
        if cost.advice:
            lines.append(f"{'':12}advice: {cost.advice}")
    return "\n".join(lines)
