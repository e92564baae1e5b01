"""Greedy replies of many prompts at once, in torch: recall while training, the suites after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from models.sprout.net import Sprout

Prompt = npt.NDArray[np.int32]


def greedy(
    model: Sprout, prompts: Sequence[Prompt], *, end_id: int, max_new: int, batch_tokens: int
) -> list[list[int]]:
    """The reply of each prompt without its end mark, in the order of the prompts."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    replies: list[list[int]] = [[] for _ in prompts]
    while order:
        longest = len(prompts[order[-1]])
        num_rows = min(len(order), max(1, batch_tokens // longest))
        order, rows = order[:-num_rows], order[-num_rows:]
        made = _greedy_batch(model, [prompts[i] for i in rows], end_id, max_new)
        for i, reply in zip(rows, made):
            replies[i] = reply
    return replies


def _greedy_batch(
    model: Sprout, prompts: Sequence[Prompt], end_id: int, max_new: int
) -> list[list[int]]:
    device = model.model.norm.weight.device
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.zeros((len(prompts), int(lengths.max())), dtype=torch.int64)
    for row, prompt in zip(ids, prompts):
        row[: len(prompt)] = torch.from_numpy(prompt)
    logits, cache = model.prefill(ids.to(device), lengths.to(device), max_new)
    made = []
    is_done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for num_made in range(1, max_new + 1):
        token = logits.argmax(-1)
        made.append(token)
        is_done |= token == end_id
        if num_made == max_new or (num_made % 8 == 0 and bool(is_done.all())):
            break
        logits = model.step(token, cache)
    rows = torch.stack(made, dim=1).tolist()
    return [row[: row.index(end_id)] if end_id in row else row for row in rows]
