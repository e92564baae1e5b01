"""Session: conversations with a real (small) model, a real tokenizer and real templates."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

from keepwarm import Grammar, Placement, PrefixCache, Sampling, Session
from keepwarm.cache.explain import Reason
from keepwarm.errors import BadInput, RenderError
from keepwarm.events import Delta, Done, Reading
from tests.server.serving import WEATHER, load

from .architectures.zoo import ARCHITECTURES, Architecture
from .prompt.tokenizers_for_tests import own

SYSTEM = "You are a helpful assistant. The user asks a question, and the assistant answers it."
# A checkpoint at every message, so that short conversations show what long ones do.
PLACEMENT = Placement(min_span=8, prefill_step=64)

HYBRID = ARCHITECTURES["qwen3_5"]
KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2"]


def sized(architecture: Architecture, tokenizer: Any) -> Any:
    """The architecture with a vocabulary that fits the tokenizer."""
    config = {**architecture.config, "vocab_size": len(tokenizer)}
    return Architecture(
        **{f: getattr(architecture, f) for f in ("name", "module", "is_nested", "tweak")},
        config=config,
    ).build(mx.float32)


def session_with(
    architecture: Architecture, template: str = "drops_thoughts", **settings: Any
) -> Session:
    tokenizer = own(template)
    model = sized(architecture, tokenizer)
    cache = PrefixCache(model, placement=PLACEMENT, **settings)
    return Session(model, tokenizer, cache=cache, system=SYSTEM)


def test_completion_keeps_its_first_space() -> None:
    session = session_with(ARCHITECTURES["llama"])
    session.tokenizer = TokenizerWrapper(own("drops_thoughts"), BPEStreamingDetokenizer)
    space = session.tokenizer.encode(" is", add_special_tokens=False)
    sampling = Sampling(logit_bias={space[0]: 100.0})
    assert session.complete("Paris", max_tokens=2, sampling=sampling).result.text == " is is"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_second_turn_reads_only_what_is_new(kind: str, exact: bool) -> None:
    session = session_with(ARCHITECTURES[kind], exact=exact)
    first = session.chat("What is the weather in Paris today?", max_tokens=6).result
    second = session.chat("Thank you!", max_tokens=6).result
    assert first.cached_tokens == 0
    assert first.reason is Reason.COLD
    assert second.cached_tokens > first.prompt_tokens // 2
    assert second.prefilled_tokens == second.prompt_tokens - second.cached_tokens
    session.cache.check()


@pytest.mark.parametrize("kind", KINDS)
def test_exact_session_says_what_a_cold_one_says(kind: str) -> None:
    asked = ["What is the weather in Paris today?", "Thank you!", "And the user?"]
    warm = session_with(ARCHITECTURES[kind], exact=True)
    said = [warm.chat(question, max_tokens=12).result for question in asked]
    cold = session_with(ARCHITECTURES[kind], exact=True, budget_bytes=0)
    again = [cold.chat(question, max_tokens=12).result for question in asked]
    assert [r.tokens for r in said] == [r.tokens for r in again]
    assert sum(r.cached_tokens for r in said) > 0
    assert sum(r.cached_tokens for r in again) == 0


def test_events_tell_progress_then_text_then_the_result() -> None:
    session = session_with(HYBRID)
    events = list(session.chat("What is the weather?", max_tokens=5))
    readings = [e for e in events if isinstance(e, Reading)]
    deltas = [e for e in events if isinstance(e, Delta)]
    assert [e.position for e in readings] == sorted({e.position for e in readings})
    assert readings[-1].position == readings[-1].prompt_tokens
    last = events[-1]
    assert isinstance(last, Done)
    assert last.result is not None
    assert "".join(e.text for e in events) == last.result.text
    assert [e.token for e in deltas][: len(last.result.tokens)] == last.result.tokens
    timings = last.result.timings
    assert 0 < timings.prefill_s < timings.first_token_s
    assert min(timings.lookup_s, timings.insert_s, timings.decode_s) > 0


def test_edited_history_starts_from_the_deepest_state_that_fits() -> None:
    session = session_with(HYBRID)
    for question in ("What is the weather in Paris today?", "Is it sunny?", "Thank you!"):
        session.chat(question, max_tokens=6).result  # noqa: B018
    whole = len(session.messages)
    session.messages = session.messages[:-4]  # back to before the second question
    edited = session.chat("Is it raining?", max_tokens=6).result
    assert edited.reason is Reason.BRANCHED
    assert edited.cached_tokens > 0
    assert len(session.messages) == whole - 2


def test_stream_given_up_leaves_history_alone_and_keeps_the_work() -> None:
    session = session_with(HYBRID)
    stream = session.chat("What is the weather in Paris today?", max_tokens=50)
    for event in stream:
        if isinstance(event, Delta):
            break
    stream.close()
    assert [m["role"] for m in session.messages] == ["system"]
    session.cache.check()
    again = session.chat("What is the weather in Paris today?", max_tokens=2).result
    assert again.cached_tokens > again.prompt_tokens // 2
    assert list(stream) == []


def test_closed_stream_gives_what_there_was_until_then() -> None:
    session = session_with(HYBRID)
    with session.chat("What is the weather in Paris today?", max_tokens=50) as stream:
        told = [next(e for e in stream if isinstance(e, Delta)) for _ in range(3)]
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert result.tokens == [event.token for event in told]
    assert result.text == "".join(event.text for event in told)
    assert len(session.messages) == 1


def test_stream_that_never_ran_has_read_nothing() -> None:
    session = session_with(HYBRID)
    stream = session.chat("What is the weather in Paris today?")
    stream.close()
    assert (stream.result.tokens, stream.result.cached_tokens) == ([], 0)
    assert session.cache.stats().prompt_tokens == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"max_tokens": 0}, "at least 1"), ({"sampling": {"temperature": 1}}, "got dict")],
)
def test_what_cannot_be_meant_is_refused_at_the_call(settings: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        session_with(HYBRID).chat("Hello", **settings)


def test_fork_goes_on_from_here_and_shares_what_was_read() -> None:
    session = session_with(HYBRID)
    first = session.chat("What is the weather in Paris today?", max_tokens=6).result
    other = session.fork()
    said = other.chat("Is it sunny?", max_tokens=4).result
    assert said.cached_tokens > first.prompt_tokens // 2
    assert (len(session.messages), len(other.messages)) == (3, 5)
    other.messages[1]["content"] = "edited"
    assert session.messages[1]["content"] != "edited"


def test_regenerate_puts_another_reply_in_the_place_of_the_last() -> None:
    session = session_with(HYBRID)
    with pytest.raises(BadInput, match="nothing to reply to"):
        Session(session.model, session.tokenizer, cache=session.cache).regenerate()
    first = session.chat("What is the weather?", max_tokens=6).result
    sampling = Sampling(temperature=1.0, seed=3)
    given_up = session.regenerate(sampling=sampling, max_tokens=6)
    next(given_up)
    given_up.close()
    assert session.messages[-1] == first.reply.as_message()
    again = session.regenerate(sampling=sampling, max_tokens=6).result
    assert again.tokens != first.tokens
    assert again.cached_tokens > 0
    assert session.messages[-1] == again.reply.as_message()
    assert len(session.messages) == 3


def test_stop_text_ends_the_reply_and_is_cut_off() -> None:
    session = session_with(HYBRID)
    whole = session.complete("What is the weather", max_tokens=20).result.text
    stop = whole[len(whole) // 2 :][:4]
    result = session.complete("What is the weather", max_tokens=20, stop=stop).result
    assert result.text == whole[: whole.index(stop)]
    assert result.finish_reason == "stop"


def test_reply_fits_the_grammar_behind_the_thought() -> None:
    session = session_with(HYBRID)  # this template opens a thought
    bias = Sampling(logit_bias={session.tokenizer.think_end_tokens[0]: 100.0})
    grammar = Grammar.json({"enum": ["sun", "rain"]})
    reply = session.chat("What is the weather?", max_tokens=20, grammar=grammar, sampling=bias)
    assert reply.result.reply.content in ('"sun"', '"rain"')
    assert (
        session.complete("The", max_tokens=9, grammar=Grammar.regex("a{4}")).result.text == "aaaa"
    )
    with pytest.raises(BadInput, match="regular expression"):
        session.chat("Hello", grammar=Grammar.regex("("))


def test_log_probabilities_come_with_the_tokens() -> None:
    session = session_with(HYBRID)
    events = list(session.complete("What is the weather", max_tokens=4, top_logprobs=3))
    told = [e for e in events if isinstance(e, Delta) and e.token is not None]
    assert len(told) == 4
    for event in told:
        assert event.logprob == max(value for _, value in event.top_logprobs) <= 0
        assert len(event.top_logprobs) == 3


def test_token_ids_are_continued() -> None:
    session = session_with(HYBRID)
    ids = session.tokenizer.encode("What is the weather", add_special_tokens=False)
    assert (
        session.complete(ids, max_tokens=5).result.tokens
        == session.complete("What is the weather", max_tokens=5).result.tokens
    )


def test_thoughts_and_content_are_told_apart() -> None:
    session = session_with(HYBRID)
    bias = Sampling(logit_bias={session.tokenizer.think_end_tokens[0]: 3.0})
    events = list(session.chat("What is the weather?", max_tokens=40, sampling=bias))
    deltas = [e for e in events if isinstance(e, Delta)]
    assert isinstance(events[-1], Done)
    result = events[-1].result
    assert result is not None
    assert "".join(e.text for e in deltas) == result.text
    assert [e.token for e in deltas if e.token is not None] == result.tokens[: len(deltas)]
    thought = "".join(e.text for e in deltas if e.kind == "thought")
    content = "".join(e.text for e in deltas if e.kind == "content")
    assert thought + "</think>" + content == result.text


def test_required_call_is_made_and_parsed() -> None:
    session = Session(*load("qwen3_5"), tools=[WEATHER])
    reply = session.chat("Is it raining?", max_tokens=60, tool_choice="required").result.reply
    assert {call.name for call in reply.tool_calls} == {"get_weather"}
    assert reply.tool_calls[0].arguments in ('{"city": "Oslo"}', '{"city": "Paris"}')


def test_kv_bits_make_a_cache_of_quantized_rows() -> None:
    session = session_with(ARCHITECTURES["llama"])
    quantized = Session(session.model, session.tokenizer, kv_bits=8)
    assert type(quantized.cache.fresh().caches[0]).__name__ == "QuantizedKVCache"
    with pytest.raises(BadInput, match="kv_bits"):
        Session(session.model, session.tokenizer, cache=session.cache, kv_bits=8)


def test_reply_joins_the_history_with_its_reasoning_apart() -> None:
    session = session_with(HYBRID)
    result = session.chat("Hello", max_tokens=4).result
    assert session.messages[-2] == {"role": "user", "content": "Hello"}
    assert session.messages[-1] == result.reply.as_message()


def test_two_sessions_share_a_system_prompt_and_nothing_else() -> None:
    first = session_with(HYBRID)
    other = Session(first.model, first.tokenizer, cache=first.cache, system=SYSTEM)
    first.chat("What is the weather in Paris today?", max_tokens=4).result  # noqa: B018
    result = other.chat("Hello!", max_tokens=4).result
    assert 0 < result.cached_tokens < result.prompt_tokens
    assert len(other.messages) == 3


def test_namespaces_never_share() -> None:
    first = session_with(HYBRID)
    other = Session(
        first.model, first.tokenizer, cache=first.cache, system=SYSTEM, namespace="other"
    )
    first.chat("Hello!", max_tokens=4).result  # noqa: B018
    result = other.chat("Hello!", max_tokens=4).result
    assert result.cached_tokens == 0
    assert result.reason is Reason.OTHER_NAMESPACE


@pytest.mark.parametrize("kind", KINDS)
def test_completion_asked_again_reads_nothing(kind: str) -> None:
    session = session_with(ARCHITECTURES[kind])
    text = "The user asks a question, and the assistant answers it. " * 4
    first = session.complete(text, max_tokens=8).result
    second = session.complete(text, max_tokens=8).result
    assert second.prefilled_tokens == 0
    assert second.tokens == first.tokens


def test_seed_makes_sampling_repeatable() -> None:
    session = session_with(HYBRID)
    sampling = Sampling(temperature=1.0, seed=7)
    text = "What is the weather"
    first = session.complete(text, max_tokens=12, sampling=sampling).result
    second = session.complete(text, max_tokens=12, sampling=sampling).result
    assert first.tokens == second.tokens


def test_seed_holds_while_another_session_draws_between() -> None:
    session = session_with(HYBRID)
    other = Session(session.model, session.tokenizer)
    text, sampling = "What is the weather", Sampling(temperature=1.0, seed=7)
    alone = session.complete(text, max_tokens=12, sampling=sampling).result.tokens
    beside = other.complete("Hello", max_tokens=50, sampling=Sampling(temperature=1.0, seed=8))
    again = session.complete(text, max_tokens=12, sampling=sampling)
    mixed = []
    for event in again:
        mixed += [event.token] if isinstance(event, Delta) else []
        next(beside, None)
    assert again.result.tokens == alone
    assert mixed[: len(alone)] == alone


def test_other_seed_says_something_else() -> None:
    session = session_with(HYBRID)
    said = [
        session.complete("What", max_tokens=12, sampling=Sampling(temperature=1.0, seed=seed))
        for seed in (7, 8, None, None)
    ]
    assert len({tuple(stream.result.tokens) for stream in said}) == 4


def test_seed_leaves_the_global_generator_alone() -> None:
    session = session_with(HYBRID)
    mx.random.seed(3)
    untouched = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(3)
    session.complete("What", max_tokens=4, sampling=Sampling(temperature=1.0, seed=7)).result  # noqa: B018
    assert mx.random.uniform(shape=(4,)).tolist() == untouched


def test_penalties_and_bias_reach_the_reply() -> None:
    session = session_with(HYBRID)
    bias = {5: 1e6, 9: 1e6 - 100}
    biased = session.complete("What", max_tokens=4, sampling=Sampling(logit_bias=bias)).result
    assert biased.tokens == [5, 5, 5, 5]
    moved = Sampling(logit_bias=bias, presence_penalty=500.0)
    assert session.complete("What", max_tokens=3, sampling=moved).result.tokens == [5, 9, 5]


def test_processors_see_prompt_and_reply() -> None:
    session = session_with(HYBRID)
    seen: list[int] = []

    def look(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.size)
        return logits

    result = session.complete("What", max_tokens=4, sampling=Sampling(processors=[look])).result
    start = result.prompt_tokens
    assert seen[:4] == [start, start + 1, start + 2, start + 3]


def test_bad_input_is_named_before_anything_runs() -> None:
    session = session_with(HYBRID)
    with pytest.raises(BadInput, match="max_tokens"):
        session.chat("Hello", max_tokens=0)
    with pytest.raises(RenderError, match="No user query"):
        session.chat({"role": "assistant", "content": "Hello"})
    with pytest.raises(BadInput):
        session.complete("")
    assert session.cache.stats().prompt_tokens == 0


def test_conversation_that_the_template_refuses_goes_on_warm() -> None:
    session = session_with(HYBRID)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "What is this?"}
    first = session.chat({"role": "user", "content": [text, image]}, max_tokens=4).result
    assert first.hygiene == ("attachments",)
    reminder = {"role": "system", "content": "Be brief."}
    second = session.chat([reminder, {"role": "user", "content": "And?"}], max_tokens=4).result
    assert second.hygiene == ("attachments", "later_system")
    assert second.cached_tokens > first.prompt_tokens // 2
    assert session.messages[1] == {"role": "user", "content": [text, image]}
    session.cache.check()


def test_thought_without_end_is_closed_at_the_budget() -> None:
    session = session_with(HYBRID)
    result = session.chat("Hello", max_tokens=24, thinking_budget=8).result
    (end,) = session.tokenizer.think_end_tokens
    assert result.tokens.index(end) == 8
    assert result.reply.content
    again = session.regenerate(max_tokens=24, thinking_budget=4).result
    assert again.tokens.index(end) == 4


CALL = {
    "id": "call1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
CALLED = "\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("said", "decoded", "is_kept"),
    [({"content": "", "tool_calls": [CALL]}, CALLED, True), ({"content": "Sunny"}, "Sunny", False)],
    ids=["tool call", "answer"],
)
def test_reply_is_stored_only_where_the_next_turn_repeats_it(
    said: dict[str, Any], decoded: str, is_kept: bool
) -> None:
    """This template keeps thoughts within a tool loop and drops them when a question follows."""
    session = session_with(HYBRID)
    session.messages.append({"role": "user", "content": "What is the weather?"})
    asked = session._render(session._clean(session.messages))
    session.messages.append({"role": "assistant", "reasoning_content": "Paris", **said})
    reply = f"Paris\n</think>\n\n{decoded}<|im_end|>"
    read = asked.extended(session.tokenizer.encode(reply, add_special_tokens=False))
    assert session.is_append_only(read) is is_kept


def test_stream_closed_in_a_tool_loop_without_ids_raises_nothing() -> None:
    session = session_with(HYBRID)
    call = {"type": "function", "function": CALL["function"]}
    session.messages += [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    stream = session.chat({"role": "tool", "content": "Sunny"}, max_tokens=9)
    for event in stream:
        if isinstance(event, Delta):
            break
    stream.close()
    session.cache.check()
    assert session.chat({"role": "tool", "content": "Sunny"}, max_tokens=2).result.tokens
