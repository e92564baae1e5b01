"""A loop of one's own: `prefill` reads what is new, the rest is the program's.

    python examples/own_loop.py

Two questions about one text. Where they part is marked, since a recurrent layer can only be restored
where a checkpoint was made.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from keepwarm import Boundary, BoundaryKind, PrefixCache, Prompt, load, prefill

TEXT = "Anna lives in Lund. Bruno lives in Porto. Carla lives in Ghent. " * 10


def main() -> None:
    model, tokenizer = load()
    cache = PrefixCache(model)
    text = tokenizer.encode(TEXT)
    for question in ("Anna lives in", "Carla lives in"):
        tokens = text + tokenizer.encode(question)
        prompt = Prompt(tokens, [Boundary(len(text), BoundaryKind.MARK)])
        found = cache.match(prompt)
        live, logits = prefill(model, cache, prompt)
        said: list[int] = []
        for _ in range(4):  # the likeliest token, four times
            said.append(int(np.array(mx.argmax(logits))))
            live.advance(said[-1:])
            logits = model(mx.array(said[-1:])[None], cache=live.caches)[:, -1]
        print(
            f"{question}{tokenizer.decode(said)} | {found.cached_len} of {len(prompt)} tokens cached"
        )


if __name__ == "__main__":
    main()
