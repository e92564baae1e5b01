"""Models that say what a script says, and compute all the same."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step

from keepwarm.bench import words
from keepwarm.bench.script import Prompter, Script, tool
from keepwarm.bench.shapes import build

TOKENIZER = words.tokenizer()
[END] = words.ids(TOKENIZER, words.END)
SCRIPTS = {
    "answer": Script(thought_len=5, answer_len=3),
    "long": Script(thought_len=100, answer_len=170),
    "call": Script(thought_len=5, is_call=True),
}


@pytest.fixture
def model() -> Any:
    return build("qwen3-small")


def prompt() -> list[int]:
    found: list[int] = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": words.text(40, "user")}],
        tools=[tool()],
        add_generation_prompt=True,
    )
    return found


def said(model: Any, tokens: list[int], max_tokens: int) -> list[int]:
    found: list[int] = []
    for token, _ in generate_step(mx.array(tokens), model, max_tokens=max_tokens):
        found.append(int(token))
        if found[-1] == END:
            break
    return found


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_greedy_reply_is_the_script_to_its_end(model: Any, script: Script) -> None:
    Prompter(model, TOKENIZER, 1024).play(script)
    reply = script.reply(TOKENIZER)
    assert said(model, prompt(), len(reply) + 5) == [*reply, END]


def test_reply_is_thought_then_answer() -> None:
    script = SCRIPTS["answer"]
    text = TOKENIZER.decode(script.reply(TOKENIZER))
    assert text == "w0 w1 w2 w3.\n</think>\n\nw180 w181 w182"
    assert script.thought == "w0 w1 w2 w3."
    assert script.content == "w180 w181 w182"


def test_lengths_are_those_of_the_thought_and_the_answer() -> None:
    markup = words.ids(TOKENIZER, "</think>\n\n")
    reply = Script(thought_len=40, answer_len=20).reply(TOKENIZER)
    assert len(reply) == 40 + len(markup) + 20


def test_more_words_than_there_are_is_refused() -> None:
    with pytest.raises(AssertionError, match="at most 180 words"):
        Script(answer_len=181).reply(TOKENIZER)


def test_weights_and_what_the_model_computes_stay_as_they_were(model: Any) -> None:
    tokens = mx.array([prompt()])
    other = build("qwen3-small")
    other.update(model.parameters())
    plain = other(tokens)
    prompter = Prompter(model, TOKENIZER, 1024)
    scripted = model(tokens)
    overruled = mx.arange(plain.shape[-1]) == mx.argmax(scripted, axis=-1, keepdims=True)
    assert mx.array_equal(mx.where(overruled, 0, scripted), mx.where(overruled, 0, plain))
    assert len(tree_flatten(model.parameters())) == len(tree_flatten(other.parameters()))
    assert type(model).__module__ == type(other).__module__
    assert prompter.reads.num_tokens == tokens.size


def test_what_is_read_is_counted_and_what_is_decoded_is_not(model: Any) -> None:
    prompter = Prompter(model, TOKENIZER, 1024)
    tokens = prompt()
    said(model, tokens, 8)
    # mlx-lm keeps the last token of a prompt for the first step.
    assert prompter.reads.num_tokens == len(tokens) - 1
    assert prompter.reads.num_calls == 1
