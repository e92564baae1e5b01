"""Trains the tokenizer on generated text and writes its files beside the model's.

    python -m models.sprout.tokenizer

Byte-level BPE, digits one by one. Names, values and numbers have the same tokens wherever they
stand: only common words take the space before them along, so that copying is copying ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from models.sprout.common import COMMON
from models.sprout.render import spans
from models.sprout.samples import make_sample

FOLDER = Path(__file__).parents[2] / "src" / "keepwarm" / "model" / "sprout"
VOCAB_SIZE = 4096
_NUM_SAMPLES = 12000
# `common` are the words that may have their space with them.
_SPLIT = (
    r"'(?:s|t|re|ve|m|ll|d)(?!\p{L})"
    r"| (?:I|%(common)s)(?![\p{L}\p{N}_])"
    r"|\p{Ll}+"
    r"|\p{Lu}+(?!\p{Ll})|\p{Lu}\p{Ll}*"
    r"|\p{N}"
    r"|[.,;:!?]+ (?=[\p{L}\p{N}])"
    r"|\s*[\r\n]+"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def _texts(num_samples: int) -> Iterator[str]:
    """What the training reads, without the markup."""
    for index in range(num_samples):
        sample = make_sample(Random(f"tokenizer-{index}"), 400)
        for text, _ in spans(sample.messages, sample.tools, sample.is_thinking):
            for mark in (*_SPECIAL, *_TAGS):
                text = text.replace(mark, "\n")
            yield text


def _trie(options: Sequence[str]) -> str:
    """A pattern for any of `options` that is decided letter by letter."""
    by_letter: dict[str, list[str]] = {}
    for option in sorted(set(options)):
        by_letter.setdefault(option[:1], []).append(option[1:])
    is_end = by_letter.pop("", None) is not None
    branches = [letter + _trie(rest) for letter, rest in by_letter.items()]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{joined})?" if is_end else joined


def train(num_samples: int = _NUM_SAMPLES) -> Any:
    """A new tokenizer. Takes about a minute."""
    split = _SPLIT % {"common": _trie(COMMON)}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(_SPECIAL) - len(_TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_samples), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in _SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in _TAGS])
    return tokenizer


def write(tokenizer: Any, folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def load(folder: Path = FOLDER) -> Any:
    """The trained tokenizer, without transformers."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    write(train())
