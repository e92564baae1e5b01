"""Two systems in one scenario: a short chat with real servers, and what is made of its answers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from keepwarm.bench import chat, duel, words
from keepwarm.bench.client import Answer
from keepwarm.bench.report import Report
from keepwarm.bench.script import Script
from keepwarm.bench.talk import OURS, THEIRS, Exchange, Plan, Round, Talk
from keepwarm.bench.workers import System
from keepwarm.cli.main import main
from tests.bench.conftest import MODEL

NUM_TURNS = 4


@pytest.fixture(scope="module")
def report(servers: duel.Servers) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat, "NUM_TURNS", NUM_TURNS)
        found = duel.Duel("chat", chat, Plan(MODEL, 1), lambda _: None)
        found.play(found.systems, servers)
    return found.report()


def test_report_has_the_form_that_was_promised(report: Report) -> None:
    written = json.loads(report.as_json())
    promised = {"scenario", "model", "device", "versions", "machine", "command", "rows", "bounds"}
    assert set(written) == promised
    systems = [(row["system"], row["setting"]) for row in written["rows"]]
    assert systems == [
        ("keepwarm", "idle prefill"),
        ("keepwarm", "no idle prefill"),
        ("mlx-lm", ""),
    ]
    for row in written["rows"]:
        assert row["case"] == "4 turns"
        assert row["num_requests"] == NUM_TURNS == len(row["ttft_s"]) == len(row["total_s"])
        assert row["prefilled_tokens"] == row["prompt_tokens"] - row["cached_tokens"]
        assert row["held_bytes"] > 0
        assert min(row["ttft_s"]) > 0
        assert row["max_cached_tokens"] == written["bounds"]["max_cached_tokens"]
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["device"]


def test_all_systems_were_asked_the_same(report: Report) -> None:
    asked = {tuple(row["by_request"]["prompt_tokens"]) for row in report.rows}
    assert len(asked) == 1


def test_idle_prefill_leaves_the_new_message_only(report: Report) -> None:
    ours = report.rows[0]["by_request"]
    pairs = list(zip(ours["prompt_tokens"], ours["cached_tokens"]))
    new = [prompt - cached for prompt, cached in pairs[1:]]
    message = words.ids(words.tokenizer(), "<|im_start|>user\n<|im_end|>\n")
    generation = words.ids(words.tokenizer(), "<|im_start|>assistant\n<think>\n")
    assert set(new) == {chat.USER_LEN + len(message) + len(generation)}


def test_without_idle_prefill_the_last_answer_is_read_too(report: Report) -> None:
    first, second = report.rows[0]["by_request"], report.rows[1]["by_request"]
    missed = [a - b for a, b in zip(first["cached_tokens"], second["cached_tokens"])]
    assert missed[0] == 0
    # The answer in place of the thought, which an empty block stands for.
    assert min(missed[1:]) >= chat.REPLY.answer_len
    most = second["max_cached_tokens"]
    assert all(cached <= bound for cached, bound in zip(second["cached_tokens"], most))


def test_table_has_a_line_for_each_system(report: Report) -> None:
    out = io.StringIO()
    Console(width=120, file=out).print(duel.table(report, chat))
    for words_ in ("4 turns", "idle prefill", "mlx-lm", f"{report.rows[0]['prompt_tokens']:,}"):
        assert words_ in out.getvalue()


def test_server_is_shared_by_systems_that_are_set_up_alike(servers: duel.Servers) -> None:
    idle, no_idle = chat.SIDES
    ours, alike, other = servers.sides([OURS, idle, no_idle])
    assert ours is alike
    assert ours is not other


def test_all_load_at_once_where_the_type_of_the_weights_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    class Loading:
        def __init__(self, system: System, job: dict[str, str]) -> None:
            self.name = system.name
            self.portrait: dict[str, str] = {}
            events.append(f"{system.name} starts with {job.get('dtype')}")

        def wait_ready(self) -> None:
            self.portrait = {"dtype": "float32"}
            events.append(f"{self.name} is ready")

        def close(self) -> None: ...

    monkeypatch.setattr(duel, "Side", Loading)
    with duel.Servers(MODEL) as found:
        found.sides([OURS, THEIRS])
    assert events == [
        "keepwarm starts with None", "keepwarm is ready",
        "mlx-lm starts with float32", "mlx-lm is ready",
    ]  # fmt: skip
    events.clear()
    with duel.Servers(MODEL, "bfloat16") as found:
        found.sides([OURS, THEIRS])
        found.sides([THEIRS])
    assert events == [
        "keepwarm starts with None", "mlx-lm starts with bfloat16",
        "keepwarm is ready", "mlx-lm is ready",
    ]  # fmt: skip


def test_play_that_breaks_off_keeps_the_cases_before(servers: duel.Servers) -> None:
    def play(talk: Talk, number: int) -> None:
        talk.play(Script(thought_len=2, answer_len=2))
        with talk.case("whole"):
            talk.chat([{"role": "user", "content": "w1"}])
        with talk.part("half"):
            raise InterruptedError

    found = duel.Duel("short", SimpleNamespace(play=play), Plan(MODEL, 1), lambda _: None)
    assert not found.has_rows
    with pytest.raises(InterruptedError):
        found.play([OURS], servers)
    assert found.has_rows
    assert [row["case"] for row in found.report().rows] == ["whole"]


def test_without_a_peer_only_ours_is_asked() -> None:
    plain = SimpleNamespace(play=lambda *_: None)
    for has_peer, systems in ((True, [OURS, THEIRS]), (False, [OURS])):
        found = duel.Duel("", plain, Plan(MODEL, 1, has_peer), lambda _: None)
        assert found.systems == systems


# Rows


def round_of(ttft_s: float, **notes: Any) -> Round:
    answer = Answer(0, [ttft_s], prompt_tokens=100, cached_tokens=40, ended=9)
    return Round([Exchange(answer, 60)], notes)


def test_row_has_the_tokens_of_one_round_and_the_times_of_all() -> None:
    row = duel.row_of("a", "keepwarm", "", [round_of(1, held_bytes=7), round_of(2, held_bytes=8)])
    assert (row["prompt_tokens"], row["cached_tokens"], row["prefilled_tokens"]) == (100, 40, 60)
    assert row["max_cached_tokens"] == 60
    assert row["ttft_s"] == [1, 2]
    assert row["held_bytes"] == 8
    assert row["notes"] == {"held_bytes": [7, 8]}


def test_ratio_is_theirs_over_ours() -> None:
    report = Report("chat", "small", "cpu")
    rows = [
        duel.row_of("a", name, "", [round_of(s)]) for name, s in (("keepwarm", 2), ("mlx-lm", 5))
    ]
    report.rows = rows
    out = io.StringIO()
    Console(width=120, file=out).print(duel.table(report, chat))
    assert "2.50x" in out.getvalue()
    assert "40.0%" in out.getvalue()
    assert "60.0%" in out.getvalue()


def test_report_comes_back_from_its_file(tmp_path: Path) -> None:
    report = Report("chat", "small", "cpu", command="keepwarm bench chat")
    report.rows = [duel.row_of("a", "keepwarm", "", [round_of(2)])]
    report.write(tmp_path / "a.json")
    assert Report.read(tmp_path / "a.json") == report


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 1}', None])
def test_what_is_no_report_is_told(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=r"a\.json"):
        Report.read(file)


# The command


@pytest.mark.parametrize(
    ("flags", "words_"),
    [
        (["chat", "--rounds", "0"], "--rounds must be at least 1"),
        (["chat", "--json", "/no/such/file.json"], "there is no folder"),
        (["chat", "--plot", __file__], "is not a folder"),
        (
            ["burst", "--requests", "many"],
            "--requests: 'many' is not a list of numbers; write it like 6,32",
        ),
        (["burst", "--requests", "6,0"], "--requests must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_told_at_once(
    flags: list[str], words_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *flags]) == 2
    assert words_ in capsys.readouterr().err


def test_model_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["bench", "chat", "--model", str(tmp_path / "empty")]) == 2
    assert "config.json" in capsys.readouterr().err


def test_plot_without_matplotlib_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("keepwarm.bench.plot.find_spec", lambda _: None)
    assert main(["bench", "chat", "--plot", str(tmp_path)]) == 2
    assert "pip install 'keepwarm[bench]'" in capsys.readouterr().err


def test_command_says_what_was_asked_for_less_where_it_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(*_: Any) -> Report:
        found = Report("chat", "small", "cpu")
        found.rows = [duel.row_of("a", "keepwarm", "", [round_of(2)])]
        found.rows[0]["by_request"] = {"prompt_tokens": [100], "cached_tokens": [40]}
        return found

    monkeypatch.setattr(duel, "measure", measure)
    file = tmp_path / "a.json"
    flags = ["--json", str(file), "--model", MODEL, f"--plot={tmp_path}", "--rounds", "2"]
    assert main(["bench", "chat", *flags]) == 0
    assert Report.read(file).command == f"keepwarm bench chat --model {MODEL} --rounds 2"
    assert [png.name for png in tmp_path.glob("*.png")] == ["chat-small-cpu.png"]


def test_systems_of_other_settings_are_others() -> None:
    assert System("keepwarm", "a") != System("keepwarm", "b")
