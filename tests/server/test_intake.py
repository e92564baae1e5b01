"""From requests to what the engine is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.config import Config
from keepwarm.engine.request import Sampling
from keepwarm.errors import RenderError
from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.render import render_chat
from keepwarm.server.errors import ApiError
from keepwarm.server.intake import ChatPlan, plan_chat, plan_texts
from keepwarm.server.metrics import Metrics
from keepwarm.server.protocols.chat import read_chat
from keepwarm.server.protocols.completions import read_completion
from keepwarm.server.schema import ChatRequest, CompletionRequest
from keepwarm.server.service import Service
from tests.server.serving import WEATHER, served

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    config = Config(
        model="a", temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2,
        max_tokens=77, chat_template_args={"thinks": True},
    )  # fmt: skip
    with served() as running:
        yield Service(running.engine, config, Metrics(running.engine))


def planned(service: Service, **fields: Any) -> ChatPlan:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return plan_chat(service, read_chat(ChatRequest.model_validate(body), "mine"))


def test_what_a_request_leaves_open_is_the_operators_to_say(service: Service) -> None:
    (request,) = planned(service).requests
    assert request.max_tokens == 77
    assert request.namespace == "mine"
    assert request.sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2
    )


def test_stop_texts_bind_in_the_content(service: Service) -> None:
    (request,) = planned(service, stop=["\n\n"], tools=[WEATHER]).requests
    assert request.markup is not None
    assert request.markup.state == "reasoning"
    assert ("<tool_call>", "tool") in request.markup.table["normal"]


def test_what_a_request_says_goes_first(service: Service) -> None:
    said: dict[str, Any] = {
        "temperature": 0.0, "top_p": 0.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 3,
    }  # fmt: skip
    bias = {"logit_bias": {"5": 1}, "top_k": 0}
    (request,) = planned(service, **said, **bias, max_tokens=5, ignore_eos=True).requests
    assert request.sampling == Sampling(**said, top_k=0, logit_bias={5: 1.0})
    assert request.max_tokens == 5
    assert request.ignore_eos


def test_choices_share_their_prompt_and_differ_in_their_seed(service: Service) -> None:
    requests = planned(service, n=3, seed=5).requests
    assert [request.sampling.seed for request in requests] == [5, 6, 7]
    assert len({id(request.prompt) for request in requests}) == 1


def test_template_takes_the_operators_arguments_and_then_the_requests(service: Service) -> None:
    assert planned(service).chat.template_kwargs == {"thinks": True}
    other = planned(service, chat_template_kwargs={"thinks": False, "a": 1})
    assert other.chat.template_kwargs == {"thinks": False, "a": 1}
    effort = planned(service, reasoning_effort="low", chat_template_kwargs={"thinks": False})
    assert effort.chat.template_kwargs == {"reasoning_effort": "low", "thinks": False}


@pytest.mark.parametrize(
    ("fields", "num_calls"),
    [({}, 0), ({"tools": [WEATHER]}, 1), ({"tools": [WEATHER], "tool_choice": "none"}, 0)],
    ids=["no tools", "tools", "none"],
)
def test_calls_are_read_where_they_are_wanted(
    service: Service, fields: dict[str, Any], num_calls: int
) -> None:
    reply = parse_reply(planned(service, **fields).reader, CALL)
    assert len(reply.tool_calls) == num_calls
    assert bool(reply.content) != bool(num_calls)


def test_replies_without_calls_have_one_reader(service: Service) -> None:
    # What is learned of a template is kept with the tokenizer.
    assert planned(service).reader is planned(service).reader


def test_completions_ask_for_every_choice_of_every_prompt(service: Service) -> None:
    asked = CompletionRequest.model_validate({"prompt": ["Hi", "Ho"], "n": 2, "logprobs": 3})
    plan = plan_texts(service, read_completion(asked, "mine"))
    prompts = [request.prompt.tokens.tolist() for request in plan.requests]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert {request.top_logprobs for request in plan.requests} == {3}


def test_field_that_is_refused_is_looked_for_in_the_callers_namespace(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespaces = []

    def render(*args: Any, **options: Any) -> Any:
        namespaces.append(options["namespace"])
        if options["template_kwargs"].get("of_another_model"):
            raise RenderError("no such field")
        return render_chat(*args, **options)

    monkeypatch.setattr("keepwarm.server.intake.render_chat", render)
    with pytest.raises(ApiError) as refused:
        planned(service, chat_template_kwargs={"of_another_model": 1})
    assert refused.value.param == "chat_template_kwargs"
    assert namespaces == ["mine", "mine"]
