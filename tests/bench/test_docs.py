"""docs/benchmarks.md and its pages are made of the reports, not by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench import docs, glance, results
from keepwarm.bench.report import Report


def report_of(model: str, device: str = "cpu") -> Report:
    found = Report("chat", model, device, command=f"keepwarm bench chat --model {model}")
    found.machine = {"os": "Linux", "cores": 2, "device": "Fast(R) Chip CPU @ 2 GHz"}
    found.rows = [
        {
            "system": system, "setting": "", "case": "40 turns", "num_requests": 1,
            "prompt_tokens": 1000, "cached_tokens": 900, "max_cached_tokens": 950,
            "prefilled_tokens": 100, "ttft_s": [ttft_s], "notes": {"held_bytes": [7]},
            "by_request": {"prompt_tokens": [1000], "cached_tokens": [900]},
        }
        for system, ttft_s in (("keepwarm", 0.0123456), ("mlx-lm", 0.0246912))
    ]  # fmt: skip
    return found


def chat_page(reports: list[Report]) -> str:
    return docs.scenario_page("chat", reports)


def test_committed_pages_are_made_of_the_committed_reports() -> None:
    reports = results.kept()
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page(reports), "run `make docs`"
    for name in docs._names():
        written = (docs.FOLDER / f"{name}.md").read_text(encoding="utf-8")
        assert written == docs.scenario_page(name, reports), "run `make docs`"


def test_pages_show_the_plots_that_are_there() -> None:
    pages = [file.read_text(encoding="utf-8") for file in docs.FOLDER.glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"\]\(\.\./plots/([^)]+)\)", page)}
    assert shown == {file.name for file in docs.PLOTS.glob("*.png")}, "run `make docs`"


def test_every_placeholder_is_filled() -> None:
    assert "{{" not in docs.page([])
    assert "Not measured yet: `keepwarm bench chat`." in chat_page([])


def test_page_says_command_machine_and_figures() -> None:
    found = chat_page([report_of("qwen3_5-mini")])
    assert "`keepwarm bench chat --model qwen3_5-mini`" in found
    assert "2 CPU cores (Fast Chip, Linux)" in found
    assert "![chat, qwen3_5-mini](../plots/chat-qwen3_5-mini-cpu.png)" in found
    assert "| **40 turns** |" in found
    assert "| mlx-lm | 1,000 | 90.0% | 95.0% | 100 | 25 | n=1 | 2.00x |" in found
    assert "## Other models" not in found


def test_one_model_of_each_device_is_shown_before_the_others() -> None:
    names = ("gpt_oss-mini", "qwen3_5-mini", "nemotron_h-mini")
    reports = [report_of("qwen3_5-9b", "gpu"), *map(report_of, names)]
    first, others = chat_page(reports).split("## Other models")
    assert first.index("qwen3_5-mini") < first.index("qwen3_5-9b")
    assert "one Fast Chip" in first
    assert "gpt_oss-mini" not in first
    assert others.index("gpt_oss-mini") < others.index("nemotron_h-mini")
    assert first.count("![") == 2


def test_cpu_comes_before_the_gpu() -> None:
    found = chat_page([report_of("qwen3_5-9b", "gpu"), report_of("rwkv7-mini")])
    assert found.index("rwkv7-mini") < found.index("qwen3_5-9b")


def test_report_is_kept_with_fewer_digits_and_found_again(tmp_path: Path) -> None:
    file = results.keep(report_of("qwen3_5-mini"), tmp_path)
    assert file.name == "chat-qwen3_5-mini-cpu.json"
    written: dict[str, Any] = json.loads(file.read_text())
    assert {"scenario", "model", "device", "versions", "rows", "bounds"} <= set(written)
    assert written["rows"][0]["ttft_s"] == [0.01235]
    [found] = results.kept(tmp_path)
    assert found.command == "keepwarm bench chat --model qwen3_5-mini"
    assert found.rows == written["rows"]


def test_turns_are_kept_of_chats_only(tmp_path: Path) -> None:
    other = report_of("qwen3_5-mini")
    other.scenario = "agent"
    results.keep(other, tmp_path)
    results.keep(report_of("qwen3_5-mini"), tmp_path)
    agent, turns = results.kept(tmp_path)
    assert "by_request" not in agent.rows[0]
    assert "by_request" in turns.rows[0]


def test_report_with_a_tag_lies_beside_the_other_and_comes_after_it(tmp_path: Path) -> None:
    plain, tagged = report_of("qwen3-mini"), report_of("qwen3-mini")
    tagged.command = "keepwarm bench chat --turns 400"
    results.keep(tagged, tmp_path, tag="400")
    results.keep(plain, tmp_path)
    found = chat_page(results.kept(tmp_path))
    assert found.index(plain.command) < found.index("## Other models") < found.index(tagged.command)


def test_first_table_has_a_column_for_each_kind_of_model_that_was_measured() -> None:
    page = docs.page([report_of("qwen3_5-mini"), report_of("gpt_oss-mini")])
    first = page[: page.index("## All pages")]
    assert "|  |  | Qwen3.5 | gpt-oss |" in first
    link = "[chat](benchmarks/chat.md)"
    assert f"| {link} | first token of a turn | 2.00x | 2.00x |" in first
    assert "90.0% / 90.0%" in first
    assert "| [burst]" not in first


def test_first_table_compares_memory_with_the_leanest_of_those_that_find_most() -> None:
    report = report_of("qwen3-mini")
    report.scenario = "memory"
    ours, theirs = report.rows
    ours |= {"case": "6 chats", "held_bytes": 100}
    fewer = {**theirs, "case": "6 chats", "held_bytes": 120, "cached_tokens": 0}
    enough = {**theirs, "case": "6 chats", "held_bytes": 250, "setting": "17 entries"}
    more = {**enough, "held_bytes": 500, "setting": "34 entries"}
    report.rows = [ours, fewer, more, enough]
    assert "| 2.50x |" in glance.table([report], "cpu")
    assert "| 90.0% / 0.0% |" in glance.table([report], "cpu")


def test_lines_where_keepwarm_is_behind_are_all_told() -> None:
    slower, poorer, ahead = report_of("qwen3-mini"), report_of("qwen3_5-9b", "gpu"), report_of("a")
    slower.rows[0]["ttft_s"] = [0.03]
    poorer.rows[0]["cached_tokens"] = 880
    assert glance.losses([slower, poorer, ahead]).splitlines()[2:] == [
        "| [chat](benchmarks/chat.md) | qwen3-mini | 40 turns | first token | 0.82x | 1 |",
        "| [chat](benchmarks/chat.md) | qwen3_5-9b, GPU | 40 turns | tokens found |"
        " 20 of 1,000 less | 1 |",
    ]
    assert glance.losses([ahead]) == "None."


def test_code_that_was_measured_is_kept_with_the_figures(tmp_path: Path) -> None:
    results.keep(report_of("qwen3_5-mini"), tmp_path)
    [found] = results.kept(tmp_path)
    assert found.versions["code"]
    assert f"Code of {found.versions['code']}." in glance.table([found], "cpu")


def trace_of(model: str, shares: dict[str, float], gb: int) -> Report:
    found = Report("trace", model, "states by their sizes")
    found.rows = [
        {"system": "keepwarm", "policy": policy, "trace": "agents", "budget_bytes": gb * 10**9,
         "prompt_tokens": 1000, "cached_tokens": int(1000 * share)}
        for policy, share in shares.items()
    ]  # fmt: skip
    return found


def test_traces_stand_under_their_own_budgets() -> None:
    beside = trace_of("a", {"worth": 0.5, "lru": 0.4, "oracle": 0.7, "bound": 0.8}, 4)
    alone = trace_of("b", {"worth": 0.6, "bound": 0.8}, 8)
    others = trace_of("c", {"lru": 0.6, "bound": 0.8}, 8)
    assert glance.traces([beside, alone, others]).splitlines() == [
        "|  | sizes of | 4 GB | 8 GB |",
        "| --- | --- | ---: | ---: |",
        "| agents | a | 50.0 (+10.00) |  |",
        "| agents | b |  | 60.0 |",
        "| agents | c |  |  |",
    ]
