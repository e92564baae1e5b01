"""The server as a whole: what is open, what is guarded, and how it says no."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keepwarm.config import Config
from keepwarm.engine.engine import Engine
from keepwarm.server.app import create_app
from keepwarm.server.auth import Keys
from keepwarm.server.guard import guarded_hosts
from keepwarm.server.replies import ChatCompletion, Completion, Tokenized
from tests.server.serving import Served, error_of, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with served(api_keys=("alpha", "beta")) as running:
        yield running


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def test_health_is_ok_when_requests_are_taken(server: Served) -> None:
    response = server.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "live": True, "ready": True}


def test_health_says_that_the_model_is_being_loaded() -> None:
    with served(start=lambda engine: None) as loading:
        response = loading.http.get("/health")
        assert response.status_code == 503
        assert response.json() == {"status": "loading", "live": True, "ready": False}
        assert loading.http.get("/health/live").status_code == 200
        refused = loading.chat()
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        assert "loading" in error_of(refused)["message"]
        assert loading.http.get("/v1/models").status_code == 200
        assert loading.http.get("/metrics").status_code == 200


def test_health_says_that_the_engine_has_ended() -> None:
    with served() as ending:
        ending.engine.stop()
        assert ending.http.get("/health").json()["ready"] is False
        assert ending.http.get("/health").status_code == 503
        assert ending.chat().status_code == 503


@pytest.mark.parametrize("name", ["models/small", "small", "default"])
def test_model_goes_by_its_names(server: Served, name: str) -> None:
    assert server.http.get("/v1/models").json()["data"][0]["id"] == "models/small"
    assert server.http.get(f"/v1/models/{name}").json()["id"] == "models/small"


def test_unknown_model_is_not_found(server: Served) -> None:
    response = server.http.get("/v1/models/gpt-5")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


def test_any_model_may_be_asked_for_and_the_real_one_answers(server: Served) -> None:
    assert server.chat(model="gpt-5").json()["model"] == "models/small"


def test_unknown_route_and_wrong_method_are_told_in_the_same_form(server: Served) -> None:
    missing = server.http.get("/v2/nothing")
    assert missing.status_code == 404
    assert error_of(missing)
    wrong = server.http.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.headers["Allow"] == "POST"
    assert error_of(wrong)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/health", "/health"),
        ("/zzzzzzzzzz", "/v1/chat/completions, /v1/completions"),
    ],
)
def test_missing_route_names_the_one_that_was_meant(server: Served, path: str, meant: str) -> None:
    missing = server.post(path, {})
    assert missing.status_code == 404
    assert meant in error_of(missing)["message"]
    assert error_of(missing)["code"] == "unknown_route"


@pytest.mark.parametrize("front", ["", "/v1/v1"])
def test_routes_are_found_with_one_v1_more_or_less(server: Served, front: str) -> None:
    (model,) = server.http.get(f"{front}/models").json()["data"]
    assert server.http.get(f"{front}/models/{model['id']}").json() == model
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert server.post(f"{front}/chat/completions", asked).json()["object"] == "chat.completion"
    assert server.post(f"{front}/messages", asked).json()["type"] == "message"
    assert server.post(f"{front}/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
    assert server.http.get(f"{front}/health").status_code == (404 if front else 200)


def test_wrong_method_is_told_the_right_one(server: Served) -> None:
    message = error_of(server.http.get("/v1/chat/completions"))["message"]
    assert message == "/v1/chat/completions takes POST only"


@pytest.mark.parametrize("path", ["/health", "/health/live", "/v1/models", "/metrics"])
def test_head_is_get_without_a_body(server: Served, path: str) -> None:
    """`wget --spider` and some health checks ask that way."""
    answer = server.http.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 0
    assert server.http.head("/v1/chat/completions").status_code == 405
    counted = server.http.get("/metrics").text
    assert f'method="HEAD",route="{path}",status="200"' in counted


def test_body_that_is_compressed_is_told_so(server: Served) -> None:
    body = gzip.compress(b'{"prompt": "Hi"}')
    kind = {"Content-Type": "application/json"}
    packed = server.http.post(
        "/v1/completions", content=body, headers={**kind, "Content-Encoding": "gzip"}
    )
    assert packed.status_code == 415
    assert "gzip" in error_of(packed)["message"]
    plain = b'{"prompt": "Hi", "max_tokens": 1}'
    encoding = {**kind, "Content-Encoding": "identity"}
    assert server.http.post("/v1/completions", content=plain, headers=encoding).status_code == 200


@pytest.mark.parametrize(
    "name", ["claude-sonnet-4-5", "gpt-5", "no-such-model", "default", "", None]
)
def test_any_name_means_the_one_model(server: Served, name: str | None) -> None:
    for answer in (server.chat(model=name), server.complete(model=name)):
        assert answer.status_code == 200
        assert answer.json()["model"] == "models/small"


def test_models_are_listed_while_loading_and_the_rest_waits() -> None:
    with served(start=lambda engine: None, served_name="mine") as loading:
        (listed,) = loading.http.get("/v1/models").json()["data"]
        assert (listed["id"], listed["max_model_len"]) == ("mine", None)
        assert loading.http.get("/v1/models/mine").json() == listed
        text = {"prompt": "Hi", "max_tokens": 1}
        said = [{"role": "user", "content": "Hi"}]
        for path, body in (
            ("/v1/chat/completions", {"messages": said}),
            ("/v1/completions", text),
            ("/tokenize", text),
            ("/v1/messages", {"messages": said, "max_tokens": 1}),
        ):
            refused = loading.post(path, body)
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) > 0


def test_tokenize_tells_what_the_model_reads(server: Served) -> None:
    whole = server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    Tokenized.model_validate(whole)
    assert (
        whole["count"] == len(whole["tokens"]) == server.chat("Hi").json()["usage"]["prompt_tokens"]
    )
    assert [mark["kind"] for mark in whole["boundaries"]] == ["user", "generation"]
    text = server.post("/tokenize", {"prompt": "Hi"}).json()
    assert text["count"] == server.complete("Hi").json()["usage"]["prompt_tokens"]


def test_answers_are_as_documented(server: Served) -> None:
    ChatCompletion.model_validate(server.chat().json())
    Completion.model_validate(server.complete().json())


def test_document_holds_every_route_and_no_error_of_another_form(server: Served) -> None:
    document = server.http.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/models/{name}",
        "/tokenize",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/{name}",
        "/v1/cache/explain",
        "/v1/cache/requests",
        "/detokenize",
        "/tokenizer_info",
        "/",
        "/health",
        "/health/live",
        "/metrics",
    }
    responses = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "413", "429", "500", "503"} <= set(responses)
    assert "422" not in responses
    assert "HTTPValidationError" not in document["components"]["schemas"]
    error = responses["400"]["content"]["application/json"]["schema"]["$ref"]
    assert error.endswith("/ErrorBody")


def test_metrics_can_be_read_and_count_what_was_asked(server: Served) -> None:
    server.chat("Count this, please.")
    server.wait_for(lambda: server.engine.status().counters.generated_tokens > 0)
    text = server.http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["keepwarm_prompt_tokens"].type == "counter"
    assert families["keepwarm_prompt_tokens"].samples[0].value > 0
    assert families["keepwarm_requests_queued"].type == "gauge"
    assert families["keepwarm_time_to_first_token_seconds"].type == "histogram"
    answers = families["keepwarm_http_requests"].samples
    chats = [s for s in answers if s.labels.get("route") == "/v1/chat/completions"]
    assert any(s.labels["status"] == "200" and s.value >= 1 for s in chats)


def test_made_up_paths_do_not_grow_the_metrics(server: Served) -> None:
    for name in ("a", "b", "c"):
        server.http.get(f"/made/up/{name}")
    text = server.http.get("/metrics").text
    assert "made" not in text
    assert 'route="unknown"' in text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("POST", "/tokenize"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing"),
    ],
)
def test_all_but_health_needs_a_key(guarded: Served, method: str, path: str) -> None:
    response = guarded.http.request(method, path)
    assert response.status_code == 401
    assert "Bearer" in response.headers["WWW-Authenticate"]
    assert error_of(response)["code"] == "invalid_api_key"
    assert guarded.http.get("/health").status_code == 200


def test_keys_do_not_share_what_is_cached(guarded: Served) -> None:
    body = {"messages": [{"role": "user", "content": "A secret " * 20}], "max_tokens": 1}

    def report(name: str) -> dict[str, Any]:
        asked = guarded.post("/v1/chat/completions", body, headers=key(name))
        found: dict[str, Any] = asked.json()["keepwarm"]
        return found

    assert report("alpha")["reason"] == "cold"
    assert report("alpha")["cached_tokens"] > 0
    other = report("beta")
    assert (other["cached_tokens"], other["reason"]) == (0, "cold")
    metrics = guarded.http.get("/metrics", headers=key("beta")).text
    assert "other_namespace" not in metrics


def test_keys_share_where_the_operator_says_so() -> None:
    body = {"messages": [{"role": "user", "content": "A secret " * 20}], "max_tokens": 1}
    with served(api_keys=("alpha", "beta"), shared_cache=True) as sharing:
        sharing.post("/v1/chat/completions", body, headers=key("alpha"))
        other = sharing.post("/v1/chat/completions", body, headers=key("beta"))
        assert other.json()["keepwarm"]["cached_tokens"] > 0


def test_foreign_host_is_turned_away(server: Served) -> None:
    response = server.http.get("/v1/models", headers={"Host": "evil.example:8080"})
    assert response.status_code == 403
    assert error_of(response)["code"] == "unknown_host"
    assert "--allowed-host evil.example" in error_of(response)["message"]
    strange = server.http.get("/v1/models", headers={"Host": "a\x1b[2J"})
    assert strange.status_code == 403
    assert "\x1b" not in error_of(strange)["message"]
    for good in ("localhost:1", "127.0.0.1", "[::1]:8080", "LOCALHOST"):
        assert server.http.get("/v1/models", headers={"Host": good}).status_code == 200


def test_host_may_be_allowed_and_does_not_matter_with_a_key(guarded: Served) -> None:
    with served(allowed_hosts=("box.example",)) as named:
        assert named.http.get("/health", headers={"Host": "box.example"}).status_code == 200
        assert named.http.get("/health", headers={"Host": "bax.example"}).status_code == 403
    headers = {"Host": "evil.example", **key("alpha")}
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("bound_to", "more", "keys", "expected"),
    [
        ("127.0.0.1", (), (), {"localhost", "127.0.0.1", "::1"}),
        ("127.0.0.2", ("a",), (), {"localhost", "127.0.0.1", "::1", "127.0.0.2", "a"}),
        ("127.0.0.1", ("a",), ("key",), None),
        ("0.0.0.0", (), (), None),
        ("box.example", ("a",), (), {"box.example", "a"}),
    ],
)
def test_names_are_insisted_on_where_only_this_machine_asks(
    bound_to: str, more: tuple[str, ...], keys: tuple[str, ...], expected: set[str] | None
) -> None:
    assert guarded_hosts(bound_to, more, Keys(keys)) == expected


def test_pages_of_other_origins_may_not_ask_unless_told_so(server: Served) -> None:
    asking = {"Origin": "http://app.example", "Access-Control-Request-Method": "POST"}
    assert server.http.options("/v1/models", headers=asking).status_code == 405
    assert "access-control-allow-origin" not in server.http.get("/health", headers=asking).headers
    with served(cors_origins=("http://app.example",), api_keys=("alpha",)) as opened:
        allowed = opened.http.options("/v1/chat/completions", headers=asking)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "http://app.example"
        private = {**asking, "Access-Control-Request-Private-Network": "true"}
        allowed = opened.http.options("/v1/chat/completions", headers=private)
        assert allowed.headers["access-control-allow-private-network"] == "true"
        foreign = {**private, "Origin": "http://evil.example"}
        assert opened.http.options("/v1/chat/completions", headers=foreign).status_code == 400


def test_failure_inside_is_told_without_its_words(server: Served, monkeypatch: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("something private")

    monkeypatch.setattr("keepwarm.server.protocols.writer.plan_of", broken)
    response = server.chat()
    assert response.status_code == 500
    assert "private" not in response.text
    assert error_of(response)["type"] == "server_error"
    monkeypatch.undo()
    assert server.chat().status_code == 200


def test_engine_is_not_needed_to_describe_the_server() -> None:
    def load() -> tuple[Any, Any]:
        raise AssertionError

    assert create_app(Engine(load), Config(model="a")).openapi()["info"]["title"] == "keepwarm"


def test_burst_of_connections_is_served(server: Served) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    connections = [socket.create_connection((host, int(port)), timeout=30) for _ in range(150)]
    try:
        for connection in connections:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in connections:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
    finally:
        for connection in connections:
            connection.close()


def test_every_answer_has_an_id_and_the_log_names_the_refused(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="keepwarm.server")
    good, bad = server.chat(), server.chat(temperature=7)
    assert good.headers["x-request-id"] != bad.headers["x-request-id"]
    refused = [line for line in caplog.messages if bad.headers["x-request-id"] in line]
    assert len(refused) == 1
    assert "POST /v1/chat/completions: 400" in refused[0]
    assert "temperature" in refused[0]
