"""`keepwarm doctor`: what it says of a machine and a model, and that its test can fail."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cli.doctor import machine, trial
from keepwarm.cli.doctor.findings import Level, Section
from keepwarm.cli.doctor.model import _pattern
from keepwarm.cli.engine import make_engine
from keepwarm.cli.main import main
from keepwarm.config import Config
from keepwarm.own_loop import prefill
from keepwarm.state.base import Kind
from tests.cache.disk.folders import crash
from tests.cli.test_cache import files, filled
from tests.compat.serving import save_small_model
from tests.server.serving import listening


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(autouse=True)
def is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_COLD_S", 0.05)
    monkeypatch.setattr(trial, "_REPLY_S", 0.05)
    monkeypatch.setattr(machine, "_SIDE", 32)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


def examined(capsys: Any, status: int, *argv: str) -> dict[str, Any]:
    assert main(["doctor", *argv, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["is_good"] == (status == 0)
    return found


def test_small_model_is_found_well_by_a_real_trial(folder: Path, capsys: Any) -> None:
    found = examined(capsys, 0, str(folder), "--port", free_port())
    assert found["machine"]["memory"]["free_bytes"] > 0
    assert found["machine"]["versions"]["mlx-lm"].startswith("0.")
    assert found["model"]["layers"]["kinds"] == ["rows"] * 4
    assert found["model"]["state"]["token_bytes"] == 4 * 2 * 2 * 32 * 4
    assert found["template"]["boundaries"]["level"] == "ok"
    assert not found["template"]["tools"]["writes"]
    for mode in ("exact mode", "default mode"):
        tried = found["test"][mode]
        assert 50 < tried["cached_tokens"] < tried["prompt_tokens"]
        assert tried["level"] == "ok"
    assert found["test"]["exact mode"]["same_bits"]
    assert found["test"]["speed"]["prefill_tokens_per_s"] > 0
    chat = found["test"]["40 turns"]
    assert chat["hot_tokens"] < chat["cold_tokens"] / 5


def test_people_read_it_in_80_columns(folder: Path, capsys: Any) -> None:
    assert main(["doctor", str(folder), "--port", free_port()]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for title in ("Machine", "Server", "Model small", "Chat template", "Self-test"):
        assert f"\n{title}\n" in f"\n{shown}"
    assert "Everything works." in shown


def test_wrong_state_is_found_by_the_trial(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(model: Any, cache: Any, prompt: Any) -> Any:
        """As if what was restored held other rows."""
        is_hot = cache.peek(prompt).cached_len > 0
        live, logits = prefill(model, cache, prompt)
        return live, mx.roll(logits, 1, axis=-1) if is_hot else logits

    monkeypatch.setattr(trial, "prefill", faulty)
    found = examined(capsys, 1, str(folder), "--port", free_port())
    assert found["test"]["exact mode"]["level"] == "problem"
    assert "hot differs from cold" in found["test"]["exact mode"]["words"]
    assert found["test"]["default mode"]["level"] == "problem"


def test_port_is_told_whether_it_is_free_ours_or_anothers(folder: Path, capsys: Any) -> None:
    short = [str(folder), "--no-test"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = examined(capsys, 1, *short, "--port", port)
        assert "is in use" in found["server"]["port"]["words"]
        assert "test" not in found
    config = Config(model=str(folder))
    with make_engine(config) as engine, listening(engine, config) as url:
        found = examined(capsys, 0, *short, "--port", url.rpartition(":")[2])
        assert "keepwarm" in found["server"]["port"]["words"]


def test_keys_and_disk_are_looked_at(folder: Path, tmp_path: Path, capsys: Any) -> None:
    short = [str(folder), "--no-test", "--port", free_port()]
    found = examined(capsys, 0, *short, "--host", "0.0.0.0", "--disk-cache", str(tmp_path / "new"))
    assert found["server"]["keys"]["level"] == "advice"
    assert found["server"]["disk cache"]["free_bytes"] > 0
    (tmp_path / "file").write_text("no folder")
    flags = ["--api-key", "secret", "--disk-cache", str(tmp_path / "file")]
    found = examined(capsys, 1, *short, *flags)
    assert found["server"]["keys"]["count"] == 1
    assert "secret" not in json.dumps(found)
    assert "cannot be written" in found["server"]["disk cache"]["words"]


def test_damaged_file_of_the_disk_cache_is_found(tmp_path: Path) -> None:
    root = tmp_path / "prompts"
    crash(filled(root, "one"))
    told = []
    for _ in range(2):
        section = Section("server", "Server")
        machine._add_disk(section, Config(disk_cache=str(root)))
        told += section.findings
        file = files(root)[0]
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert [found.level for found in told] == [Level.OK, Level.ADVICE]
    assert "every file holds" in told[0].words
    assert told[1].data["damaged_files"] == 1


def test_model_without_a_template_is_still_tried(tmp_path: Path, capsys: Any) -> None:
    folder = save_small_model(tmp_path / "mute")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = examined(capsys, 0, str(folder), "--port", free_port())
    assert found["template"]["chats"]["level"] == "advice"
    assert found["test"]["exact mode"]["same_bits"]
    assert "40 turns" not in found["test"]


@pytest.mark.parametrize(("asked", "words"), [(None, "raises it"), (28672, "is set to 28672 MB")])
def test_wired_limit_of_a_mac_is_told(
    asked: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"max_recommended_working_set_size": 22_906_503_168}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(machine, "_sysctl", lambda _: asked)
    section = Section("machine", "Machine")
    machine._add_wired_limit(section)
    (found,) = section.findings
    assert "22.9 GB" in found.words
    assert words in found.words
    assert found.data["wired_limit_mb"] == asked


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has Accelerate")
def test_slow_products_come_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    section = Section("machine", "Machine")
    for file in (Path("/lib/libblas.so"), Path("/lib/libopenblas.so.0")):
        monkeypatch.setattr(machine, "_blas_file", lambda file=file: file)
        machine._add_products(section, is_cpu=True)
    slow, fast = section.findings
    assert (slow.level, fast.level) == (Level.ADVICE, Level.OK)
    assert "pip install scipy-openblas32" in slow.words
    assert slow.data["flops_per_s"] > 0


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ([Kind.ROWS] * 5, "all alike"),
        (([Kind.SNAPSHOT] * 3 + [Kind.ROWS]) * 6, "in turn 3 snapshot, 1 rows"),
        ([Kind.ROWS, Kind.WINDOW, Kind.WINDOW, Kind.ROWS], "1 rows, 2 window, 1 rows"),
    ],
)
def test_order_of_layers_is_told_in_few_words(kinds: list[Kind], words: str) -> None:
    assert _pattern(kinds) == words


def test_marks_show_what_needs_a_remedy() -> None:
    section = Section("a", "A")
    section.add("good", "fine")
    section.add("slow", "could be better", Level.ADVICE)
    assert section.is_good
    section.add("bad", "broken", Level.PROBLEM)
    assert not section.is_good
    assert [line[0] for line in section.text().splitlines()[1:]] == [" ", "!", "x"]
