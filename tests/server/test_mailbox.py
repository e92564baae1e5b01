"""What comes from other threads reaches the loop in order, with one wake-up for all of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from keepwarm.server.mailbox import Mailbox


class Counting(asyncio.SelectorEventLoop):
    num_rings = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        self.num_rings += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_what_comes_together_wakes_the_loop_once_and_arrives_in_order() -> None:
    loop, found = Counting(), []
    mailbox = Mailbox(loop)
    for number in range(5):
        mailbox.post(lambda number=number: found.append(number))
    loop.run_until_complete(asyncio.sleep(0))
    assert found == [0, 1, 2, 3, 4]
    assert loop.num_rings == 1
    loop.close()


def test_what_comes_later_wakes_it_again() -> None:
    loop, found = Counting(), []
    mailbox = Mailbox(loop)
    for number in range(3):
        mailbox.post(lambda number=number: found.append(number))
        loop.run_until_complete(asyncio.sleep(0))
        assert found == list(range(number + 1))
    assert loop.num_rings == 3
    loop.close()


def test_nothing_is_lost_while_the_loop_runs() -> None:
    async def hear() -> list[int]:
        found: list[int] = []
        is_all = asyncio.Event()
        mailbox = Mailbox(asyncio.get_running_loop())

        def take(number: int) -> None:
            found.append(number)
            if number == 19_999:
                is_all.set()

        def tell() -> None:
            for number in range(20_000):
                mailbox.post(lambda number=number: take(number))

        thread = threading.Thread(target=tell)
        thread.start()
        await asyncio.wait_for(is_all.wait(), 30)
        thread.join()
        return found

    assert asyncio.run(hear()) == list(range(20_000))


def test_a_loop_that_has_ended_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    Mailbox(loop).post(lambda: None)
