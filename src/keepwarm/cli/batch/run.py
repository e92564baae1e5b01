"""All lines of a batch, as many at once as the engine has room for. Event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp

from keepwarm.cli.batch.ask import Answered, post
from keepwarm.cli.batch.lines import Answers, Line

# The engine is full, or not ready: not the request's fault.
_TRY_AGAIN = (429, 503)
_MAX_WAIT_S = 2.0


@dataclass(slots=True)
class Tally:
    """What came of a batch."""

    num_good: int = 0
    num_bad: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def count(self, answered: Answered) -> None:
        """Mutates."""
        if answered.status != 200:
            self.num_bad += 1
            return
        self.num_good += 1
        usage = answered.body.get("usage") or {}
        told = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        cached = told.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0
        # Anthropic's input_tokens are those that were not cached.
        is_rest = "cache_read_input_tokens" in usage
        read = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
        self.prompt_tokens += read + (cached if is_rest else 0)
        self.cached_tokens += cached


async def answer_all(
    app: ASGIApp,
    lines: Iterable[Line],
    answers: Answers,
    *,
    num_at_once: int,
    on_answer: Callable[[Tally], None],
) -> Tally:
    """Every line gets its answer, as it comes. Lines are read as there is room."""
    tally = Tally()
    running: set[asyncio.Task[None]] = set()

    async def answer(line: Line) -> None:
        answered = await _asked(app, line)
        tally.count(answered)
        request_id = answered.headers.get("x-request-id", "")
        answers.write(line, answered.status, request_id, answered.body)
        on_answer(tally)

    for line in lines:
        if line.trouble is not None:
            tally.num_bad += 1
            answers.write_trouble(line)
            on_answer(tally)
            continue
        running.add(asyncio.create_task(answer(line)))
        if len(running) >= num_at_once:
            running = await _some(running)
    while running:
        running = await _some(running)
    return tally


async def _some(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that still run when at least one has ended. Raises its fault."""
    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return running


async def _asked(app: ASGIApp, line: Line) -> Answered:
    wait_s = 0.05
    while True:
        answered = await post(app, line.url, line.body)
        if answered.status not in _TRY_AGAIN:
            return answered
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _MAX_WAIT_S)
