"""A language for models that have not learned one: every word is a token, and text comes back from
its tokens as it was, so that a benchmark knows the length of everything. Plain data, any thread."""

from __future__ import annotations

import random
import re
from importlib.resources import files
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|im_end|>"
_MARKUP = (
    "<|endoftext|>", "<|im_start|>", END, "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
# What the replies of `script` are made of, besides words. A tool call is a token of its own, and a
# thought ends with another line break than the one it begins behind.
CALL = '\n{"name": "look", "arguments": {"at": "it"}}\n'
THOUGHT_END = ".\n"
_SEAMS = (THOUGHT_END, "\n\n", CALL, "system", "user", "assistant")
# Ids stay below 1,024: the smallest shapes have no more. Each word has two, behind a blank or not.
NUM_WORDS = 360
_PATTERN = re.escape(CALL) + r"|\.?\n+| ?\w+|\s|[^\s\w]"


def word(number: int) -> str:
    return f"w{number % NUM_WORDS}"


def text(num_tokens: int, seed: str) -> str:
    """So many words, others for every seed. Sentences end where they like."""
    rng = random.Random(seed)
    return " ".join(word(rng.randrange(NUM_WORDS)) for _ in range(num_tokens))


def tokenizer() -> TokenizerWrapper:
    """With the template of the built-in model, which strips thoughts from earlier turns."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=_tokens(),
        eos_token=END,
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = _template()
    return TokenizerWrapper(
        made,
        BPEStreamingDetokenizer,
        tool_parser=_parse_call,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
    )


def _parse_call(text: str, tools: Any = None) -> Any:
    """mlx-lm's own, under a name that no grammar knows: the script's call is one token, and a
    grammar would have it written byte by byte."""
    return json_tools.parse_tool_call(text, tools)


def _tokens() -> Tokenizer:
    visible = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = [*_MARKUP, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    for piece in (*_SEAMS, *(f"{blank}{word(i)}" for blank in ("", " ") for i in range(NUM_WORDS))):
        [(name, _)] = visible.pre_tokenize_str(piece)
        names.append(name)
    vocab = {name: number for number, name in enumerate(dict.fromkeys(names))}
    # No merges: what is no whole word of the vocabulary is taken byte by byte.
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PATTERN), "isolated"), visible]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in _MARKUP[:3]])
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in _MARKUP[3:]])
    return made


def _template() -> str:
    """With `omit_empty_thoughts` among its arguments it does that, as some templates do."""
    template = (files("keepwarm.model") / "sprout" / "chat_template.jinja").read_text("utf-8")
    condition = "loop.index0 > ns.last_query %}"
    assert condition in template
    unless = "loop.index0 > ns.last_query and (thought or not omit_empty_thoughts) %}"
    return template.replace(condition, unless)


def ids(words: Any, piece: str) -> list[int]:
    """The tokens of a piece of text. `words` is a tokenizer."""
    found: list[int] = words.encode(piece, add_special_tokens=False)
    return found
