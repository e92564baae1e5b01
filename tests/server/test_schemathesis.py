"""prototype"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig

from keepwarm.config import Config
from keepwarm.engine.engine import Engine
from keepwarm.server.app import create_app
from tests.server.serving import Served, served, load

COUNT: Counter = Counter()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(max_tokens=2, context_len=512) as running:
        yield running
    print(COUNT)


def document() -> Any:
    app = create_app(Engine(lambda: load("llama")), Config(model="small"))
    config = SchemathesisConfig(seed=1)
    schema = schemathesis.openapi.from_dict(app.openapi(), config=config)
    schema.config.generation.update(deterministic=True, max_examples=30, no_shrink=True)
    return schema

document_schema = document()

@document_schema.parametrize()
def test_proto(case: schemathesis.Case, server: Served) -> None:
    if isinstance(case.body, dict):
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int|float) and case.body[name] > 4:
                case.body[name] = 4
    response = case.call(base_url=server.url)
    COUNT[case.operation.label, response.status_code] += 1
    case.validate_response(response)
