"""Both servers, real ones: what their models say, and what they tell about themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepwarm.bench import duel, words
from keepwarm.bench.script import Script, tool
from keepwarm.bench.talk import OURS, THEIRS, Plan, Side, Talk
from keepwarm.bench.workers import System, WorkerFailed
from tests.bench.conftest import MODEL

SYSTEMS = {system.name: system for system in (OURS, THEIRS)}
TOKENIZER = words.tokenizer()
USER = {"role": "user", "content": words.text(60, "user")}
ANSWER = Script(thought_len=6, answer_len=4)
CALL = Script(thought_len=6, is_call=True)


@pytest.fixture(params=SYSTEMS)
def side(request: pytest.FixtureRequest, servers: duel.Servers) -> Side:
    # Ours has the type of weights that theirs get.
    found = servers.sides([OURS, SYSTEMS[request.param]])[-1]
    found.settle()
    found.forget()
    return found


@pytest.fixture
def talk(side: Side) -> Talk:
    return Talk(side, Plan(MODEL, 1), TOKENIZER)


def test_scripted_reply_comes_as_thought_and_content(talk: Talk) -> None:
    talk.play(ANSWER)
    with talk.case("answer"):
        answer = talk.chat([USER])
    # mlx-lm leaves the line breaks that the template will strip.
    assert (answer.thought.strip(), answer.content.strip()) == (ANSWER.thought, ANSWER.content)
    assert answer.calls == []


def test_scripted_call_comes_as_a_tool_call(talk: Talk) -> None:
    talk.play(CALL)
    with talk.case("call"):
        answer = talk.chat([USER], [tool()])
    assert answer.thought.strip() == CALL.thought
    assert answer.content.strip() == ""
    [call] = answer.calls
    assert call["function"]["name"] == "look"
    assert call["function"]["arguments"].replace(" ", "") == '{"at":"it"}'


@pytest.mark.parametrize("script", [ANSWER, CALL], ids=["answer", "call"])
def test_echoed_reply_has_the_tokens_that_were_decoded(talk: Talk, script: Script) -> None:
    """Else no cache could use what it has of them."""
    talk.play(script)
    with talk.case("echo"):
        prompt = talk.render([USER], [tool()])
        answer = talk.chat([USER], [tool()])
        result = {"role": "tool", "content": "w1"}
        echoed = talk.render([USER, answer.message(with_thought=True), result], [tool()])
    known = [*prompt, *script.reply(TOKENIZER)]
    assert echoed[: len(known)] == known


def test_what_the_model_reads_is_counted(talk: Talk) -> None:
    talk.play(ANSWER)
    with talk.case("first"):
        answer = talk.chat([USER])
    notes = talk.rounds["first"].notes
    # The last ones may be read one by one, and then it is no reading.
    assert answer.prompt_tokens - 2 <= notes["read_tokens"] <= answer.prompt_tokens
    assert answer.cached_tokens == 0
    assert notes["held_bytes"] > 0
    assert notes["active_bytes"] > 0


def test_nothing_is_known_of_what_was_forgotten(talk: Talk) -> None:
    talk.play(ANSWER)
    with talk.case("first"):
        talk.chat([USER])
    with talk.part("again"):
        again = talk.chat([USER])
    with talk.case("forgotten"):
        forgotten = talk.chat([USER])
    assert again.cached_tokens > 0
    assert forgotten.cached_tokens == 0
    assert talk.rounds["again"].exchanges[0].max_cached_tokens == again.prompt_tokens - 1
    assert talk.rounds["forgotten"].exchanges[0].max_cached_tokens == 0


def test_case_that_was_broken_off_leaves_nothing(talk: Talk) -> None:
    def break_off() -> None:
        with talk.case("broken off"):
            talk.chat([USER])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert talk.rounds == {}


def test_both_compute_in_the_same_numbers(servers: duel.Servers) -> None:
    ours, theirs = (side.portrait for side in servers.sides(list(SYSTEMS.values())))
    for key in ("device", "device_name", "blas", "dtype", "vocab_size"):
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize("name", SYSTEMS)
def test_server_that_cannot_load_says_its_last_words(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.txt").touch()
    system = System(name, "broken", SYSTEMS[name].env)
    with (
        Side(system, {"model": str(tmp_path)}) as side,
        pytest.raises(WorkerFailed, match=rf"{name} \(broken\): FileNotFoundError: .*config\.json"),
    ):
        side.wait_ready()


def test_flags_of_the_peer_reach_its_own_command_line() -> None:
    from keepwarm.bench.serving import _cli_args

    args: Any = _cli_args(["--model", "m", "--prompt-cache-size", "24"])
    assert (args.model, args.prompt_cache_size) == ("m", 24)
    assert _cli_args(["--model", "m"]).prompt_cache_size == 10
