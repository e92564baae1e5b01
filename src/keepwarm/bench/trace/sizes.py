"""What the states of a large hybrid weigh and how long its prefill takes. Plain data.

From the public configuration of a model, with 2 bytes for rows and convolutions and 4 for
recurrent states, as mlx-lm keeps them:

    row       attention layers x (key + value) x key-value heads x head size x 2
    snapshot  recurrent layers x (state x 4 + (kernel - 1) x convolution channels x 2)
    prefill   FLOPs of a token = 2 x active weights + 4 x attention layers x query heads x head
              size x tokens before it
"""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.errors import BadInput


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes and seconds of one model."""

    name: str
    row_bytes: int  # of one token
    snapshot_bytes: int
    token_flops: float  # of the weights
    depth_flops: float  # of attention, for each token before it

    # Of the machine: so that a model of 3B active weights reads 1,000 tokens a second at first.
    flops_per_s: float = 6e12

    def prefill_s(self, start: int, end: int) -> float:
        """Seconds for the tokens `start ... end - 1`."""
        tokens = float(end - start)
        depth = (start + end) / 2
        return tokens * (self.token_flops + self.depth_flops * depth) / self.flops_per_s


_QWEN = Sizes(
    "qwen3.5-35b-a3b",
    # 10 layers of 2 key-value heads of 256: 10 x 2 x 2 x 256 x 2.
    row_bytes=20_480,
    # 30 layers of 32 heads of 128 x 128: 62.9 MB without the convolutions.
    snapshot_bytes=63_000_000,
    token_flops=2 * 3.0e9,
    depth_flops=4 * 10 * 16 * 256,
)

_NEMOTRON = Sizes(
    # NVIDIA-Nemotron-3-Nano-30B-A3B: 52 layers, of which 23 Mamba 2 and 6 attention.
    "nemotron-h-30b",
    # 2 key-value heads of 128.
    row_bytes=6 * 2 * 2 * 128 * 2,
    # 64 heads of 64 x 128; a convolution of 4 over 64 x 64 + 2 x 8 groups x 128 channels.
    snapshot_bytes=23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2),
    token_flops=2 * 3.2e9,
    depth_flops=4 * 6 * 32 * 128,
)

MODELS = {sizes.name: sizes for sizes in (_QWEN, _NEMOTRON)}


def sizes_named(name: str) -> Sizes:
    """Raises BadInput."""
    if name not in MODELS:
        raise BadInput(f"there are no sizes of {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]
