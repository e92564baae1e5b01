"""Where prompts part, and why: of random edits the place is the edit's, and the cause too."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.explain.miss import Miss, Read, find_miss
from keepwarm.explain.recent import Asked, Recent, Seen
from keepwarm.prompt.boundaries import Prompt, shared_len
from keepwarm.prompt.render import render_chat
from tests.server.serving import WEATHER, tokenizer

Chat = list[dict[str, Any]]
WORDS = [
    "water",
    "is",
    "the",
    "only",
    "thing",
    "that",
    "falls",
    "from",
    "the",
    "sky",
    "and",
    "the",
    "river",
    "takes",
    "it",
    "to",
    "the",
    "sea",
    "where",
    "the",
    "sun",
    "lifts",
    "it",
    "again",
    "while",
    "people",
    "on",
    "the",
    "bank",
    "count",
    "boats",
    "and",
    "write",
    "the",
    "number",
    "down",
]


def asked(messages: Chat, tools: list[Any] | None = None, **kwargs: Any) -> Asked:
    prompt = render_chat(tokenizer(), messages, tools=tools, template_kwargs=kwargs)
    return Asked.chat(prompt, messages, tools, kwargs)


def missed(
    before: Asked,
    now: Asked,
    *,
    cached_len: int | None = None,
    reason: str = "branched",
    **more: Any,
) -> Miss | None:
    recent = Recent()
    recent.add("", Seen.of(before, more.get("reply", ()), has_thought=more.get("thinks", False)))
    if cached_len is None:  # all that they share
        cached_len = shared_len(before.prompt.tokens, now.prompt.tokens)
    read = Read(cached_len, reason, 2.0)
    return find_miss(recent, "", now, read, tokenizer().decode)


LONGEST_TOKEN = 24


def text(first: int, count: int = 40) -> str:
    """Words that come in this order nowhere else."""
    return " ".join(Random(first).choices(WORDS, k=count))


def talk(num_messages: int = 4) -> Chat:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text(5 * i)} for i in range(num_messages)]
    return [{"role": "system", "content": text(50)}, *turns]


TOOLS = [
    {"type": "function", "function": {"name": name, "description": text(i), "parameters": {}}}
    for i, name in enumerate(("look_up", "write_down", "count"))
]


@given(
    messages=st.integers(2, 6).map(talk),
    which=st.integers(0, 5),
    at=st.floats(0, 1),
    word=st.sampled_from(["XYZ", "4711", "quite another", "10:01"]),
)
def test_place_is_that_of_the_edit(messages: Chat, which: int, at: float, word: str) -> None:
    edited, index = deepcopy(messages), which % len(messages)
    words = edited[index]["content"].split()
    place = int(at * (len(words) - 1))
    words[place] = word
    edited[index]["content"] = " ".join(words)
    before, now = asked(messages), asked(edited)
    miss = missed(before, now)
    if miss is None:  # little stands behind the edit, or before it
        return
    decode = tokenizer().decode
    was, is_now = (decode(side.prompt.tokens.tolist()) for side in (before, now))
    differs = next(i for i in range(len(was)) if was[i] != is_now[i])
    shared = decode(now.prompt.tokens[: miss.parted_at].tolist())
    assert len(shared) <= differs <= len(shared) + LONGEST_TOKEN
    if index == 0:
        assert miss.place == "the system prompt"
    else:
        assert miss.place == f"message {index + 1} ({messages[index]['role']})"
    assert miss.cause == "the text differs here"
    assert miss.was != miss.now


@given(st.permutations(TOOLS), st.integers(1, 4).map(talk))
def test_order_of_tools_is_a_cause_that_is_proven(tools: list[Any], messages: Chat) -> None:
    miss = missed(asked(messages, TOOLS), asked(messages, tools))
    if tools == TOOLS:
        return  # the whole prompt is shared: what was lost is the cache's
    assert miss is not None
    assert miss.place == "the tools"
    assert miss.cause == "the same tools in another order"
    assert miss.advice is not None


@given(st.integers(1, 6).map(talk), st.integers(0, 5), st.integers(0, 30))
def test_white_space_is_a_cause_that_is_proven(messages: Chat, which: int, at: int) -> None:
    spaced, index = deepcopy(messages), which % len(messages)
    words = spaced[index]["content"].split()
    spaced[index]["content"] = " ".join(words[: at + 1]) + "  " + " ".join(words[at + 1 :])
    miss = missed(asked(messages), asked(spaced))
    assert miss is None or miss.cause in ("white space alone", "the text differs here")
    if miss is not None and at < 20:  # enough stands behind it to be compared
        assert miss.cause == "white space alone"


def test_changed_new_and_missing_tools_are_named() -> None:
    changed = deepcopy(TOOLS)
    changed[1]["function"]["description"] = text(9)
    for tools, cause in (
        (changed, "the tool write_down changed"),
        ([WEATHER, *TOOLS], "the tool get_weather is new"),
        (TOOLS[1:], "the tool look_up is gone"),
    ):
        miss = missed(asked(talk(), TOOLS), asked(talk(), tools))
        assert miss is not None
        assert miss.cause == cause


def test_white_space_alone_and_other_tokens_of_equal_text_are_told_apart() -> None:
    messages, spaced = talk(), talk()
    spaced[1]["content"] = spaced[1]["content"].replace(" ", "  ", 1)
    miss = missed(asked(messages), asked(spaced))
    assert miss is not None
    assert miss.cause == "white space alone"
    now = asked(messages)
    tokens = now.prompt.tokens.tolist()
    split = list(tokens)
    at = next(i for i, t in enumerate(split) if len(tokenizer().decode([t])) > 3 and i > 30)
    pieces = [
        tokenizer().encode(c, add_special_tokens=False)[0] for c in tokenizer().decode([split[at]])
    ]
    other = Asked.chat(Prompt([*split[:at], *pieces, *split[at + 1 :]]), messages, None, {})
    miss = missed(other, now)
    assert miss is not None
    assert miss.parted_at == at
    assert miss.cause == "equal text in other tokens"


def test_thought_that_is_not_sent_back_and_one_that_the_template_takes_out() -> None:
    question = talk(1)
    now = [*question, {"role": "assistant", "content": text(3)}, {"role": "user", "content": "So?"}]
    before = asked(question)
    reply = tokenizer().encode(
        f"<think>\n{text(7)}\n</think>\n\n{text(3)}", add_special_tokens=False
    )
    told = {"reply": reply, "thinks": True, "cached_len": len(before.prompt)}
    miss = missed(before, asked(now), **told)
    assert miss is not None
    assert (miss.place, miss.cause) == ("the reply to it", "thinking was not sent back")
    now[-2]["reasoning_content"] = text(8)
    miss = missed(before, asked(now), **told)
    assert miss is not None
    assert miss.cause == "the template takes past thoughts out"


def test_arguments_of_the_template_are_a_cause() -> None:
    miss = missed(asked(talk()), asked(talk(), thinks=True))
    if miss is not None:
        assert miss.cause != "the text differs here"


def test_prompt_that_was_stored_and_is_gone_is_the_caches_loss() -> None:
    chat = asked(talk())
    for reason, words in (
        ("evicted", "evicted to make room"),
        ("no_checkpoint", "no checkpoint"),
        ("cold", "no longer in the cache"),
    ):
        miss = missed(chat, chat, cached_len=0, reason=reason)
        assert miss is not None
        assert words in miss.cause
        assert miss.again == len(chat.prompt)
        assert miss.again_s == 2.0


def test_what_is_new_is_no_miss() -> None:
    before, now = asked(talk(2)), asked(talk(4))
    assert missed(before, now, cached_len=len(before.prompt) - 3) is None
    assert missed(before, asked([{"role": "user", "content": text(13) + "?"}])) is None


def test_text_is_left_out_where_it_is_to_be_hidden() -> None:
    edited = talk()
    edited[0]["content"] = "\x1b[31mwine " + edited[0]["content"]
    miss = missed(asked(talk()), asked(edited))
    assert miss is not None
    assert "wine" in miss.words
    assert "\x1b" not in miss.words
    hidden = miss.without_text()
    assert "wine" not in hidden.words + str(hidden.as_json())
    assert (hidden.parted_at, hidden.cause) == (miss.parted_at, miss.cause)
