"""`keepwarm chat` as a person runs it: a terminal, or a pipe, and a real model folder."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepwarm.cli.main import main
from tests.cli.chat.terminal import Terminal, command, environment, terminal
from tests.compat.serving import save_small_model, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def chat(folder: Path, tmp_path: Path) -> Iterator[Terminal]:
    args = command(str(folder), "--max-tokens", "12", "--system", "w20 w21")
    with terminal(args, environment(tmp_path)) as opened:
        opened.wait_for("you> ")
        yield opened


def saved(chat: Terminal, file: Path) -> list[dict[str, str]]:
    chat.say(f"/save {file}")
    written = json.loads(file.read_text())
    assert written["model"] == "small"
    messages: list[dict[str, str]] = written["messages"]
    return messages


def test_person_talks_branches_and_leaves(chat: Terminal, tmp_path: Path) -> None:
    assert "small · 4 rows" in chat.shown
    first = chat.say("w10 w11")
    assert "cached 0 of 9 tokens · read 9 · first token" in first
    assert "tok/s · cut at 12 tokens" in first
    assert "cached 21 of 26 tokens · read 5" in chat.say("w12")
    assert "cached 26 of 26 tokens · read 0" in chat.say("/retry")
    assert "cached 23 of 27 tokens · read 4" in chat.say("/edit w13 w14")
    assert "removed: w13 w14" in chat.say("/undo")
    assert "turns       4" in chat.say("/stats")
    assert "there is no command /dance" in chat.say("/dance")
    assert [m["role"] for m in saved(chat, tmp_path / "talk.json")] == [
        "system", "user", "assistant",
    ]  # fmt: skip
    assert "is there already" in chat.say(f"/save {tmp_path / 'talk.json'}")
    chat.say("/system w30")
    assert saved(chat, tmp_path / "new.json") == [{"role": "system", "content": "w30"}]
    chat.type("/quit\r")
    assert chat.status() == 0
    history = tmp_path / "keepwarm" / "chat_history"
    assert "w10 w11\nw12\n/retry\n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_several_lines_are_one_message(chat: Terminal, tmp_path: Path) -> None:
    chat.type('"""w10\r')
    chat.wait_for("...> ")
    chat.say('w11"""')
    chat.say("\x1b[200~w30\nw31\nw32\x1b[201~")
    said = [m["content"] for m in saved(chat, tmp_path / "talk.json") if m["role"] == "user"]
    assert said == ["w10\nw11", "w30\nw31\nw32"]
    chat.type("\x04")
    assert chat.status() == 0


def test_history_is_there_the_next_time(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keepwarm").mkdir()
    (tmp_path / "keepwarm" / "chat_history").write_text("w10 w11\n")
    with terminal(command(str(folder), "--max-tokens", "2"), environment(tmp_path)) as chat:
        chat.wait_for("you> ")
        chat.type("\x1b[A\r")
        assert "w10 w11" in chat.wait_for("first token")


def test_ctrl_c_stops_the_answer_and_twice_leaves(folder: Path, tmp_path: Path) -> None:
    args = command(str(folder), "--max-tokens", "100000", "--context-len", "200000")
    with terminal(args, environment(tmp_path)) as chat:
        chat.wait_for("you> ")
        chat.type("w10\r")
        chat.wait_for("w10\n")  # as it was typed
        chat.wait_for(" w")
        chat.interrupt()
        assert "stopped (Ctrl-C again leaves)" in chat.wait_for("you> ")
        assert "2 messages" in chat.say(f"/save {tmp_path / 'talk.json'}")
        chat.interrupt()
        chat.wait_for("Ctrl-C again, Ctrl-D or /quit leaves")
        chat.wait_for("you> ")
        chat.interrupt()
        assert chat.status() == 0


def test_piped_question_gets_only_its_answer(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(str(folder), "--max-tokens", "5"), input="w10 w11\n", env=environment(tmp_path),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 5
    assert done.stdout.endswith("\n")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("question", "flags", "words"),
    [
        (" \n", [], "there is no question"),
        (text(0, 300), ["--context-len", "100"], "the prompt has 303 tokens"),
        ("w10", ["--kv-bits", "7"], "--kv-bits"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_a_status(
    question: str, flags: list[str], words: str, folder: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(question))
    assert main(["chat", str(folder), *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("keepwarm: ")
    assert words in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_question_that_is_no_text_is_one_line(
    locale: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        command(str(folder)), input=b"caf\xe9\n", env=environment(tmp_path, **locale),
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"keepwarm: the question is not text in UTF-8; convert it first\n"


def test_input_that_is_closed_holds_no_question(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.join(command(str(folder)))} <&-"], env=environment(tmp_path),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no question" in done.stderr
    assert done.stderr.count("\n") == 1


def test_person_whose_answer_goes_to_a_file_is_told_how_to_end_the_question(
    folder: Path, tmp_path: Path
) -> None:
    words = shlex.join(command(str(folder), "--max-tokens", "5"))
    args = ["sh", "-c", f"exec {words} > {shlex.quote(str(tmp_path / 'answer'))}"]
    with terminal(args, environment(tmp_path)) as chat:
        chat.wait_for("the question is read until Ctrl-D\n")
        chat.type("w10 w11\r\x04")
        assert chat.status() == 0
    assert len((tmp_path / "answer").read_text().split()) == 5


def test_template_that_cannot_be_read_is_told_before_the_first_question(
    folder: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "broken.jinja").write_text("{% if messages %}")
    monkeypatch.setattr("sys.stdin", io.StringIO("w10"))
    assert main(["chat", str(folder), "--chat-template", str(tmp_path / "broken.jinja")]) == 2
    said = capsys.readouterr().err
    assert "no chat with" in said
    assert "--chat-template FILE gives one" in said


def test_reply_that_says_nothing_is_a_failure(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    folder = save_small_model(tmp_path / "thinking")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] += " <think>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokens["model"]["vocab"]
    for old, new in (("w100", "<think>"), ("w101", "</think>")):
        vocab[new] = vocab.pop(old)
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    monkeypatch.setattr("sys.stdin", io.StringIO("w10"))
    assert main(["chat", str(folder), "--max-tokens", "1"]) == 1
    assert "before it said anything" in capsys.readouterr().err


def test_help_teaches(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(["chat", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert 'echo "Anna lives in Lund. Where does Anna live?" | keepwarm chat' in shown
    assert "--no-thinking" in shown
    assert "--port" not in shown
