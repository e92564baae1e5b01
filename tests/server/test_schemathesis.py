"""The server held against its own OpenAPI document: schemathesis makes requests that fit it and
requests that do not, and sees whether the answers are what the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.config import SchemathesisConfig

from keepwarm.config import Config
from keepwarm.engine.engine import Engine
from keepwarm.server.app import create_app
from tests.server.serving import Served, error_of, load, served

TIMEOUT_S = 60
# Fields that a good request may be refused for: the document cannot say what the vocabulary, the
# template and the context of a model are, which schemas have a grammar, nor what depends on
# another field.
DEPENDS = frozenset(
    {
        "best_of",
        "chat_template_kwargs",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "input",
        "logit_bias",
        "messages",
        "n",
        "None",
        "previous_response_id",
        "prompt",
        "response_format",
        "response_id",
        "structured_outputs",
        "tokens",
        "tool_choice",
        "tools",
    }
)


def _document() -> Any:
    """Of an app whose engine never starts: the tests are made of it before any server runs."""
    app = create_app(Engine(lambda: load("llama")), Config(model="small"))
    found = schemathesis.openapi.from_dict(app.openapi(), config=SchemathesisConfig(seed=1))
    # The first request that fails says enough; the smallest one would take minutes.
    found.config.generation.update(deterministic=True, no_shrink=True)
    return found


document = _document()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(max_tokens=2, context_len=512) as running:
        yield running
        assert running.engine.is_alive
        running.engine.call(lambda cache: cache.check())


def test_document_is_the_one_that_is_served(server: Served) -> None:
    assert server.http.get("/openapi.json").json() == document.raw_schema


@document.parametrize()
@settings(max_examples=20)
def test_answers_are_what_the_document_says(case: schemathesis.Case, server: Served) -> None:
    check_answer(case, server)


@pytest.mark.slow
@document.parametrize()
@settings(max_examples=1000)
def test_many_answers_are_what_the_document_says(case: schemathesis.Case, server: Served) -> None:
    check_answer(case, server)


def check_answer(case: schemathesis.Case, server: Served) -> None:
    is_good = case.meta is not None and case.meta.generation.mode.is_positive
    if is_good and isinstance(case.body, dict):
        make_cheap(case.body)
    response = case.call(base_url=server.url, timeout=TIMEOUT_S)
    excluded = []
    if case.path == "/v1/cache/explain":  # a body of any API: what one forbids another ignores
        excluded.append(schemathesis.checks.negative_data_rejection)
    if response.status_code >= 400 and case.method != "HEAD":
        if is_anthropic(case) or _depends(error_of(response)):  # type: ignore[arg-type]
            excluded.append(schemathesis.checks.positive_data_acceptance)
        if response.status_code == 413:  # a refusal, too, which schemathesis does not count as one
            excluded.append(schemathesis.checks.negative_data_rejection)
    case.validate_response(response, excluded_checks=excluded)


def _depends(error: dict[str, Any]) -> bool:
    """An error that names no field is about fields that do not go together."""
    return error["param"] is None or _field(error) in DEPENDS


def _field(error: dict[str, Any]) -> str:
    """What the error is about. What an item or a tool needs depends on its type; None is an error
    of two fields that contradict each other."""
    return str(error["param"]).partition("[")[0]


def is_anthropic(case: schemathesis.Case) -> bool:
    """Whether its errors have Anthropic's form, which names no field. What a block needs depends on
    its type."""
    return case.path.startswith("/v1/messages")


def make_cheap(body: dict[str, Any]) -> None:
    """Mutates a good body: few tokens of few prompts, and what makes it good in the eyes of a
    field that depends on it."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if body.get(name) is not None:
            body[name] = min(body[name], 4)
    if body.get("seed") is not None:
        # Schemathesis passes bounds that no float holds by a few hundred.
        body["seed"] = max(-(2**63), min(body["seed"], 2**63 - 1))
    if isinstance(body.get("prompt"), list):
        body["prompt"] = body["prompt"][:4]
    if "top_logprobs" in body:
        body["logprobs"] = True
