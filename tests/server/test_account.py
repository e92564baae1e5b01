"""Cost: what is counted once, what adds up, and what others may not see."""

from __future__ import annotations

from keepwarm.cache.explain import Reason
from keepwarm.events import Result, Source, Timings
from keepwarm.server.account import Account


def result(
    prompt: int, cached: int, generated: int, reason: Reason = Reason.COLD, queue_s: float = 0.0
) -> Result:
    timings = Timings(queue_s=queue_s, prefill_s=0.0015, insert_s=0.00075)
    source = Source.RAM if cached else Source.NONE
    tokens = list(range(generated))
    return Result("", tokens, "stop", prompt, cached, reason, timings, source)


def test_one_result_is_told_as_it_is() -> None:
    account = Account({0: result(10, 4, 3, Reason.EXTENDED, queue_s=0.25)})
    assert account.usage() == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert account.keepwarm() == {
        "cached_tokens": 4,
        "prefilled_tokens": 6,
        "reason": "extended",
        "source": "ram",
        "disk_bytes": 0,
        "timings_ms": {
            "queue": 250.0,
            "load": 0,
            "lookup": 0,
            "restore": 0,
            "prefill": 1.5,
            "insert": 0.75,
            "decode": 0,
        },
    }


def test_choices_of_one_prompt_count_it_once_as_its_reader_saw_it() -> None:
    shared = {1: result(10, 0, 5), 0: result(10, 9, 3, Reason.EXACT), 2: result(10, 9, 2)}
    account = Account(shared, 3)
    assert account.usage()["prompt_tokens"] == 10
    assert account.usage()["completion_tokens"] == 10
    report = account.keepwarm()
    assert (report["cached_tokens"], report["prefilled_tokens"]) == (0, 10)
    assert report["reason"] == "cold"


def test_several_prompts_add_up() -> None:
    account = Account({0: result(10, 4, 1, Reason.EXTENDED), 1: result(20, 0, 1)})
    assert account.usage()["prompt_tokens"] == 30
    assert account.usage()["prompt_tokens_details"] == {"cached_tokens": 4}
    assert account.keepwarm()["prefilled_tokens"] == 26
    assert account.keepwarm()["reason"] == "extended"


def test_thoughts_are_counted_where_there_are_some() -> None:
    usage = Account({0: result(1, 0, 9)}).usage(reasoning_tokens=7)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 7}


def test_what_others_stored_is_not_told() -> None:
    account = Account({0: result(10, 0, 1, Reason.OTHER_NAMESPACE)})
    assert account.keepwarm()["reason"] == "cold"
    assert "other" not in account.words()
