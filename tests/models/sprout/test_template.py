"""The chat template: equal to the fast renderer, and one whose boundaries keepwarm finds."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import load as load_wrapped
from transformers import AutoTokenizer, PretrainedConfig

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.render import render_chat
from models.sprout.encode import encode, prompt_ids
from models.sprout.lexicon import HELD_OUT, TRAINING
from models.sprout.render import prompt_text, spans, text_of
from models.sprout.samples import KINDS, Sample, make_sample
from models.sprout.tokenizer import FOLDER, VOCAB_SIZE
from tests.prompt.conversations import TOOLS, assistant, common_len, lasting, system, user
from tests.prompt.test_render_laws import check_boundaries
from tests.prompt.test_shared_templates import LOOPS, SCENARIOS, WITH_TOOLS, word


@functools.cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER, config=PretrainedConfig())


@functools.cache
def wrapped() -> Any:
    return load_wrapped(FOLDER, {"config": PretrainedConfig()})


def samples(kind: str, num: int = 25) -> list[Sample]:
    return [
        make_sample(random.Random(f"template-{kind}-{i}"), 300, kind, (TRAINING, HELD_OUT)[i % 2])
        for i in range(num)
    ]


def by_template(sample: Sample, messages: Any, add_generation_prompt: bool) -> str:
    text: str = tokenizer().apply_chat_template(
        messages,
        tools=sample.tools,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=sample.is_thinking,
    )
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_fast_renderer_equals_the_template(kind: str) -> None:
    for sample in samples(kind):
        found = text_of(spans(sample.messages, sample.tools, sample.is_thinking))
        assert found == by_template(sample, sample.messages, False)
        prompt = prompt_text(sample.messages, sample.tools, sample.is_thinking)
        assert prompt == by_template(sample, sample.messages[:-1], True)
        assert found.startswith(prompt)


def test_fast_renderer_equals_the_template_for_text_before_calls() -> None:
    asked, added = SCENARIOS["tool loop"]
    calling = {**asked[1], "content": "One moment.", "tool_calls": asked[1]["tool_calls"] * 2}
    messages = [asked[0], calling, *asked[2:], *added]
    for is_thinking in (True, False):
        for length in range(1, len(messages) + 1):
            found = text_of(spans(messages[:length], TOOLS, True))
            assert found == tokenizer().apply_chat_template(
                messages[:length], tools=TOOLS, tokenize=False, enable_thinking=is_thinking
            )


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_ids_are_the_beginning_of_the_samples_ids(kind: str) -> None:
    for sample in samples(kind, 10):
        ids, is_target = encode(sample, tokenizer())
        prompt = prompt_ids(sample, tokenizer())
        assert ids[: len(prompt)].tolist() == prompt.tolist()
        assert is_target[len(prompt) : -1].all()
        assert not is_target[len(prompt) - 1]
        assert not is_target[-1]


def test_targets_are_what_assistants_said() -> None:
    for sample in samples("tool_result", 10):
        ids, is_target = encode(sample, tokenizer())
        said = tokenizer().decode(ids[is_target])
        made = [
            text
            for text, is_made in spans(sample.messages, sample.tools, sample.is_thinking)
            if is_made
        ]
        assert said == "".join(made)


def test_values_have_the_same_tokens_wherever_they_stand() -> None:
    def ids(text: str) -> list[int]:
        return list(tokenizer().encode(text, add_special_tokens=False))

    for value in ("Lund", "zorbolin", "K7-42", "4182", "lamp", "Min Shousmick"):
        alone = ids(value)
        for text in (f"It is {value}.", f'{{"city": "{value}"}}', f"- {value}: x", f"the {value}"):
            within = ids(text)
            places = range(len(within))
            assert any(within[i : i + len(alone)] == alone for i in places), (value, text)


def test_tokenizer_is_whole() -> None:
    assert len(tokenizer()) == VOCAB_SIZE
    assert tokenizer().eos_token == "<|im_end|>"
    assert tokenizer().pad_token == "<|endoftext|>"
    for text in ("Hello, wörld 漢字 🙂\n\n\ttabs  and   spaces", "<think>\nx\n</think>", "12345"):
        assert tokenizer().decode(tokenizer().encode(text, add_special_tokens=False)) == text
    assert len(tokenizer().encode("12345", add_special_tokens=False)) == 5
    for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>"):
        assert len(tokenizer().encode(tag, add_special_tokens=False)) == 1


def test_mlx_lm_knows_thoughts_and_calls() -> None:
    assert wrapped().has_thinking
    assert wrapped().has_tool_calling
    parsed = wrapped().tool_parser('\n{"name": "f", "arguments": {"x": 1}}\n', None)
    assert parsed == {"name": "f", "arguments": {"x": 1}}


def test_keepwarm_parses_thought_and_calls() -> None:
    sample = next(s for s in samples("tool") if s.is_thinking and s.messages[-1].get("tool_calls"))
    prompt = render_chat(wrapped(), sample.messages[:-1], tools=sample.tools)
    made = spans(sample.messages, sample.tools, sample.is_thinking)[-2][0]
    reply = parse_reply(
        wrapped(), made.removesuffix("<|im_end|>"), prompt=prompt, tools=sample.tools
    )
    assert reply.reasoning is not None
    assert reply.reasoning.strip() == sample.messages[-1]["reasoning_content"]
    wanted = [call["function"] for call in sample.messages[-1]["tool_calls"]]
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == [
        (call["name"], call["arguments"]) for call in wanted
    ]


def test_thinking_is_on_by_default() -> None:
    messages = [user("Hello")]
    on = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert on.endswith("<|im_start|>assistant\n<think>\n")
    off = tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert off.endswith("<think>\n\n</think>\n\n")


def rendered(scenario: str, messages: Any) -> Prompt:
    tools = TOOLS if scenario in WITH_TOOLS else None
    return render_chat(tokenizer(), messages, tools=tools)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_message_ends_at_a_boundary(scenario: str) -> None:
    asked, added = SCENARIOS[scenario]
    messages = [*asked, *added]
    prompt = rendered(scenario, messages)
    check_boundaries(tokenizer(), prompt)
    text = tokenizer().decode(prompt.tokens)
    ends = {
        len(tokenizer().decode(prompt.tokens[: b.position])) for b in lasting(prompt, len(prompt))
    }
    for message, following in zip(messages, [*messages[1:], None]):
        end = text.index(word(message)) + len(word(message))
        limit = text.index(word(following)) if following is not None else len(text)
        assert any(end <= place <= limit for place in ends)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_next_turn_reuses_all_but_dropped_thoughts(scenario: str) -> None:
    asked, added = SCENARIOS[scenario]
    first, second = rendered(scenario, asked), rendered(scenario, [*asked, *added])
    kept = common_len(first, second)
    assert lasting(first, kept) == lasting(second, kept)
    reusable = max((b.position for b in lasting(first, kept)), default=0)
    if scenario == "tool loop":  # its thoughts go when a question follows
        assert scenario in LOOPS
        assert first.last_message_end is not None
        assert first.last_message_end > kept
    else:
        assert reusable == first.last_message_end


def test_thoughts_leave_history_and_stay_in_a_tool_loop() -> None:
    told = [user("Hi"), assistant("Hello", reasoning_content="Avocet"), user("Again")]
    assert "Avocet" not in tokenizer().apply_chat_template(told, tokenize=False)
    asked, _ = SCENARIOS["tool loop"]
    assert "Avocet" in tokenizer().apply_chat_template(asked, tools=TOOLS, tokenize=False)


def test_odd_messages_are_rendered() -> None:
    parts = [{"type": "text", "text": "Kestrel"}, {"type": "text", "text": "Plover"}]
    messages = [system("One."), {"role": "developer", "content": "Two."}, user(parts)]
    text = tokenizer().apply_chat_template(messages, tools=TOOLS, tokenize=False)
    assert "KestrelPlover" in text
    assert text.count("One.") == text.count("Two.") == 1
    bare = [{"type": "function", "function": {"name": "now"}}]
    text = tokenizer().apply_chat_template([user("Hi")], tools=bare, tokenize=False)
    assert '{"name": "now", "parameters": {}}' in text
