"""The three formats of traces, and how sessions of several users become one stream."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from keepwarm.bench.trace.read import read_trace, trace_files
from keepwarm.bench.trace.stream import interleaved
from keepwarm.errors import BadInput
from tests.bench.trace.small import request, trace


def asked(t: float, num_tokens: int, ids: list[int]) -> dict[str, Any]:
    return {"t": t, "in": num_tokens, "out": 5, "hash_ids": ids}


def archive(path: Path, **sessions: list[dict[str, Any]]) -> Path:
    """An archive of sessions, the last name first."""
    head = {"block_size": 64, "tool_tokens": 100, "system_tokens": 40}
    with tarfile.open(path, "w:xz") as tar:
        for name, requests in sorted(sessions.items(), reverse=True):
            text = json.dumps(head | {"requests": requests}).encode()
            member = tarfile.TarInfo(f"sessions/{name}.json")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return path


def test_session_blocks_are_whole_and_know_where_the_system_part_ends(tmp_path: Path) -> None:
    path = archive(tmp_path / "s.tar.xz", a=[asked(0, 150, [1, 2, 3]), asked(1, 64, [1])])
    found = read_trace(path, num_users=1)
    assert (found.name, found.block_len) == ("s", 64)
    assert [len(r.blocks) for r in found.requests] == [2, 1]  # 150 tokens have two whole blocks
    assert [r.system_len for r in found.requests] == [2, 1]  # 140 tokens, or all there is
    assert found.requests[0].blocks[0] == found.requests[1].blocks[0]


def test_ids_of_two_sessions_never_meet(tmp_path: Path) -> None:
    path = archive(tmp_path / "s.tar.xz", a=[asked(0, 128, [1, 2])], b=[asked(0, 128, [1, 2])])
    one, other = read_trace(path, num_users=2).requests
    assert not set(one.blocks.tolist()) & set(other.blocks.tolist())


def test_time_of_a_sub_agent_counts_from_its_start(tmp_path: Path) -> None:
    agent = {"t": 10.0, "tool_tokens": 64, "system_tokens": 0, "requests": [asked(3, 128, [7, 8])]}
    path = archive(tmp_path / "s.tar.xz", a=[asked(0, 64, [1]), agent, asked(12, 64, [1])])
    found = read_trace(path, num_users=1).requests
    assert [r.time_s for r in found] == [0.0, 12.0, 13.0]
    assert [r.system_len for r in found] == [1, 1, 1]


def test_first_sessions_are_first_by_name(tmp_path: Path) -> None:
    path = archive(tmp_path / "s.tar.xz", a=[asked(0, 64, [1])], b=[asked(0, 640, [1] * 10)])
    assert read_trace(path, num_users=1, num_sessions=1).num_tokens == 64


def test_service_requests_share_ids_and_are_told_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.gz"
    lines = [
        {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 2500, "input_length": 512, "output_length": 1, "hash_ids": [0]},
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    found = read_trace(path, num_users=1)
    assert [r.blocks.tolist() for r in found.requests] == [[1, 2], [1]]
    assert [r.time_s for r in found.requests] == [0.0, 2.5]


def test_dialogue_asks_before_each_reply_with_all_that_was_said(tmp_path: Path) -> None:
    path = tmp_path / "d.json.xz"
    said = [
        {"role": "system", "content": "s" * 600},
        {"role": "user", "content": "u" * 600},
        {"role": "assistant", "content": "a" * 600},
        {"role": "user", "content": "v" * 600},
        {"role": "assistant", "content": "b"},
    ]
    other = [said[0], {"role": "user", "content": "w" * 600}, said[2]]
    with lzma.open(path, "wt") as file:
        json.dump([{"traj": said}, {"traj": other}], file)
    one, two, three = sorted(read_trace(path, num_users=2).requests, key=lambda r: r.time_s)
    assert one.system_len == 2  # of 256 characters each
    assert three.time_s == 10.0
    assert one.blocks[:2].tolist() == two.blocks[:2].tolist()  # the same system prompt
    assert one.blocks[2] != two.blocks[2]
    assert three.blocks[: len(one.blocks)].tolist() == one.blocks.tolist()


def test_users_take_the_next_session_when_theirs_ends() -> None:
    short, long = [request([1]), request([1], 5.0)], [request([2]), request([2], 100.0)]
    found = interleaved([long, short, short, short], num_users=2)
    assert [r.time_s for r in found] == [0.0, 0.0, 5.0, 5.0, 10.0, 10.0, 15.0, 100.0]


def test_messages_end_where_this_or_an_earlier_prompt_ended() -> None:
    ends = [ends for _, ends in trace([1, 2], [1, 2, 3, 4], [1, 5]).message_ends()]
    assert ends == [[2], [2, 4], [2]]


@pytest.mark.parametrize("name", ["x.txt", "x.json", "x.jsonl", "x.tar.xz"])
def test_what_is_no_trace_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text('{"traj": 3}\n')
    with pytest.raises(BadInput, match="x"):
        read_trace(path, num_users=1)


def test_folder_gives_its_traces_and_an_empty_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no traces"):
        trace_files(tmp_path)
    for name in ("README.md", "b.jsonl", "a.tar.xz"):
        (tmp_path / name).touch()
    assert [file.name for file in trace_files(tmp_path)] == ["a.tar.xz", "b.jsonl"]
