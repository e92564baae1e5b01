"""How many architectures give other bits when the same prompt is cut in another way.

    python -m bench.chunking

Where the bits are the same, a test of exactness that looks at bits alone cannot tell whether a
restored prompt was read in the right chunks.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from keepwarm.cache.store import PrefixCache
from tests.architectures.drive import bits, feed, random_tokens
from tests.architectures.zoo import ARCHITECTURES

TOKENS = random_tokens(145, 0)
CUTS = ([30, 60, 90, 120, 145], [37, 80, 145])


def main() -> None:
    for dtype in (mx.float32, mx.bfloat16):
        differing = [name for name in ARCHITECTURES if shows(name, dtype)]
        print(f"{dtype} on {mx.default_device()}: {len(differing)} of {len(ARCHITECTURES)} differ")
        print("  " + " ".join(differing), flush=True)


def shows(name: str, dtype: mx.Dtype) -> bool:
    model = ARCHITECTURES[name].build(dtype)
    one, other = (bits(read(model, cuts)) for cuts in CUTS)
    return one != other


def read(model: Any, cuts: list[int]) -> mx.array:
    live = PrefixCache(model, budget_bytes=0).fresh()
    for cut in cuts:
        logits = feed(model, live, TOKENS[live.position : cut])
    return logits


if __name__ == "__main__":
    main()
