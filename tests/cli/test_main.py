"""The command line before any command: what is missing or unknown is told by whom it concerns."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keepwarm.cli.main import main


def test_without_a_command_all_of_them_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert all(command in told for command in ("serve", "chat", "bench"))


def test_unknown_flag_is_told_with_the_usage_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--prot", "9"])
    told = capsys.readouterr().err
    assert "usage: keepwarm serve" in told
    assert "--prot (did you mean --port?)" in told


def test_it_runs_as_a_module_too() -> None:
    command = [sys.executable, "-m", "keepwarm", "--version"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.startswith("keepwarm ")


@pytest.mark.parametrize("command", ["serve", "chat", "bench agent"])
def test_without_mlx_a_command_says_in_one_line_which_extra_is_needed(command: str) -> None:
    hidden = "import sys; sys.modules['mlx'] = None; from keepwarm.cli.main import main;"
    code = f"{hidden} sys.exit(main({command.split()!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "keepwarm[cpu]" in done.stderr
    assert "keepwarm[cuda]" in done.stderr
