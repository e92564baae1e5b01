"""How long a prompt is made of text: when it is new, comes again, and ends in another way.

    python -m bench.render [--lengths 2700,20000,100000] [--rounds 9]

Milliseconds, medians of rounds, each with a text of its own: one message of a chat, and a plain text.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

from keepwarm.bench import words
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat


def render_message(tokenizer: Any, text: str) -> object:
    return render_chat(tokenizer, [{"role": "user", "content": text}])


WAYS: dict[str, Callable[[Any, str], object]] = {"chat": render_message, "plain": render_text}


def timed_ms(render: Callable[[Any, str], object], tokenizer: Any, text: str) -> float:
    began = perf_counter()
    render(tokenizer, text)
    return 1e3 * (perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="2700,20000,100000", help="in tokens")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    tokenizer = words.tokenizer()
    for render in WAYS.values():
        render(tokenizer, "Hello")  # what is learned of a template once
    print(f"{'tokens':>8} {'':6} {'new':>8} {'again':>8} {'other end':>10}  ms")
    for length in map(int, args.lengths.split(",")):
        for name, render in WAYS.items():
            times = []
            for i in range(args.rounds):
                text = words.text(length, f"{name} {i}")
                texts = (text, text, f"{text} Why is that so?")
                times.append([timed_ms(render, tokenizer, text) for text in texts])
            new, again, other = map(statistics.median, zip(*times))
            print(f"{length:>8,} {name:6} {new:>8.1f} {again:>8.2f} {other:>10.1f}", flush=True)


if __name__ == "__main__":
    main()
