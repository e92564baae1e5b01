"""Reading the three formats of traces. Plain data, any thread.

*.tar, *.tar.xz     sessions of a coding agent: one JSON each, ids local to the session
*.jsonl, .jsonl.gz  requests of a service: one JSON a line, ids global
*.json, *.json.xz   dialogues in full text, one JSON for all
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keepwarm.bench.trace.stream import Ids, Request, Trace, interleaved
from keepwarm.errors import BadInput

# Of text, where a trace has no tokens: about what a token of English weighs.
_CHARS_PER_TOKEN = 4
_TEXT_BLOCK_LEN = 64
_SERVICE_BLOCK_LEN = 512
# Between two requests of a dialogue that has no times: the median of the coding sessions.
_PAUSE_S = 10.0

_SUFFIXES = (".tar", ".tar.xz", ".jsonl", ".jsonl.gz", ".json", ".json.xz")


def trace_files(path: Path) -> list[Path]:
    """The traces at `path`: itself, or those in the folder. Raises BadInput."""
    if path.is_file():
        return [path]
    found = [file for file in sorted(path.glob("*")) if file.name.endswith(_SUFFIXES)]
    if not found:
        raise BadInput(f"there are no traces at {path}")
    return found


def read_trace(path: Path, *, num_users: int, num_sessions: int | None = None) -> Trace:
    """One trace; where it has sessions, `num_users` have them, and only the first
    `num_sessions` count (of requests, where it has none). Raises BadInput."""
    try:
        if path.name.endswith((".tar", ".tar.xz")):
            return _read_sessions(path, num_users, num_sessions)
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            return _read_service(path, num_sessions)
        if path.name.endswith((".json", ".json.xz")):
            return _read_dialogues(path, num_users, num_sessions)
    except (OSError, EOFError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        raise BadInput(f"cannot read {path.name} as a trace: {error!r}") from error
    raise BadInput(
        f"{path.name} is not a trace: its name must end in one of {', '.join(_SUFFIXES)}"
    )


# Sessions of a coding agent


def _read_sessions(path: Path, num_users: int, num_sessions: int | None) -> Trace:
    sessions: list[list[Request]] = []
    block_lens: set[int] = set()
    first_id = 1
    for told in _members(path):
        if len(sessions) == num_sessions:
            break
        requests = sorted(_session(told, first_id), key=lambda request: request.time_s)
        sessions.append(requests)
        block_lens.add(int(told["block_size"]))
        first_id = 1 + max((int(r.blocks.max()) for r in requests if len(r.blocks)), default=0)
    if len(block_lens) != 1:
        raise BadInput(f"{path.name} has blocks of {len(block_lens)} sizes")
    return Trace(_name(path), block_lens.pop(), interleaved(sessions, num_users))


def _members(path: Path) -> Iterator[dict[str, Any]]:
    """The sessions of an archive, in the order of their names."""
    texts: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:  # in its own order: going back means to unpack it all again
            file = archive.extractfile(member) if member.name.endswith(".json") else None
            if file is not None:
                texts[member.name] = file.read()
    return (json.loads(texts[name]) for name in sorted(texts))


def _session(told: dict[str, Any], first_id: int) -> Iterator[Request]:
    """The requests of a session and of its sub-agents, whose times count from their start."""
    block_len = int(told["block_size"])
    stack = [(told, 0.0)]
    while stack:
        agent, start_s = stack.pop()
        system_len = (agent["tool_tokens"] + agent["system_tokens"]) // block_len
        for asked in agent["requests"]:
            if "requests" in asked:
                stack.append((asked, start_s + asked["t"]))
                continue
            blocks = _whole(asked["hash_ids"], asked["in"], block_len) + np.int32(first_id)
            upto = min(system_len, len(blocks))
            yield Request(start_s + asked["t"], asked["in"], blocks, upto)


def _whole(ids: list[int], num_tokens: int, block_len: int) -> Ids:
    """The ids of whole blocks: that of a part of one says nothing of what comes next."""
    return np.array(ids[: num_tokens // block_len], dtype=np.int32)


# Requests of a service


def _read_service(path: Path, num_requests: int | None) -> Trace:
    requests: list[Request] = []
    with _opened(path) as lines:
        for line in lines:
            if len(requests) == num_requests:
                break
            asked = json.loads(line)
            blocks = _whole(asked["hash_ids"], asked["input_length"], _SERVICE_BLOCK_LEN)
            time_s = asked["timestamp"] / 1000
            requests.append(Request(time_s, asked["input_length"], blocks + np.int32(1)))
    return Trace(_name(path), _SERVICE_BLOCK_LEN, sorted(requests, key=lambda r: r.time_s))


# Dialogues in full text


def _read_dialogues(path: Path, num_users: int, num_sessions: int | None) -> Trace:
    with _opened(path) as file:
        dialogues = json.load(file)[:num_sessions]
    known: dict[bytes, int] = {}
    sessions = [list(_dialogue(told["traj"], known)) for told in dialogues]
    return Trace(_name(path), _TEXT_BLOCK_LEN, interleaved(sessions, num_users))


def _dialogue(messages: list[dict[str, Any]], known: dict[bytes, int]) -> Iterator[Request]:
    """A request for each message of the assistant: all that was said before."""
    text, system_len, time_s = "", 0, 0.0
    for message in messages:
        if message["role"] == "assistant" and text:
            blocks = _text_blocks(text, known)
            yield Request(time_s, max(1, len(text) // _CHARS_PER_TOKEN), blocks, system_len)
            time_s += _PAUSE_S
        text += json.dumps(message, sort_keys=True) + "\n"
        if message["role"] == "system":
            system_len = len(text) // (_TEXT_BLOCK_LEN * _CHARS_PER_TOKEN)


def _text_blocks(text: str, known: dict[bytes, int]) -> Ids:
    """Ids of the whole blocks of a text; `known` learns those that are new. Mutates."""
    num_chars = _TEXT_BLOCK_LEN * _CHARS_PER_TOKEN
    hasher, ids = hashlib.blake2b(digest_size=16), []
    for at in range(0, len(text) - num_chars + 1, num_chars):
        hasher.update(text[at : at + num_chars].encode())
        ids.append(known.setdefault(hasher.digest(), len(known) + 1))
    return np.array(ids, dtype=np.int32)


def _opened(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _name(path: Path) -> str:
    return path.name.split(".")[0]
