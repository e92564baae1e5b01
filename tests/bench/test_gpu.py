"""What `python -m bench.gpu` plays, and what it does when there is no time. No server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import gpu
from keepwarm.bench import chat


@pytest.mark.parametrize(("total_s", "reserved_s"), [(0, 0), (100, 90)], ids=["none", "reserved"])
def test_what_there_is_no_time_for_is_left_out_and_said(
    total_s: float, reserved_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = gpu.Run(tmp_path, total_s)
    run.play("qwen3-small", gpu._TRIAL, reserved_s)
    run.show()
    shown = capsys.readouterr().out
    for part in gpu._TRIAL:
        assert f"Left out: {part.scenario} with qwen3-small" in shown
    assert [file.name for file in tmp_path.iterdir()] == ["tables.txt"]
    assert (tmp_path / "tables.txt").read_text() == shown


@pytest.mark.parametrize("parts", [*gpu.PARTS.values(), *gpu.BRIEF.values(), gpu._TRIAL, gpu._LONG])
def test_every_size_is_one_that_the_scenario_has(parts: tuple[gpu.Part, ...]) -> None:
    for part in parts:
        assert set(part.options) == {option.name for option in gpu.SCENARIOS[part.scenario].options}
        for name in part.sizes:
            assert hasattr(part.module, name)


def test_rehearsals_come_first_and_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(gpu.duel.Duel, "play", lambda *_: None)
    monkeypatch.setattr(gpu.Run, "_keep", lambda _, name, *__: kept.append(name))
    for model, parts in gpu.PARTS.items():
        assert [part.is_kept for part in parts] == sorted(part.is_kept for part in parts)
        kept.clear()
        gpu.Run(tmp_path, 10_000).play(model, parts)
        turns = 2 if model in gpu.ONE_AT_A_TIME else 1
        names = [f"{part.scenario}-{model}" for part in parts if part.is_kept]
        assert sorted(kept) == sorted(names * turns)


def test_a_little_of_each_model_fits_into_one_run() -> None:
    """With the sizes that it takes by default, and all scenarios."""
    args = gpu._parser().parse_args(["--out", "DIR"])
    models = args.models.split(",")
    parts = [gpu.BRIEF[model] for model in models]
    assert gpu.LOAD_S / 2 + sum(map(gpu._share_s, models, parts)) < 60 * args.minutes
    for mine, model in zip(parts, models):
        told = {part.scenario for part in mine if part.is_kept}
        assert told == {part.scenario for part in gpu.PARTS[model] if part.is_kept}


def test_sizes_hold_for_their_part_only() -> None:
    plain = chat.NUM_TURNS
    with gpu._sizes(gpu.Part("chat", 1, sizes={"NUM_TURNS": 3})):
        assert chat.NUM_TURNS == 3
    assert plain == chat.NUM_TURNS


def test_the_first_leaves_time_for_the_one_that_does_not_fit_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left_s = gpu.Run(tmp_path, 300), []

    def played(*args: object) -> bool:
        left_s.append(run._left_s)
        return True

    monkeypatch.setattr(run, "_play", played)
    run.play(next(iter(gpu.ONE_AT_A_TIME)), gpu._TRIAL, reserved_s=25)
    # Half of all parts, and to load.
    assert sum(part.cost_s for part in gpu._TRIAL) / 2 + gpu.LOAD_LATER_S == 75
    assert left_s == pytest.approx([200] * 5 + [275] * 5, abs=5)
