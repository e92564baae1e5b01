"""Anthropic's own client against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from keepwarm.prompt.boundaries import Prompt
from tests.server.scripted import follow
from tests.server.serving import Served, served, tokenizer

MODEL = "some-model"
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOON = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
# What the last message asks for is what the model says.
REPLIES = {
    "Plain?": "Plainly.",
    "Think!": "<think>\nHm.\n</think>\n\nYes.",
    "Call!": f"I look.\n{CALL}",
    "Both!": f"{CALL}\n{NOON}",
    "Think and call!": f"<think>\nOslo.\n</think>\n\n{CALL}",
    "Stop!": "One STOP two",
}


def write(prompt: Prompt) -> str | None:
    asked = tokenizer().decode(prompt.tokens.tolist()).split("<|im_start|>")[-2]
    return next((reply for words, reply in REPLIES.items() if words in asked), None)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(context_len=4096) as running:
        follow(running.engine, write)
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def say(client: Anthropic, *messages: Any, **options: Any) -> anthropic.types.Message:
    asked = {"model": MODEL, "max_tokens": 64, "messages": turns(*messages), **options}
    message: anthropic.types.Message = client.messages.create(**asked)
    return message


def stream(client: Anthropic, *messages: Any, **options: Any) -> tuple[list[Any], Any]:
    """The raw events and the message that the client's helper makes of them."""
    asked = {"model": MODEL, "max_tokens": 64, "messages": turns(*messages), **options}
    with client.messages.stream(**asked) as running:
        events = list(running)
        return events, running.get_final_message()


def turns(*messages: Any) -> list[Any]:
    roles = ("user", "assistant")
    return [
        m if isinstance(m, dict) else {"role": roles[i % 2], "content": m}
        for i, m in enumerate(messages)
    ]


def shape(message: Any) -> list[dict[str, Any]]:
    """The blocks without what is made up for each."""
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    for block in blocks:
        block.pop("id", None)
    return [{k: v for k, v in block.items() if k != "parsed_output"} for block in blocks]


def test_text_with_its_usage(client: Anthropic) -> None:
    message = say(client, "Plain?", system="Be brief.")
    assert shape(message) == [{"type": "text", "text": "Plainly."}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.model == "models/small"
    again = say(client, "Plain?", system="Be brief.")
    counted = client.messages.count_tokens(
        model=MODEL, messages=turns("Plain?"), system="Be brief."
    )
    for told in (message.usage, again.usage):
        parts = (told.input_tokens, told.cache_creation_input_tokens, told.cache_read_input_tokens)
        assert sum(part or 0 for part in parts) == counted.input_tokens
    assert again.usage.cache_read_input_tokens
    assert message.to_dict()["keepwarm"]["prefilled_tokens"] == message.usage.input_tokens


@pytest.mark.parametrize("words", [*REPLIES])
def test_stream_says_what_the_whole_says(client: Anthropic, words: str) -> None:
    options = {"tools": [WEATHER, TIME], "stop_sequences": ["STOP"]}
    whole = say(client, words, **options)
    events, streamed = stream(client, words, **options)
    assert shape(streamed) == shape(whole)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.stop_sequence == whole.stop_sequence
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    total = streamed.usage.input_tokens + (streamed.usage.cache_read_input_tokens or 0)
    assert total == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]


def test_usage_is_counted_once_however_a_client_adds_it_up(server: Served) -> None:
    # Claude Code keeps what message_start said of a number that message_delta has as 0.
    body = {"max_tokens": 8, "messages": turns("Count me, please."), "stream": True}
    for _ in range(2):  # cold, then found whole: nothing is read
        told: dict[str, int] = {}
        for line in server.post("/v1/messages", body).text.splitlines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data") else {}
            usage = event.get("usage") or event.get("message", {}).get("usage") or {}
            told |= {k: v for k, v in usage.items() if isinstance(v, int) and v > 0}
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        counted = server.post("/v1/messages/count_tokens", {"messages": body["messages"]}).json()
        assert sum(told.get(kind, 0) for kind in kinds) == counted["input_tokens"]


def test_call_is_told_while_it_is_written(client: Anthropic) -> None:
    events, message = stream(client, "Call!", tools=[WEATHER])
    deltas = [e.delta for e in events if e.type == "content_block_delta"]
    written = [delta.partial_json for delta in deltas if delta.type == "input_json_delta"]
    assert len(written) > 2
    assert json.loads("".join(written)) == {"city": "Oslo"}
    call = message.content[-1]
    assert call.input == {"city": "Oslo"}
    # Under the same name the next turn knows it.
    begun = next(e for e in events if e.type == "content_block_start" and e.index == 1)
    assert begun.content_block.id == call.id


def test_call_that_the_limit_cuts_off_is_closed(client: Anthropic) -> None:
    events, message = stream(client, "Call!", tools=[WEATHER], max_tokens=24)
    kinds = [event.type for event in events]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert message.stop_reason == "max_tokens"


def test_events_come_in_order(server: Served) -> None:
    body = {"max_tokens": 64, "messages": turns("Think and call!"), "tools": [WEATHER]}
    text = server.post("/v1/messages?beta=true", {**body, "stream": True}).text
    events = [part.split("\n", 1) for part in text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    datas = [json.loads(line.removeprefix("data: ")) for _, line in events]
    assert names == [data["type"] for data in datas]
    blocks = [(d["type"], d.get("index")) for d in datas if "content_block" in d["type"]]
    assert blocks[0] == ("content_block_start", 0)
    assert [at for kind, at in blocks if kind == "content_block_stop"] == [0, 1]
    assert [d["content_block"]["type"] for d in datas if "content_block" in d] == [
        "thinking", "tool_use",
    ]  # fmt: skip
    assert datas[-2]["keepwarm"]["reason"]


def test_call_and_its_result(client: Anthropic) -> None:
    asked = say(client, "Call!", tools=[WEATHER])
    assert asked.stop_reason == "tool_use"
    said, call = asked.content
    assert (said.type, call.type) == ("text", "tool_use")
    assert call.input == {"city": "Oslo"}  # type: ignore[union-attr]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Snow."}  # type: ignore[union-attr]
    history = ["Call!", asked.to_param()["content"], [result, {"type": "text", "text": "Plain?"}]]
    assert shape(say(client, *history, tools=[WEATHER])) == [{"type": "text", "text": "Plainly."}]


def test_parallel_calls(client: Anthropic) -> None:
    calls = say(client, "Both!", tools=[WEATHER, TIME]).content
    assert [call.name for call in calls] == ["get_weather", "get_time"]  # type: ignore[union-attr]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "A"}]}  # type: ignore[union-attr]
        for call in calls
    ]
    results[1] |= {"is_error": True}
    history = ["Both!", [call.to_dict() for call in calls], results]
    assert say(client, *history, tools=[WEATHER, TIME], max_tokens=1).usage.output_tokens == 1


def test_thought_that_is_shown_comes_back_to_what_was_cached(client: Anthropic) -> None:
    message = say(client, "Think! " * 30, tools=[WEATHER])
    assert message.content[0].type == "thinking"
    assert message.content[0].thinking == "Hm."
    assert message.content[0].signature
    usage = message.usage
    read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    after = say(client, "Think! " * 30, message.to_param()["content"], "Plain?", tools=[WEATHER])
    assert (after.usage.cache_read_input_tokens or 0) > read


def test_thought_that_is_not_shown_travels_in_its_signature(client: Anthropic) -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    _, message = stream(client, "Think! " * 30, thinking=thinking)
    thought = message.content[0]
    assert (thought.type, thought.thinking) == ("thinking", "")
    assert thought.signature
    usage = message.usage
    read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    history = ["Think! " * 30, message.to_param()["content"], "Plain?"]
    after = say(client, *history, thinking=thinking)
    assert (after.usage.cache_read_input_tokens or 0) > read


def test_display_of_thoughts_may_be_a_word_that_is_not_documented(client: Anthropic) -> None:
    thinking: Any = {"type": "adaptive", "display": "updates"}  # as Claude Code 2.1.328 asks
    assert shape(say(client, "Think!", thinking=thinking))[0]["thinking"] == "Hm."


def test_stop_sequence_is_named(client: Anthropic) -> None:
    message = say(client, "Stop!", stop_sequences=["never", "STOP"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    assert shape(message) == [{"type": "text", "text": "One "}]


def test_reply_that_is_too_long(client: Anthropic) -> None:
    assert say(client, "Go", max_tokens=3).stop_reason == "max_tokens"
    counted = client.messages.count_tokens(model=MODEL, messages=turns("word " * 810))
    room = 4096 - counted.input_tokens
    assert 0 < room < 200, room
    message = say(client, "word " * 810, max_tokens=500)
    if message.usage.output_tokens == room:
        assert message.stop_reason == "model_context_window_exceeded"
    else:
        assert message.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "any"}, {"get_weather", "get_time"}), ({"type": "tool", "name": "get_time"}, {"get_time"})],
)  # fmt: skip
def test_choice_of_a_tool_binds(client: Anthropic, choice: Any, names: set[str]) -> None:
    message = say(client, "Go", tools=[WEATHER, TIME], tool_choice=choice, max_tokens=100)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert calls or message.stop_reason == "max_tokens"
    assert {call.name for call in calls} <= names


def test_choice_of_none_leaves_calls_alone(client: Anthropic) -> None:
    message = say(client, "Call!", tools=[WEATHER], tool_choice={"type": "none"})
    assert shape(message) == [{"type": "text", "text": f"I look.\n{CALL}"}]


def test_structured_output_fits_its_schema(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    config: Any = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    message = say(client, "Go", output_config=config)
    assert json.loads(message.content[0].text) == {}  # type: ignore[union-attr]


def test_server_tool_is_left_out_and_told(client: Anthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    raw = client.messages.with_raw_response.create(
        model=MODEL, max_tokens=8, messages=turns("Plain?"), tools=[search, TIME]
    )
    assert "web_search" in raw.headers["x-keepwarm-notes"]
    assert "web_search" in raw.parse().to_dict()["keepwarm"]["notes"][0]  # type: ignore[index]
    plain = client.messages.count_tokens(model=MODEL, messages=turns("Plain?"), tools=[TIME])
    both = client.messages.count_tokens(model=MODEL, messages=turns("Plain?"), tools=[search, TIME])
    assert plain.input_tokens == both.input_tokens


def test_deferred_tool_is_written_where_it_is_referenced(client: Anthropic) -> None:
    late: Any = {**WEATHER, "defer_loading": True}
    search: Any = {"name": "find_tools", "input_schema": {"type": "object"}}

    def num_tokens(*messages: Any, tools: Any) -> int:
        counted = client.messages.count_tokens(model=MODEL, messages=turns(*messages), tools=tools)
        return counted.input_tokens

    assert num_tokens("Hi", tools=[search, late]) == num_tokens("Hi", tools=[search])
    call = {"type": "tool_use", "id": "toolu_1", "name": "find_tools", "input": {}}
    reference = {"type": "tool_reference", "tool_name": "get_weather"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}
    history = ["Hi", [call], [result, {"type": "text", "text": "Call!"}]]
    message = say(client, *history, tools=[search, late])
    assert message.content[-1].type == "tool_use"
    before = say(client, "Hi", tools=[search, late], max_tokens=1).usage
    after = say(client, *history, tools=[search, late], max_tokens=1).usage
    assert after.cache_read_input_tokens
    assert before.input_tokens + (before.cache_read_input_tokens or 0) < (
        after.input_tokens + (after.cache_read_input_tokens or 0)
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": turns("a", "b")}, "last message"),
        ({"messages": turns([{"type": "tool_use", "id": "a"}])}, "messages[0].content[0]"),
        ({"tools": [{"name": "a"}]}, "tools[0]"),
        ({"tool_choice": {"type": "tool", "name": "none"}, "tools": [TIME]}, "tool_choice"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
    ],
)
def test_what_cannot_be_meant_is_refused(client: Anthropic, fields: Any, words: str) -> None:
    asked = {"model": MODEL, "max_tokens": 4, "messages": turns("Hi"), **fields}
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**asked)
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"]
    assert refused.value.request_id == body["request_id"]


def test_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for(
    client: Anthropic,
) -> None:
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4096 max"
    ):
        say(client, "word " * 6000)


def test_errors_have_anthropics_form() -> None:
    with served(api_keys=("alpha",)) as locked:
        stranger = Anthropic(base_url=locked.url, api_key="beta", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as denied:
            say(stranger, "Hi")
        assert denied.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        friend = Anthropic(base_url=locked.url, api_key="alpha", max_retries=0)
        assert say(friend, "Hi", max_tokens=1).usage.output_tokens == 1
        with pytest.raises(anthropic.NotFoundError) as missing:
            friend.get("/v1/nothing", cast_to=object)
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


def test_client_that_leaves_is_not_served_on(server: Served, client: Anthropic) -> None:
    def num_cancelled() -> int:
        return server.engine.status().counters.requests.get("cancelled", 0)

    before = num_cancelled()
    with client.messages.stream(
        model=MODEL, max_tokens=3000, messages=turns("Go on and on")
    ) as running:
        next(event for event in running if event.type == "content_block_delta")
    server.wait_for(lambda: num_cancelled() == before + 1)


def test_failure_in_a_stream_is_its_last_event() -> None:
    with served(context_len=100_000) as stopping:
        client = Anthropic(base_url=stopping.url, api_key="none", max_retries=0)
        options: Any = {"model": MODEL, "max_tokens": 90_000, "messages": turns("Go")}
        with client.messages.stream(**options) as running:
            next(event for event in running if event.type == "content_block_delta")
            stopping.engine.stop()
            with pytest.raises(anthropic.APIStatusError) as failed:
                running.until_done()
        assert failed.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


def test_line_about_billing_never_reaches_the_prompt(server: Served) -> None:
    def system(version: str) -> list[dict[str, Any]]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version};"}
        mark = {"cache_control": {"type": "ephemeral"}} if version else {}
        return [header, {"type": "text", "text": "Be brief.", **mark}]

    prompts = [
        server.post("/v1/messages/count_tokens", {"messages": turns("Hi"), "system": words}).json()
        for words in (system("1"), system("2.34"), system(""), "Be brief.")
    ]
    assert prompts[0] == prompts[1] == prompts[2] == prompts[3]


def test_models_are_listed_for_this_client_too(client: Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.max_input_tokens) == ("models/small", 4096)
    assert client.models.retrieve("default").display_name == "models/small"


def test_client_finds_the_server(server: Served) -> None:
    assert server.http.head("/").status_code == 200
    assert server.http.head("/api/hello").status_code == 200
    assert server.http.get("/").json()["server"] == "keepwarm"
