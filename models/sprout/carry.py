"""Carry trained weights over to another tokenizer, so that training need not begin anew: tokens
that both have keep their row of the embedding, a new one begins as the mean of its old pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"


def old_pieces(old: Any, new: Any) -> dict[int, list[int]]:
    """For each id of the new tokenizer, the old ids that spell it: one where both have the token."""
    known = old.get_vocab(with_added_tokens=True)
    pieces = {}
    for token, new_id in new.get_vocab(with_added_tokens=True).items():
        if token in known:
            pieces[new_id] = [known[token]]
        else:  # its letters are bytes, of which every vocabulary has all
            pieces[new_id] = [piece.id for piece in old.model.tokenize(token)]
    return pieces


def carried(weights: dict[str, Tensor], old: Any, new: Any) -> dict[str, Tensor]:
    """`weights` of a model that read with `old`, for one that reads with `new`."""
    rows = weights[EMBEDDING].float()
    moved = rows.clone()
    for new_id, ids in old_pieces(old, new).items():
        moved[new_id] = rows[ids].mean(0)
    return {**weights, EMBEDDING: moved}


def load_carried(weights: Path, tokenizer: Path, new: Any) -> dict[str, Tensor]:
    """From files: weights of a training run, and the tokenizer.json that they were trained with."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    loaded = {name: value.to(torch.float32) for name, value in load_file(str(weights)).items()}
    return carried(loaded, Tokenizer.from_file(str(tokenizer)), new)
