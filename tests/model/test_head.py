"""The head of a model by itself gives what the whole gives behind the last token."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from keepwarm.model.head import head_of, last_logits, longest_end
from tests.architectures.zoo import ARCHITECTURES


def logits_of(model: Any, tokens: mx.array) -> mx.array:
    whole: mx.array = model(tokens, cache=make_prompt_cache(model))
    return whole


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_a_head_by_itself(name: str) -> None:
    model = ARCHITECTURES[name].build(mx.float32)
    tokens = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    whole = logits_of(model, tokens)
    last = last_logits(model, tokens, make_prompt_cache(model))
    assert last.shape == (1, whole.shape[-1])
    assert mx.allclose(last, whole[:, -1], rtol=1e-4, atol=1e-5)
    assert head_of(model).module is not None
    # Nobody else notices.
    assert mx.array_equal(logits_of(model, tokens), whole)


@pytest.mark.parametrize("is_tied", [True, False])
def test_quantized_heads_too(is_tied: bool) -> None:
    model = ARCHITECTURES["qwen3"].build(mx.float32)
    model.args.tie_word_embeddings = is_tied
    if not is_tied and "lm_head" not in model:
        model.lm_head = nn.Linear(model.args.hidden_size, model.args.vocab_size, bias=False)
    nn.quantize(model, group_size=32, bits=8)
    tokens = mx.array([[3, 1, 4, 1, 5]])
    whole = logits_of(model, tokens)
    last = last_logits(model, tokens, make_prompt_cache(model))
    assert mx.allclose(last, whole[:, -1], rtol=1e-3, atol=1e-4)
    assert head_of(model).module is not None


def test_no_more_logits_than_one_are_made() -> None:
    model = ARCHITECTURES["qwen3"].build(mx.float32)
    with head_of(model).narrowed():
        assert logits_of(model, mx.array([[3, 1, 4]])).shape[1] == 1
    assert logits_of(model, mx.array([[3, 1, 4]])).shape[1] == 3


class Backwards(nn.Module):
    """Its head reads the tokens in the other order: the last one it is given is the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.layers: list[Any] = []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        out: mx.array = self.head(self.embed(tokens)[:, ::-1])[:, ::-1]
        return out


def test_a_head_that_is_not_what_it_seems_is_left_alone() -> None:
    model = Backwards()
    tokens = mx.array([[3, 1, 4]])
    whole = model(tokens)
    assert mx.array_equal(last_logits(model, tokens, []), whole[:, -1])
    assert head_of(model).module is None
    assert type(model.head) is nn.Linear
    assert not hasattr(model.head, "_keepwarm_head")


TOKENS = mx.array([[3, 1, 4, 1, 5]])


def is_narrow(model: Any) -> bool:
    with head_of(model).narrowed():
        return logits_of(model, TOKENS).shape[1] == 1


def test_a_head_may_be_shared() -> None:
    """By a model in another, and by one whose trial fails."""
    model = ARCHITECTURES["gemma3"].build(mx.float32)
    assert head_of(model).module is head_of(model.language_model).module
    assert is_narrow(model)
    assert is_narrow(model.language_model)
    backwards, other = Backwards(), Backwards()
    forwards = Forwards(backwards)
    assert head_of(forwards).module is backwards.head
    assert head_of(backwards).module is None
    assert is_narrow(forwards)
    assert head_of(other).module is None


class Forwards(nn.Module):
    def __init__(self, other: Backwards) -> None:
        super().__init__()
        self.embed, self.head, self.layers = other.embed, other.head, other.layers

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        out: mx.array = self.head(self.embed(tokens))
        return out


def test_another_thread_sees_all() -> None:
    model = ARCHITECTURES["qwen3"].build(mx.float32)
    found = []

    def look() -> None:
        found.append(logits_of(model, TOKENS).shape[1])
        mx.clear_streams()

    mx.eval(model.parameters())
    with head_of(model).narrowed():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [5]


def test_a_head_that_was_replaced_is_let_go() -> None:
    model = ARCHITECTURES["qwen3"].build(mx.float32)
    assert head_of(model).module is not None
    nn.quantize(model, group_size=32, bits=8)
    whole = logits_of(model, TOKENS)
    assert mx.allclose(last_logits(model, TOKENS, make_prompt_cache(model)), whole[:, -1])
    assert head_of(model).module is None
    assert longest_end(model) == 0


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - our own


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_find_their_own(copied: Any) -> None:
    model = ARCHITECTURES["qwen3"].build(mx.float32)
    expected = last_logits(model, TOKENS, make_prompt_cache(model))
    other = copied(model)
    assert mx.array_equal(last_logits(other, TOKENS, make_prompt_cache(other)), expected)
    assert head_of(other).module is not head_of(model).module
    assert is_narrow(other)
    assert is_narrow(model)
