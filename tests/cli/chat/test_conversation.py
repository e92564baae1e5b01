"""A conversation with a real engine and a small hybrid model, whose states cannot be cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from keepwarm import Engine, Placement, PrefixCache, Sampling
from keepwarm.cli.chat.conversation import Conversation, Turn
from keepwarm.errors import BadInput
from tests.architectures.zoo import ARCHITECTURES
from tests.prompt.tokenizers_for_tests import make_tokenizer

# Thoughts are dropped from history, and asked for unless told otherwise.
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}"""
MARKUP = ("<think>", "</think>", "<|im_start|>", "<|im_end|>")


def load() -> tuple[Any, Any]:
    tokenizer = TokenizerWrapper(make_tokenizer(TEMPLATE, extra_tokens=MARKUP))
    made = ARCHITECTURES["qwen3_5"]
    config = {**made.config, "vocab_size": len(tokenizer)}
    return replace(made, config=config).build(mx.float32), tokenizer


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    placement = Placement(min_span=16, prefill_step=64)
    with Engine(
        load, make_cache=lambda model: PrefixCache(model, budget_bytes=10**9, placement=placement)
    ) as running:
        yield running


@pytest.fixture
def conversation(engine: Engine) -> Conversation:
    return Conversation(engine, max_tokens=24)


def finished(turn: Turn) -> Turn:
    for _ in turn.events():
        pass
    return turn


def wait_for(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never became so")


def saying(tokenizer: Any, text: str) -> Sampling:
    """The model says just that, once."""
    left = [*tokenizer.encode(text), tokenizer.eos_token_id]

    def force(_tokens: mx.array, logits: mx.array) -> mx.array:
        if not left:
            return logits
        return mx.where(mx.arange(logits.shape[-1]) == left.pop(0), logits, -mx.inf)

    return Sampling(processors=(force,))


def cached(turn: Turn) -> int:
    assert turn.result is not None
    return turn.result.cached_tokens


def read(turn: Turn) -> int:
    assert turn.result is not None
    return turn.result.prefilled_tokens


def test_next_turn_reads_only_what_is_new_when_the_rest_was_read_ahead(
    conversation: Conversation,
) -> None:
    said = "hm\n</think>\n\nThe lamp burns since six, and two ships have passed without lights."
    conversation.sampling = saying(conversation.engine.tokenizer, said)
    conversation.system = "Keep the log of a lighthouse, word by word. " * 4
    first = finished(conversation.ask("The lamp was lit at six, the wind is from the west."))
    assert first.reply.reasoning == "hm"
    counters = conversation.engine.status
    wait_for(lambda: counters().counters.idle_tokens > 0)
    before = counters().counters.idle_saved_tokens
    second = finished(conversation.ask("Who?"))
    assert read(second) < 24
    wait_for(lambda: counters().counters.idle_saved_tokens > before)
    assert conversation.totals.num_turns == 2


def test_question_asked_again_is_not_read_again(conversation: Conversation) -> None:
    finished(conversation.ask("The first thing that was ever asked here, and it is long enough."))
    finished(conversation.ask("The second one."))
    again = finished(conversation.retry())
    assert len(conversation.messages) == 4
    assert conversation.messages[2]["content"] == "The second one."
    assert cached(again) > 16
    edited = finished(conversation.retry("Another."))
    assert [m["content"] for m in conversation.messages if m["role"] == "user"][1:] == ["Another."]
    assert cached(edited) > 16


def test_system_prompt_that_the_template_refuses_is_part_of_the_question(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    monkeypatch.setattr(engine.tokenizer._tokenizer, "chat_template", refusing + TEMPLATE)
    conversation = Conversation(engine, max_tokens=4, system="Be brief.")
    finished(conversation.ask("Hello"))
    assert conversation.messages[0]["content"] == "Hello"
    assert conversation.with_system([])[0] == {"role": "system", "content": "Be brief."}


def test_thought_without_end_is_closed_at_the_budget(engine: Engine) -> None:
    turn = finished(Conversation(engine, max_tokens=24, thinking_budget=8).ask("Hello"))
    assert turn.reply.reasoning
    assert turn.reply.content
    tags = engine.tokenizer.think_end_tokens
    assert turn.result is not None
    assert turn.result.tokens.index(tags[0]) == 8


def test_undo_takes_a_question_and_its_answer_back(conversation: Conversation) -> None:
    finished(conversation.ask("One."))
    before = list(conversation.messages)
    finished(conversation.ask("Two."))
    assert conversation.undo() == "Two."
    assert conversation.messages == before
    conversation.undo()
    for refused in (conversation.undo, conversation.retry):
        with pytest.raises(BadInput, match="nothing has been asked"):
            refused()


def test_stopped_answer_is_kept_as_far_as_it_came(engine: Engine) -> None:
    conversation = Conversation(engine, 4000, template_kwargs={"enable_thinking": False})
    turn = conversation.ask("Go on and on.")
    for _ in turn.events():
        if len(turn.reply.content) > 20:
            turn.stop()
    assert turn.result is not None
    assert turn.result.finish_reason == "cancelled"
    assert conversation.messages[-1]["content"] == turn.reply.content
    assert len(turn.result.tokens) < 4000


def test_question_whose_answer_never_began_is_forgotten(engine: Engine) -> None:
    conversation = Conversation(engine, 4000)
    for begin in (lambda: conversation.ask("Think."), conversation.retry):
        before = list(conversation.messages)
        turn = begin()
        turn.stop()
        finished(turn)
        assert conversation.messages == before
        conversation.messages = [{"role": "user", "content": "a"}]


def test_thinking_is_switched_in_the_template(conversation: Conversation) -> None:
    assert conversation.set_thinking("off")
    turn = finished(conversation.ask("Quick."))
    assert turn.reply.reasoning is None
    assert conversation.set_thinking("on")
    assert finished(conversation.ask("Slow.")).reply.reasoning
    with pytest.raises(BadInput, match="on or off"):
        conversation.set_thinking("maybe")
