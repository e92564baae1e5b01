"""Small tokenizers made on the spot: byte-level BPE that merges like the large ones do, with the
markup of a chat template as added tokens. Nothing is downloaded."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

OWN_TEMPLATES = Path(__file__).parent / "templates"
SHARED_TEMPLATES = Path(__file__).parents[3] / "shared" / "templates"

BOS, EOS = "<s>", "</s>"

# What the vendors make added tokens of. Tags with capitals or attributes stay plain text.
_MARKUP = re.compile(
    r"<\|[^|<>\s']+\|?>|<[a-z_]+\|>|<｜[^｜<>\s{}']+｜>|</?(?:think|tool_call|tool_response)(?::\w+)?>"
    r"|\[/?[A-Z_]{3,}\]|\[gMASK\]|<sop>|<SPECIAL_\d+>|</?(?:start|end)_of_turn>|<sep>"
    r"|\]~!?b[\[\]]|\[e~\["
)

# How GPT-4's tokenizer, and most since, split text before merging.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CORPUS = [
    "You are a helpful assistant. The user asks a question, and the assistant answers it.",
    "What is the weather in Paris today? It is sunny, and 21 degrees.\n\nThank you!\n",
    '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
    "<|im_start|>user\n<tool_response>\n</tool_response>\n<think>\n\n</think>\n\n",
    "user assistant system tool User: Assistant: System: human: \n\n\n  \n",
] * 4


@functools.cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return str(tokenizer.to_str())


def make_tokenizer(
    template: str | None,
    *,
    extra_tokens: tuple[str, ...] = (),
    adds_bos: bool = False,
    adds_eos: bool = False,
    trained: str | None = None,
) -> Any:
    """A fast tokenizer that renders with `template` and knows its markup as added tokens.
    `trained` is another vocabulary than the small one."""
    tokenizer = Tokenizer.from_str(trained or _trained())
    markup = sorted({BOS, EOS, *_MARKUP.findall(template or ""), *extra_tokens})
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in markup])
    if adds_bos or adds_eos:
        whole = " ".join([*[BOS] * adds_bos, "$A", *[EOS] * adds_eos])
        added = [(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)]
        tokenizer.post_processor = processors.TemplateProcessing(whole, None, added)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
    made.chat_template = template
    return made


def make_sentencepiece(template: str) -> Any:
    """As `make_tokenizer`, in the manner of Llama 2: a space is a letter, and one is put before
    the text and behind every added token."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    markup = sorted({BOS, EOS, *_MARKUP.findall(template)})
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in markup])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
    made.chat_template = template
    return made


@functools.cache
def own(name: str) -> Any:
    """A tokenizer with one of this repository's templates."""
    return make_tokenizer((OWN_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))


@functools.cache
def shared(name: str) -> Any:
    """A tokenizer with one of the templates as their makers publish them."""
    template = (SHARED_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    # One of them puts the names of its tokens together while it renders.
    tokens = [
        token.format(":opensource") for token in re.findall(r"'(<[^' ]+{}[^' ]*>)'", template)
    ]
    return make_tokenizer(template, extra_tokens=tuple(tokens))
