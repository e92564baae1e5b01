"""A burst: many requests at once that share a system prompt, with an empty cache and then again; and
with nothing in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from keepwarm.bench import words
from keepwarm.bench.bound import Seen
from keepwarm.bench.client import Message
from keepwarm.bench.duel import lines
from keepwarm.bench.flight import all_at_once
from keepwarm.bench.report import Report, median
from keepwarm.bench.script import Script
from keepwarm.bench.talk import Talk

SYSTEM_LEN = 2_700
OWN_LEN = 300
OWN_SPREAD = 40  # own parts are up to so many tokens shorter or longer
REPLY = Script(thought_len=4, answer_len=8)


def play(talk: Talk, number: int) -> None:
    talk.play(REPLY)
    for num_requests in talk.plan.options["requests"]:
        conversations = _conversations(num_requests, f"{num_requests} {number}")
        with talk.case(f"{num_requests} cold"):
            _ask(talk, conversations)
        with talk.part(f"{num_requests} warm"):
            _ask(talk, conversations)
        if num_requests == min(talk.plan.options["requests"]):
            with talk.case(f"{num_requests} apart"):
                _ask(talk, _apart(num_requests, f"{num_requests} {number}"))


def _conversations(num_requests: int, seed: str) -> list[list[Message]]:
    system = words.text(SYSTEM_LEN, f"system {seed}")
    made: list[list[Message]] = []
    for i in range(num_requests):
        own_len = OWN_LEN + 31 * i % (2 * OWN_SPREAD + 1) - OWN_SPREAD
        own = words.text(own_len, f"user {seed} {i}")
        made.append([{"role": "system", "content": system}, {"role": "user", "content": own}])
    return made


def _apart(num_requests: int, seed: str) -> list[list[Message]]:
    """As long as the others, and no two begin alike."""
    made: list[list[Message]] = []
    for i in range(num_requests):
        [own] = _conversations(1, f"apart {seed} {i}")
        made.append(own)
    return made


def _ask(talk: Talk, conversations: Sequence[Sequence[Message]]) -> None:
    """All at once."""
    prompts = [talk.render(messages) for messages in conversations]
    answers = all_at_once(talk.side.client, conversations, max_tokens=512)
    for prompt, answer in zip(prompts, answers, strict=True):
        # One after the other, so that the bound counts what one could have had from another that
        # was under way: all but the distinct tokens.
        talk.write_down(prompt, answer)
    began = min(answer.sent for answer in answers)
    firsts = [answer.at[0] - began for answer in answers]
    talk.note(
        distinct_tokens=_num_distinct(prompts),
        first_s=min(firsts),
        all_firsts_s=max(firsts),
        all_done_s=max(answer.ended for answer in answers) - began,
    )


def _num_distinct(prompts: Sequence[Sequence[int]]) -> int:
    """What has to be read when none is known."""
    seen, total = Seen(), 0
    for prompt in prompts:
        total += len(prompt) - seen.max_cached_len(prompt)
        seen.add(prompt)
    return total


_TIMES = {"first s": "first_s", "all s": "all_firsts_s", "done s": "all_done_s"}


def table(report: Report) -> Table:
    """`read` is what the model was given, padding included, over the distinct tokens; the times
    are those of the first, of all first tokens, and of all replies. The ratio is how many times
    sooner keepwarm has given each its first token."""
    columns = ("system", "cached", "most", "read", *_TIMES, "ratio")
    return report.table(columns, lines(report, _cells))


def _cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    read_tokens = row.get("read_tokens")
    yield f"{row['cached_tokens'] / row['prompt_tokens']:.1%}"
    yield f"{row['max_cached_tokens'] / row['prompt_tokens']:.1%}"
    yield "" if read_tokens is None else f"{read_tokens / row['distinct_tokens']:.2f}x"
    for key in _TIMES.values():
        yield f"{median(row['notes'][key]):.2f}"
    theirs_s, ours_s = (median(found["notes"]["all_firsts_s"]) for found in (row, ours))
    yield "" if row is ours else f"{theirs_s / ours_s:.2f}x"
