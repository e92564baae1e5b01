"""What an answer says of its cost: `usage` as OpenAI has it, and what the cache did in `keepwarm`.

Choices of one prompt share it: it is counted once, as the choice saw it that read the most of it
(the others waited for that one). Several prompts add up; words and times are the first one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keepwarm.events import Result


class Account:
    """The results of one HTTP request; `num_choices` for each of its prompts, in order."""

    def __init__(self, results: Mapping[int, Result], num_choices: int = 1) -> None:
        self._results = results
        prompts: dict[int, list[Result]] = {}
        for index, result in sorted(results.items()):
            prompts.setdefault(index // num_choices, []).append(result)
        self._readers = [max(of, key=lambda r: r.prefilled_tokens) for of in prompts.values()]

    def usage(self, reasoning_tokens: int | None = None) -> dict[str, Any]:
        prompt_tokens = sum(result.prompt_tokens for result in self._readers)
        completion_tokens = sum(len(result.tokens) for result in self._results.values())
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }
        if reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        return usage

    def keepwarm(self) -> dict[str, Any]:
        first = self._readers[0]
        timings = first.timings
        return {
            "cached_tokens": self._cached_tokens,
            "prefilled_tokens": sum(result.prefilled_tokens for result in self._readers),
            "reason": shown_reason(str(first.reason)),
            "source": str(first.source),
            "disk_bytes": sum(result.disk_bytes for result in self._readers),
            "timings_ms": {
                part: round(1000 * seconds, 3)
                for part, seconds in (
                    ("queue", timings.queue_s),
                    ("load", timings.load_s),
                    ("lookup", timings.lookup_s),
                    ("restore", timings.restore_s),
                    ("prefill", timings.prefill_s),
                    ("insert", timings.insert_s),
                    ("decode", timings.decode_s),
                )
            },
        }

    def words(self) -> str:
        """One line for the log."""
        first, usage = self._readers[0], self.usage()
        return (
            f"{usage['prompt_tokens']} prompt tokens, {self._cached_tokens} cached"
            f" ({shown_reason(str(first.reason))}, {first.source}{self._load_words()}),"
            f" {usage['completion_tokens']} generated,"
            f" first after {first.timings.first_token_s:.3f} s"
        )

    def _load_words(self) -> str:
        first = self._readers[0]
        if not first.disk_bytes:
            return ""
        return f" {first.disk_bytes / 1e6:.1f} MB in {1000 * first.timings.load_s:.0f} ms"

    @property
    def _cached_tokens(self) -> int:
        return sum(result.cached_tokens for result in self._readers)


def shown_reason(reason: str) -> str:
    """What others have stored is nobody's business."""
    return "cold" if reason == "other_namespace" else reason
