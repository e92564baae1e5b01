"""Many requests that begin alike: what they share is read once, and they run together.

    python examples/many.py

`map` takes requests from any iterable as there is room, and gives results in their order.
"""

from __future__ import annotations

from collections.abc import Iterator

from keepwarm import Engine, Request, load, render_chat

GUESTS = {"Anna": "Lund", "Bruno": "Porto", "Carla": "Ghent", "David": "Basel", "Emma": "Riga"}
SYSTEM = " ".join(f"{name} lives in {town}." for name, town in GUESTS.items())


def main() -> None:
    with Engine(load) as engine:

        def requests() -> Iterator[Request]:
            for name in GUESTS:
                messages = [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Where does {name} live?"},
                ]
                yield Request(render_chat(engine.tokenizer, messages), max_tokens=80)

        results = list(engine.map(requests()))
    for name, result in zip(GUESTS, results):
        print(f"{name}: {result.reply.content}")
    cached = sum(result.cached_tokens for result in results)
    print(f"{cached} of {sum(result.prompt_tokens for result in results)} prompt tokens cached")


if __name__ == "__main__":
    main()
