"""A file that was changed anywhere, cut anywhere or put elsewhere is never taken for what it was."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from keepwarm.cache.disk.format import (
    SUM_BYTES,
    ArraySpec,
    BadFile,
    FileKind,
    Header,
    Part,
    decode,
    digest_of,
    encode,
    sums_of,
)
from keepwarm.cache.disk.store import Folder, Get, Put, Slice

KEYS = bytes(range(1, 81))  # of 20 tokens


def header_of(kind: FileKind, payload: int) -> Header:
    shape = (1, 1, 4, payload // 16)
    plain = {"class": "x", "attributes": {}} if kind is FileKind.STATE else None
    lo = 20 if kind is FileKind.STATE else 8
    part = Part(0, lo, 20, (ArraySpec("float32", shape),), plain)
    parent = None if lo == 0 else "parent"
    return Header(
        kind, "model", "space", lo, 20, digest_of(KEYS[: lo * 4]), digest_of(KEYS), parent,
        "tail", 1.0, 4, (part,), KEYS[lo * 4 :],
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "model", "model")
    made.take()
    return made


def put(folder: Folder, kind: FileKind, payload: bytes) -> Header:
    header = header_of(kind, len(payload))
    view = memoryview(payload)
    shape = header.parts[0].arrays[0].shape
    return folder.put(Put(header, ((Slice(view, shape, 4),),))).header


def read(folder: Folder, header: Header, path_keys: bytes = KEYS) -> bytes:
    buffer = bytearray(header.payload_bytes)
    hi = len(path_keys) // 4
    folder.get(Get(replace(header, keys=b""), hi, path_keys, (memoryview(buffer),)))
    return bytes(buffer)


KINDS = {kind.value: kind for kind in FileKind}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("num_bytes", [16, 4096, SUM_BYTES + 64])
def test_what_was_written_is_read(folder: Folder, kind: FileKind, num_bytes: int) -> None:
    payload = random.Random(num_bytes).randbytes(num_bytes)
    header = put(folder, kind, payload)
    assert read(folder, header) == payload
    assert [file.header for file in folder.scan()] == [header]


def flips(folder: Folder, kind: FileKind, count: int, seed: int) -> None:
    rng = random.Random(seed)
    header = put(folder, kind, rng.randbytes(1600))
    path = folder.path / header.name
    whole = path.read_bytes()
    for number in range(count):
        # All of it once where there is time for that, then anywhere.
        is_in_turn = count > len(whole) > number
        at = number if is_in_turn else rng.randrange(len(whole))
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(BadFile):
            read(folder, header)
    path.write_bytes(whole)
    read(folder, header)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_flipped_bit_is_noticed_wherever_it_is(folder: Folder, kind: FileKind) -> None:
    flips(folder, kind, 400, 1)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_ten_thousand_flipped_bits_are_noticed(folder: Folder, kind: FileKind) -> None:
    flips(folder, kind, 10_000, 2)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_file_of_any_other_length_is_noticed(folder: Folder, kind: FileKind) -> None:
    header = put(folder, kind, bytes(1600))
    path = folder.path / header.name
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BadFile):
            read(folder, header)
    path.write_bytes(whole + b"x")
    with pytest.raises(BadFile):
        read(folder, header)
    assert folder.scan() == []
    assert not path.exists()


def test_header_and_payload_of_two_files_do_not_go_together(folder: Folder) -> None:
    header = put(folder, FileKind.ROWS, bytes(1600))
    path = folder.path / header.name
    old = path.read_bytes()
    again = put(folder, FileKind.ROWS, b"\1" * 1600)
    new = path.read_bytes()
    start = len(old) - 1600
    for mixed in (old[:start] + new[start:], new[:start] + old[start:]):
        path.write_bytes(mixed)
        for known in (header, again):
            with pytest.raises(BadFile):
                read(folder, known)


def test_swapped_files_are_noticed(folder: Folder) -> None:
    rows = put(folder, FileKind.ROWS, bytes(160))
    state = put(folder, FileKind.STATE, bytes(160))
    one, other = folder.path / rows.name, folder.path / state.name
    spare = folder.path / "spare"
    one.rename(spare)
    other.rename(one)
    spare.rename(other)
    for header in (rows, state):
        with pytest.raises(BadFile):
            read(folder, header)
    assert folder.scan() == []


def test_other_tokens_are_noticed_before_the_payload_is_read(folder: Folder) -> None:
    header = put(folder, FileKind.ROWS, bytes(160))
    for at in range(0, 80, 4):
        other = bytearray(KEYS)
        other[at] ^= 1
        with pytest.raises(BadFile, match="tokens"):
            read(folder, header, bytes(other))
    assert read(folder, header, KEYS[: 12 * 4]) == bytes(160)  # a part of it is wanted
    with pytest.raises(BadFile, match="tokens"):
        read(folder, header, KEYS[: 8 * 4])
    state = put(folder, FileKind.STATE, bytes(160))
    for wrong in (KEYS[:-4], bytes(80)):
        with pytest.raises(BadFile, match="tokens"):
            read(folder, state, wrong)


def test_file_that_is_gone_or_of_another_model_is_noticed(folder: Folder, tmp_path: Path) -> None:
    header = put(folder, FileKind.ROWS, bytes(160))
    other = Folder(folder.path, "other")
    with pytest.raises(BadFile, match="another model"):
        read(other, header)
    (folder.path / header.name).unlink()
    with pytest.raises(BadFile, match="gone"):
        read(folder, header)


def test_file_of_another_format_is_collected(folder: Folder) -> None:
    header = put(folder, FileKind.ROWS, bytes(160))
    path = folder.path / header.name
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(data)
    assert folder.scan() == []
    assert folder.counts["bad_format"] == 1
    assert not path.exists()


def test_leftovers_are_collected(folder: Folder) -> None:
    header = put(folder, FileKind.ROWS, bytes(160))
    (folder.path / f"{header.name}.tmp.{os.getpid()}").write_bytes(b"half")
    folder.set_aside(header.name)
    assert folder.scan() == []
    assert [path.name for path in folder.path.iterdir()] == ["lock"]


def test_header_that_makes_no_sense_is_refused() -> None:
    header = header_of(FileKind.ROWS, 160)
    for wrong in (
        replace(header, hi=21),
        replace(header, width=8),
        replace(header, lo=-1),
        replace(header, parts=()),
    ):
        data, _ = encode(wrong, sums_of([memoryview(bytes(160))]))
        with pytest.raises(BadFile):
            decode(data, len(data) + 160)
