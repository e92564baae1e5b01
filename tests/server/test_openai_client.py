"""OpenAI's own client, over a real socket, against a small real model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.serving import WEATHER, Served, served

MODEL = "models/small"
USER = {"role": "user", "content": "What is the weather in Paris?"}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> OpenAI:
    return server.client()


def chat(client: OpenAI, **options: Any) -> Any:
    options = {"model": MODEL, "messages": [USER], "max_tokens": 12, **options}
    return client.chat.completions.create(**options)


def test_chat(client: OpenAI) -> None:
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.keepwarm["source"] in {"none", "ram"}


def test_second_time_is_cached_and_the_same(client: OpenAI) -> None:
    first, second = chat(client), chat(client)
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    assert second.choices[0].message.content == first.choices[0].message.content


def test_conversation_goes_on_from_the_cache(client: OpenAI) -> None:
    first = chat(client)
    history = [USER, first.choices[0].message.to_dict(), {"role": "user", "content": "And Oslo?"}]
    second = chat(client, messages=history)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1


def test_stream(client: OpenAI) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-2].choices[0].finish_reason == "length"


def test_thoughts_come_apart_and_can_be_sent_back(client: OpenAI) -> None:
    # The model never ends its thought by itself; a bias makes it do so.
    end = _token(client, "</think>")
    options = {"extra_body": {"chat_template_kwargs": {"thinks": True}}}
    thinking = chat(client, **options)
    assert thinking.choices[0].message.reasoning_content
    assert thinking.choices[0].message.content == ""
    assert thinking.usage.completion_tokens_details.reasoning_tokens == 12
    ended = chat(client, logit_bias={str(end): 100}, **options)
    assert ended.choices[0].message.reasoning_content == ""
    history = [USER, thinking.choices[0].message.to_dict(), USER]
    assert chat(client, messages=history, **options).choices
    streamed = list(chat(client, stream=True, **options))
    thought = "".join(
        getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in streamed
    )
    assert thought == thinking.choices[0].message.reasoning_content


def test_tool_call(client: OpenAI) -> None:
    answer = chat(client, tools=[WEATHER], tool_choice="required", max_tokens=200)
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Oslo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [USER, answer.choices[0].message.to_dict(), result]
    following = chat(client, messages=history, tools=[WEATHER])
    assert following.usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens - 1


def test_tool_call_in_a_stream(client: OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    chunks = list(chat(client, tools=[WEATHER], tool_choice=named, max_tokens=200, stream=True))
    calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in calls] == [(0, "get_weather")]
    assert json.loads(calls[0].function.arguments)["city"] in {"Paris", "Oslo"}
    assert calls[0].id
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(c.choices[0].delta.content for c in chunks)


def test_no_calls_where_none_are_wanted(client: OpenAI) -> None:
    start = _token(client, "<tool_call>")
    options = {"tools": [WEATHER], "logit_bias": {str(start): 100}, "max_tokens": 3}
    message = chat(client, tool_choice="none", **options).choices[0].message
    assert message.content == "<tool_call>" * 3
    assert message.tool_calls is None


def test_tools_stay_in_the_prompt_where_no_calls_are_wanted(client: OpenAI) -> None:
    auto = chat(client, tools=[WEATHER], tool_choice="auto")
    none = chat(client, tools=[WEATHER], tool_choice="none")
    assert none.usage.prompt_tokens == auto.usage.prompt_tokens
    assert none.usage.prompt_tokens_details.cached_tokens > 0


def test_logprobs(client: OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 12
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        # Greedy: the token that was chosen is the likeliest.
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == entry.top_logprobs[0].logprob
    text = b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace")
    assert text == answer.choices[0].message.content


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs_of_a_thought_are_asked_for(client: OpenAI, streams: bool) -> None:
    thinks = {"chat_template_kwargs": {"thinks": True}, "reasoning_logprobs": True}
    told: dict[str, int] = {"content": 0, "reasoning_content": 0}
    for extra in (thinks, {**thinks, "reasoning_logprobs": False}):
        answer = chat(client, logprobs=True, stream=streams, extra_body=extra)
        for chunk in answer if streams else [answer]:
            entries = chunk.choices[0].logprobs.to_dict()
            told = {name: told[name] + len(entries.get(name) or ()) for name in told}
    assert told == {"content": 0, "reasoning_content": 12}


def test_legacy_logprobs(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Paris", max_tokens=5, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or ()) == len(logprobs.token_logprobs or ()) == 5
    assert answer.choices[0].text.startswith((logprobs.tokens or [""])[0])
    assert [len(top) for top in logprobs.top_logprobs or ()] == [2] * 5


def test_completion_keeps_its_first_space(client: OpenAI) -> None:
    options = {"model": MODEL, "max_tokens": 3, "logit_bias": {str(_token(client, " is")): 100}}
    asked = {"prompt": ["Paris", "Anna lives in"], "logprobs": 0, **options}
    choices = client.completions.create(**asked).choices
    assert [choice.text for choice in choices] == [" is is is"] * 2
    assert [choice.logprobs.tokens for choice in choices] == [[" is"] * 3] * 2
    assert choices[0].logprobs.text_offset == [5, 8, 11]
    assert choices[1].logprobs.text_offset == [13, 16, 19]
    streamed = "".join(
        c.choices[0].text for c in client.completions.create(prompt="Paris", stream=True, **options)
    )
    assert streamed == " is is is"


def test_json_schema(client: OpenAI) -> None:
    answer = chat(client, response_format=FORMAT, max_tokens=200, temperature=1, seed=5)
    value = json.loads(answer.choices[0].message.content)
    assert set(value) == {"city", "sunny"}
    assert answer.choices[0].finish_reason == "stop"


def test_json_object(client: OpenAI) -> None:
    form = {"type": "json_object"}
    closing = {str(_token(client, "}")): 50}
    answer = chat(client, response_format=form, max_tokens=400, logit_bias=closing)
    assert json.loads(answer.choices[0].message.content) == {}


def test_seed_repeats_and_choices_differ(client: OpenAI) -> None:
    options = {"temperature": 1.5, "seed": 7, "n": 3}
    first, second = chat(client, **options), chat(client, **options)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    alone = chat(client, temperature=1.5, seed=8)
    assert alone.choices[0].message.content == texts[1]


def test_stop_text_ends_the_reply_and_is_not_said(client: OpenAI) -> None:
    whole = chat(client).choices[0].message.content
    stop = whole[4:6]
    stopped = chat(client, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == whole[: whole.index(stop)]


def test_completions_of_several_prompts(client: OpenAI) -> None:
    both = client.completions.create(model=MODEL, prompt=["Paris", "Oslo"], max_tokens=5, n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    for prompt, choice in (("Paris", both.choices[0]), ("Oslo", both.choices[2])):
        alone = client.completions.create(model=MODEL, prompt=prompt, max_tokens=5)
        assert choice.text == alone.choices[0].text
    assert both.usage is not None
    assert both.usage.completion_tokens == 20


def test_prompt_may_be_tokens(client: OpenAI, server: Served) -> None:
    tokens = server.post("/tokenize", {"prompt": "Paris"}).json()["tokens"]
    by_tokens = client.completions.create(model=MODEL, prompt=tokens, max_tokens=5)
    by_text = client.completions.create(model=MODEL, prompt="Paris", max_tokens=5)
    assert by_tokens.choices[0].text == by_text.choices[0].text


def test_parallel_requests_get_the_answers_they_get_alone(client: OpenAI) -> None:
    questions = [[{**USER, "content": f"{USER['content']} {i}"}] for i in range(8)]
    alone = [chat(client, messages=q).choices[0].message.content for q in questions]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda q: chat(client, messages=q), questions))
    assert [answer.choices[0].message.content for answer in together] == alone


def test_cancelled_stream_leaves_the_server_well(client: OpenAI, server: Served) -> None:
    stream = chat(client, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_for(lambda: server.engine.status().counters.requests.get("cancelled", 0) > 0)
    assert chat(client).choices


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve("default").id == MODEL


def test_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        chat(client, messages=[{"role": "user", "content": "word " * 5000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_key_is_needed_where_there_are_keys() -> None:
    with served(api_keys=("alpha",)) as guarded:
        assert chat(guarded.client("alpha")).choices
        with pytest.raises(openai.AuthenticationError):
            chat(guarded.client("beta"))


@pytest.mark.parametrize("architecture", ["qwen3_5", "gemma3_text"])
def test_other_kinds_of_layers(architecture: str) -> None:
    with served(architecture) as other:
        client = other.client()
        first, second = chat(client), chat(client)
        assert first.choices[0].message.content == second.choices[0].message.content
        assert second.usage.prompt_tokens_details.cached_tokens > 0


def _token(client: OpenAI, text: str) -> int:
    url = str(client.base_url).removesuffix("v1/")
    answer = client.post(f"{url}tokenize", body={"prompt": text}, cast_to=object)
    assert isinstance(answer, dict)
    (token,) = answer["tokens"]
    assert isinstance(token, int)
    return token


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"regex": "(yes|no)"}}, "yes|no"),
        ({"structured_outputs": {"choice": ["Paris", "Oslo"]}}, "Paris|Oslo"),
        ({"guided_choice": ["Paris", "Oslo"]}, "Paris|Oslo"),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_grammar": 'start: "a" "b"'}, "ab"),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "b"\n'}}, "a|b"),
        ({"grammar": 'root ::= [a-c] "d"\n'}, "[a-c]d"),
        ({"guided_json": CITY}, r"(?s)\{.*\}"),
    ],
)
def test_other_servers_names_for_a_grammar_bind_the_reply(
    client: OpenAI, extra: dict[str, Any], pattern: str
) -> None:
    answer = chat(client, extra_body=extra, max_tokens=100, temperature=1, seed=1)
    assert re.fullmatch(pattern, answer.choices[0].message.content)
    text = client.completions.create(
        model=MODEL, prompt="Hi", extra_body=extra, max_tokens=100, temperature=1, seed=1
    )
    assert re.fullmatch(pattern, text.choices[0].text)


def test_limit_of_minus_one_is_the_servers(client: OpenAI) -> None:
    assert chat(client, max_tokens=-1, stop=["e"]).usage.completion_tokens > 0


def test_fingerprint_is_that_of_the_server(client: OpenAI) -> None:
    one, other = chat(client), chat(client, max_tokens=3)
    assert one.system_fingerprint.startswith("fp_")
    assert one.system_fingerprint == other.system_fingerprint
    for chunk in chat(client, stream=True):
        assert chunk.system_fingerprint == one.system_fingerprint


def test_grammar_beside_tools_is_a_schema_only(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="guided_regex"):
        chat(client, tools=[WEATHER], extra_body={"guided_regex": "a"})
