"""Weights go over to another tokenizer: what both know stays, what is new begins as its parts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from models.sprout import carry  # noqa: E402

SHARED = ("<end>", "a", "b")
NUM_ROWS = 300  # of the embedding: as many for any tokenizer


def trained(text: str, vocab_size: int) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_tokens(["<end>"])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Any, Any]:
    old = trained("the cat sat on the mat, the cat ate " * 3, 280)
    new = trained("the dog sat on the log, a dog é and é rat sat " * 3, 280)
    return old, new


def test_pieces_spell_the_token(tokenizers: tuple[Any, Any]) -> None:
    old, new = tokenizers
    num_new = 0
    for new_id, ids in carry.old_pieces(old, new).items():
        spelt = "".join(old.id_to_token(i) for i in ids)
        assert spelt == new.id_to_token(new_id)
        num_new += len(ids) > 1
    assert num_new > 3


def test_shared_tokens_keep_their_row_and_new_ones_are_the_mean(
    tokenizers: tuple[Any, Any],
) -> None:
    old, new = tokenizers
    rows = torch.randn(NUM_ROWS, 4)
    kept = torch.randn(3, 3)
    weights = {carry.EMBEDDING: rows, "model.norm.weight": kept}
    moved = carry.carried(weights, old, new)
    assert moved["model.norm.weight"] is kept
    for token in SHARED:
        there = moved[carry.EMBEDDING][new.token_to_id(token)]
        assert torch.equal(there, rows[old.token_to_id(token)])
    new_id = new.token_to_id("dog")
    assert old.token_to_id("dog") is None
    parts = [piece.id for piece in old.model.tokenize("dog")]
    assert torch.allclose(moved[carry.EMBEDDING][new_id], rows[parts].mean(0))


def test_the_same_tokenizer_changes_nothing(tokenizers: tuple[Any, Any]) -> None:
    old, _ = tokenizers
    rows = torch.randn(NUM_ROWS, 4)
    moved = carry.carried({carry.EMBEDDING: rows}, old, old)
    assert torch.equal(moved[carry.EMBEDDING], rows)
