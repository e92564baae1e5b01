"""OpenAI's own client, by its Responses API, against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from keepwarm.prompt.boundaries import Prompt
from keepwarm.server.errors import ApiError
from keepwarm.server.protocols.responses import store as stores
from keepwarm.server.protocols.responses.schema import Item
from keepwarm.server.protocols.responses.store import Store
from tests.server.scripted import follow
from tests.server.serving import Served, served, tokenizer

MODEL = "some-model"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME: Any = {"type": "function", "name": "get_time", "parameters": None, "strict": False}
NOTES: Any = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "Notes.",
    "tools": [
        {
            "type": "function",
            "name": "read_note",
            "strict": False,
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
        }
    ],
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. This is a FREEFORM tool, so do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" /.*/'},
}
SEARCH: Any = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
TOOLS = [WEATHER, TIME, NOTES, PATCH, SEARCH, {"type": "web_search"}]


def call(tool: str, /, **arguments: Any) -> str:
    written = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


# What the last message asks for is what the model says.
REPLIES = {
    "Plain?": "Plainly.",
    "Think!": "<think>\nHm.\n</think>\n\nYes.",
    "Call!": "I look.\n" + call("get_weather", city="Oslo"),
    "Both!": call("get_weather", city="Oslo") + "\n" + call("get_time"),
    "Think and call!": "<think>\nOslo.\n</think>\n\n" + call("get_weather", city="Oslo"),
    "Note!": call("mcp__notes__read_note", name="today"),
    "Patch!": call("apply_patch", input='*** Begin "a"\n+ü\n'),
    "Search!": call("tool_search", query="mail"),
    "Mail!": call("mail__send", to="Anna"),
}


def write(prompt: Prompt) -> str | None:
    asked = tokenizer().decode(prompt.tokens.tolist()).split("<|im_start|>")[-2]
    return next((reply for words, reply in REPLIES.items() if words in asked), None)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(context_len=8192, api_keys=("alpha", "beta")) as running:
        follow(running.engine, write)
        running.http.headers["authorization"] = "Bearer alpha"
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> OpenAI:
    return server.client("alpha")


def ask(client: OpenAI, given: Any, **options: Any) -> Any:
    return client.responses.create(
        model=MODEL, input=given, **{"max_output_tokens": 200, **options}
    )


def stream(client: OpenAI, given: Any, **options: Any) -> tuple[list[Any], Any]:
    """The events and the response that the client's helper makes of them."""
    asked = {"model": MODEL, "input": given, "max_output_tokens": 200, **options}
    with client.responses.stream(**asked) as running:
        events = list(running)
        return events, running.get_final_response()


def shape(response: Any) -> list[dict[str, Any]]:
    """The items without what is made up for each."""
    items = response.to_dict()["output"]
    for part in (part for item in items for part in item.get("content") or ()):
        part.pop("parsed", None)
    return [
        {k: v for k, v in item.items() if k not in ("id", "call_id", "parsed_arguments")}
        for item in items
    ]


def cached(response: Any) -> int:
    return int(response.usage.input_tokens_details.cached_tokens)


def test_text_with_its_usage(client: OpenAI) -> None:
    first = ask(client, "Plain? " * 40, instructions="Be brief.")
    assert first.output_text == "Plainly."
    assert (first.status, first.error, first.incomplete_details) == ("completed", None, None)
    assert first.model == "models/small"
    assert first.instructions == "Be brief."
    again = ask(client, "Plain? " * 40, instructions="Be brief.")
    assert again.usage.input_tokens == first.usage.input_tokens
    assert cached(again) >= first.usage.input_tokens - 1
    assert again.usage.total_tokens == again.usage.input_tokens + again.usage.output_tokens
    assert first.to_dict()["keepwarm"]["prefilled_tokens"] == first.usage.input_tokens


@pytest.mark.parametrize("words", [words for words in REPLIES if words != "Mail!"])
@pytest.mark.parametrize("summary", [None, "auto"])
def test_stream_says_what_the_whole_says(client: OpenAI, words: str, summary: Any) -> None:
    options: Any = {"tools": TOOLS, "include": ["reasoning.encrypted_content"]}
    if summary:
        options["reasoning"] = {"summary": summary}
    whole = ask(client, words, **options)
    events, streamed = stream(client, words, **options)
    assert shape(streamed) == shape(whole)
    assert streamed.status == whole.status == "completed"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")


def test_events_are_numbered_and_named(server: Served) -> None:
    body = {"input": "Think and call!", "tools": [WEATHER], "stream": True}
    text = server.post("/v1/responses", body).text
    events = [part.split("\n", 1) for part in text.strip().split("\n\n") if part[0] != ":"]
    datas = [json.loads(line.removeprefix("data: ")) for _, line in events]
    assert [name.removeprefix("event: ") for name, _ in events] == [d["type"] for d in datas]
    assert [d["sequence_number"] for d in datas] == [*range(len(datas))]
    places = [d["output_index"] for d in datas if "output_index" in d]
    assert places == sorted(places)
    assert {*places} == {0, 1}
    texts = "".join(d["delta"] for d in datas if d["type"] == "response.reasoning_text.delta")
    assert texts == "Oslo."


def test_call_and_its_result(client: OpenAI) -> None:
    first = ask(client, "Call!", tools=[WEATHER])
    said, called = first.output
    assert (said.type, called.type) == ("message", "function_call")
    assert (called.name, json.loads(called.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "Snow."}
    history = [{"role": "user", "content": "Call!"}, *first.output, result]
    question = {"role": "user", "content": [{"type": "input_text", "text": "Plain?"}]}
    after = ask(client, [*history, question], tools=[WEATHER])
    assert after.output_text == "Plainly."
    read = first.usage.input_tokens + first.usage.output_tokens
    assert cached(after) >= read - 4


def test_parallel_calls(client: OpenAI) -> None:
    calls = ask(client, "Both!", tools=[WEATHER, TIME]).output
    assert [each.name for each in calls] == ["get_weather", "get_time"]
    results = [
        {"type": "function_call_output", "call_id": each.call_id, "output": [
            {"type": "input_text", "text": "A"}, {"type": "input_image", "image_url": "data:,"},
        ]}
        for each in calls
    ]  # fmt: skip
    history = [{"role": "user", "content": "Both!"}, *calls, *results]
    after = ask(client, [*history, {"role": "user", "content": "Plain?"}], tools=[WEATHER, TIME])
    assert after.output_text == "Plainly."


@pytest.mark.parametrize("reasoning", [{}, {"summary": "auto"}])
@pytest.mark.parametrize("carrier", ["encrypted_content", "content"])
def test_thought_comes_back_to_what_was_cached(
    client: OpenAI, reasoning: Any, carrier: str
) -> None:
    question = f"Think! {carrier} {reasoning} " * 10
    options: Any = {"reasoning": reasoning, "include": ["reasoning.encrypted_content"]}
    _, first = stream(client, question, **options)
    thought, said = (item.to_dict() for item in first.output)
    assert thought["type"] == "reasoning"
    place = "summary" if reasoning else "content"
    assert [part["text"] for part in thought[place]] == ["Hm."]
    if carrier == "encrypted_content":
        thought = {**thought, "summary": [], "content": None}
    else:
        thought["encrypted_content"] = None
    history = [{"role": "user", "content": question}, thought, said]
    after = ask(client, [*history, {"role": "user", "content": "Plain?"}], **options)
    assert cached(after) > first.usage.input_tokens
    assert first.usage.output_tokens_details.reasoning_tokens


def test_tool_of_a_namespace_keeps_its_two_names(client: OpenAI) -> None:
    first = ask(client, "Note!", tools=TOOLS)
    (called,) = first.output
    assert (called.namespace, called.name) == ("mcp__notes", "read_note")
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "42"}
    history = [{"role": "user", "content": "Note!"}, called.to_dict(), result]
    after = ask(client, [*history, {"role": "user", "content": "Plain?"}], tools=TOOLS)
    assert cached(after) >= first.usage.input_tokens + first.usage.output_tokens - 4


def test_custom_tool_takes_text(client: OpenAI) -> None:
    _, first = stream(client, "Patch!", tools=TOOLS)
    (called,) = first.output
    assert (called.type, called.name) == ("custom_tool_call", "apply_patch")
    assert called.input == '*** Begin "a"\n+ü\n'
    result = {"type": "custom_tool_call_output", "call_id": called.call_id, "output": "Done."}
    history = [{"role": "user", "content": "Patch!"}, called.to_dict(), result]
    after = ask(client, [*history, {"role": "user", "content": "Plain?"}], tools=TOOLS)
    assert cached(after) >= first.usage.input_tokens + first.usage.output_tokens - 4


def test_tools_that_a_search_found_can_be_called(client: OpenAI) -> None:
    parameters = {"type": "object", "properties": {"to": {"type": "string"}}}
    send = {"type": "function", "name": "send", "parameters": parameters}
    later = {**send, "defer_loading": True, "name": "later"}
    first = ask(client, "Search!", tools=[*TOOLS, later])
    (searched,) = first.output
    assert (searched.type, searched.execution) == ("tool_search_call", "client")
    assert searched.arguments == {"query": "mail"}
    found = {
        "type": "tool_search_output", "call_id": searched.call_id, "status": "completed",
        "execution": "client", "tools": [{"type": "namespace", "name": "mail", "tools": [send]}],
    }  # fmt: skip
    history = [{"role": "user", "content": "Search!"}, searched.to_dict(), found]
    asked = {"role": "user", "content": "Mail!"}
    after = ask(client, [*history, asked], tools=[*TOOLS, later])
    (called,) = after.output
    assert (called.namespace, called.name) == ("mail", "send")
    # The definitions stand behind what was cached, not in front of it.
    assert cached(after) >= first.usage.input_tokens


def test_tools_that_cannot_be_had_are_told(server: Served) -> None:
    body = {"input": "Plain?", "tools": [*TOOLS, {"type": "image_generation"}]}
    answer = server.post("/v1/responses", body)
    assert answer.status_code == 200
    for kind in ("web_search", "image_generation"):
        assert f"tool {kind} left out" in answer.headers["x-keepwarm-notes"]
        assert any(kind in note for note in answer.json()["keepwarm"]["notes"])


class City(BaseModel):
    city: str
    sunny: bool


def test_answer_fits_a_schema(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Where?", "max_output_tokens": 300}
    parsed = client.responses.parse(text_format=City, **asked).output_parsed
    assert parsed is None or isinstance(parsed, City)
    raw = {"format": {"type": "json_object"}}
    text = ask(client, "Where?", text=raw, max_output_tokens=20, temperature=1).output_text
    assert text.startswith("{")


def test_named_tool_is_called(client: OpenAI) -> None:
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        (called,) = ask(client, "Go", tools=[WEATHER], tool_choice=choice).output
        assert json.loads(called.arguments)["city"] in {"Paris", "Oslo"}
    assert ask(client, "Plain?", tools=[WEATHER], tool_choice="none").output_text == "Plainly."


def test_conversation_goes_on_from_a_response(client: OpenAI) -> None:
    first = ask(client, "Think! " * 20)
    second = ask(client, "Call!", previous_response_id=first.id, tools=[WEATHER])
    assert cached(second) > first.usage.input_tokens
    result = {
        "type": "function_call_output", "call_id": second.output[-1].call_id, "output": "Snow.",
    }  # fmt: skip
    last = [result, {"role": "user", "content": "Plain?"}]
    third = ask(client, last, previous_response_id=second.id, tools=[WEATHER])
    assert cached(third) > second.usage.input_tokens
    assert third.previous_response_id == second.id
    assert client.responses.retrieve(third.id).output_text == "Plainly."


def test_response_that_is_not_kept(server: Served, client: OpenAI) -> None:
    kept = ask(client, "Plain?")
    unkept = ask(client, "Plain?", store=False)
    gone = ask(client, "Plain?")
    client.responses.delete(gone.id)
    for asker, name in ((client, unkept.id), (client, gone.id), (server.client("beta"), kept.id)):
        with pytest.raises(openai.NotFoundError):
            asker.responses.retrieve(name)
        with pytest.raises(openai.BadRequestError) as refusal:
            ask(asker, "Plain?", previous_response_id=name)
        assert refusal.value.code == "previous_response_not_found"


def test_reply_that_is_too_long(client: OpenAI) -> None:
    events, response = None, ask(client, "Go", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    events = list(
        client.responses.create(model=MODEL, input="Go", max_output_tokens=3, stream=True)
    )
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[-1].status == "incomplete"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"input": []}, "input"),
    "instructions alone": ({"instructions": "Be brief."}, "input"),
    "an item that was not kept": ({"input": [{"type": "item_reference", "id": "a"}]}, "input"),
    "a call without its name": (
        {"input": [{"type": "function_call", "call_id": "1", "arguments": "{}"}]},
        "input[0]",
    ),
    "a role": ({"input": [{"role": "robot", "content": "Hi"}]}, "input[0].role"),
    "background": ({"input": "Hi", "background": True}, "background"),
    "a tool without a name": ({"input": "Hi", "tools": [{"type": "function"}]}, "tools[0]"),
    "a tool of OpenAI's": (
        {"input": "Hi", "tools": [WEATHER], "tool_choice": {"type": "web_search"}},
        "tool_choice",
    ),
    "a schema": ({"input": "Hi", "text": {"format": {"type": "json_schema"}}}, "text.format"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_meant_is_refused(server: Served, body: Any, param: str) -> None:
    answer = server.post("/v1/responses", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_items_that_nobody_knows_are_left_out(server: Served) -> None:
    body = {"input": [{"type": "compaction", "id": "a"}, {"role": "user", "content": "Plain?"}]}
    answer = server.post("/v1/responses", body)
    assert answer.status_code == 200
    assert "compaction" in answer.headers["x-keepwarm-notes"]


def test_failure_is_the_last_event() -> None:
    with served() as ending:
        body = {"input": "Go", "stream": True, "max_output_tokens": 4000}
        with ending.http.stream("POST", "/v1/responses", json=body) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if "output_text.delta" in line)
            ending.engine.stop()
            datas = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert datas[-1]["type"] == "response.failed"
        assert datas[-1]["response"]["error"]["message"]


# What is kept


def put(store: Store, name: str, previous: str | None = None, size: int = 10) -> None:
    store.put("", {"id": name}, [Item(role="user", content=name)], previous, size)


def test_store_forgets_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_RESPONSES", 3)
    store = Store()
    for name in "abcd":
        put(store, name)
    with pytest.raises(ApiError):
        store.get("", "a")
    assert [store.get("", name).response["id"] for name in "bcd"] == [*"bcd"]
    monkeypatch.setattr(stores, "MOST_BYTES", 25)
    put(store, "e")
    with pytest.raises(ApiError):
        store.get("", "c")
    assert store.get("", "e")


def test_store_forgets_what_is_old() -> None:
    now = [0.0]
    store = Store(clock=lambda: now[0])
    put(store, "a")
    now[0] += stores.MOST_AGE_S + 1
    with pytest.raises(ApiError):
        store.get("", "a")


def test_chain_with_a_gap_is_refused() -> None:
    store = Store()
    put(store, "a")
    put(store, "b", previous="a")
    assert [item.content for item in store.past("", "b")] == ["a", "b"]
    store.delete("", "a")
    with pytest.raises(ApiError) as refusal:
        store.past("", "b")
    assert refusal.value.param == "previous_response_id"
