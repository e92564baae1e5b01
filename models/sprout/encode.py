"""Samples as token ids, with the tokens that the assistant makes marked. Any process."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from models.sprout.render import prompt_text, spans, text_of
from models.sprout.samples import Sample

Ids = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]


def _backend(tokenizer: Any) -> Any:
    """The fast tokenizer within one of transformers, or the given one."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def encode(sample: Sample, tokenizer: Any, template: str | None = None) -> tuple[Ids, Marks]:
    """The ids of the whole conversation, and which of them are learned. `template` is not needed:
    the text is made by hand, equal to the template's."""
    del template
    found = spans(sample.messages, sample.tools, sample.is_thinking)
    encoded = _backend(tokenizer).encode(text_of(found), add_special_tokens=False)
    ids = np.array(encoded.ids, dtype=np.int32)
    starts = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)[:, 0]
    ends = np.cumsum([len(text) for text, _ in found])  # of each span, in characters
    is_made = np.array([made for _, made in found], dtype=bool)
    return ids, is_made[np.searchsorted(ends, starts, side="right")]


def prompt_ids(sample: Sample, tokenizer: Any) -> Ids:
    """Ids up to and including the generation prompt of the last message."""
    text = prompt_text(sample.messages, sample.tools, sample.is_thinking)
    return np.array(_backend(tokenizer).encode(text, add_special_tokens=False).ids, dtype=np.int32)
