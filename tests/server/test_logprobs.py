"""Log probabilities: tokens as text and as bytes."""

from __future__ import annotations

import pytest
from tokenizers import decoders

from keepwarm.events import Delta
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.scan import scanner_of
from keepwarm.server.logprobs import SortedTokens, chat_entry, text_entries, token_bytes, token_text
from tests.prompt.tokenizers_for_tests import make_sentencepiece
from tests.server.serving import TEMPLATE, tokenizer


def token_of(piece: str) -> int:
    found = tokenizer().convert_tokens_to_ids(piece)
    assert isinstance(found, int)
    return found


def test_token_is_told_with_its_rivals() -> None:
    a, b = token_of("A"), token_of("B")
    delta = Delta("A", a, -0.5, ((a, -0.5), (b, -1.5), (b, -2.5)))
    assert chat_entry(tokenizer(), delta, 2) == {
        "token": "A",
        "logprob": -0.5,
        "bytes": [65],
        "top_logprobs": [
            {"token": "A", "logprob": -0.5, "bytes": [65]},
            {"token": "B", "logprob": -1.5, "bytes": [66]},
        ],
    }


def test_offsets_go_on_where_the_last_ones_ended() -> None:
    deltas = [Delta("A", token_of("A"), -0.5), Delta("B", token_of("B"), -0.25)]
    entries = text_entries(tokenizer(), deltas, 7, 0)
    assert entries == {
        "tokens": ["A", "B"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{}, {}],
        "text_offset": [7, 8],
    }


def test_half_a_character_has_its_own_bytes() -> None:
    pieces = [token_bytes(tokenizer(), token) for token in tokenizer().encode("🙂")]
    assert b"".join(pieces).decode() == "🙂"
    assert len(pieces) > 1


def test_byte_of_a_sentencepiece_vocabulary_is_a_byte() -> None:
    made = make_sentencepiece(TEMPLATE)
    made.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert token_bytes(made, made.convert_tokens_to_ids("<0xF0>")) == b"\xf0"


CALL = ["<tool_call>", '{"name": "f"', ', "arguments": {}}', "</tool_call>"]
SORTED: dict[str, tuple[list[str], str, str, str]] = {
    "thought and content": (
        ["Hm", ".", "</think>", "\n\n", "Hel", "lo", "\n"],
        "Hello\n", "Hm.", "Hello\n",
    ),
    "call": (["Hm", "</think>", "\n\n", "On it", "\n", *CALL], "On it", "Hm", "On it"),
    "tag in pieces": (["Hm", "</th", "ink", ">", "Hi"], "Hi", "Hm", "Hi"),
    "blank content is kept": (["</think>", "\n", "Hi"], "\nHi", "", "\nHi"),
    "no tag after all": (["</think>", "a ", "<", "b"], "a <b", "", "a <b"),
    "call that cannot be read": (["</think>", "a", "<tool_call>", "5", "</tool_call>"],
        "a<tool_call>5</tool_call>", "", "a<tool_call>5</tool_call>"),
    "half a character": (["</think>", "", "", "é", "!"], "é!", "", "é!"),
    "held until the end": (["</think>", "a", " <tool"], "a <tool", "", "a <tool"),
}  # fmt: skip


@pytest.mark.parametrize(("texts", "content", "thought", "said"), SORTED.values(), ids=SORTED)
def test_tokens_are_sorted_into_content_and_thought(
    texts: list[str], content: str, thought: str, said: str
) -> None:
    prompt = render_chat(
        tokenizer(), [{"role": "user", "content": "Hi"}], template_kwargs={"thinks": True}
    )
    tokens = SortedTokens(scanner_of(tokenizer(), prompt, None))
    told = [entry for text in texts for entry in tokens.push(Delta(text, 1, -0.5), content)]
    told += tokens.end("stop", content)
    kinds = {"normal": "", "reasoning": ""}
    for kind, token in told:
        kinds[kind] += token.text
    assert kinds == {"normal": said, "reasoning": thought}
    if "" in texts:
        assert len(told) == len(texts) - 1


def test_token_beyond_the_tokenizer_has_no_text() -> None:
    assert token_text(tokenizer(), 10**9) == ""
    assert token_bytes(tokenizer(), 10**9) == b""
