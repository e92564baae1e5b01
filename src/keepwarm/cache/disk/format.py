"""The form of a file of the disk tier. Plain bytes, no mlx; any thread.

    prefix    magic, version, the lengths of what follows, and the hash of the whole header
    meta      JSON: what the file is, where it belongs, which arrays follow
    keys      the tree's keys of the positions lo ... hi - 1
    sums      one xxh3_128 for each SUM_BYTES of payload
    payload   the arrays, one after the other

The header is everything before the payload. Nothing in it is looked at before its hash holds.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import xxhash

from keepwarm.errors import CacheFault

MAGIC = b"keepwarm"
VERSION = 1
SUM_BYTES = 4 << 20  # of payload for each checksum
_SUM_LEN = 16
_PREFIX = struct.Struct("<8sIIIIQ16s")  # magic, version, lengths of meta, keys and sums, payload
PREFIX_LEN = _PREFIX.size
# Far above any header there can be: a damaged length must not make a reader ask for gigabytes.
_MAX_HEADER = 256 << 20

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8, "complex64": 8,
}  # fmt: skip


class BadFile(CacheFault):
    """A file is not what its place says, or not whole; `kind` is what it is counted as."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class FileKind(StrEnum):
    ROWS = "rows"  # of full attention, for the positions lo ... hi - 1
    STATE = "state"  # windows and snapshots at the position hi


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of the payload."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = ITEM_BYTES[self.dtype]
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True, slots=True)
class Part:
    """The arrays of one leaf: its rows `lo ... hi - 1`, or with `plain` a snapshot, of which that
    is all but the arrays."""

    leaf: int
    lo: int
    hi: int
    arrays: tuple[ArraySpec, ...]
    plain: Any = None

    @property
    def is_snapshot(self) -> bool:
        return self.plain is not None


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. `before` and `after` are hashes of all keys of the path up to
    `lo` and `hi`; `parent` is the file that holds the rows just before `lo`."""

    kind: FileKind
    identity: str
    space: str
    lo: int
    hi: int
    before: str
    after: str
    parent: str | None
    stop: str  # the kind of the checkpoint at `hi`; empty where there is none
    created: float
    width: int  # bytes of a key
    parts: tuple[Part, ...]
    keys: bytes = field(repr=False)
    digest: bytes = b""  # of the header, once it was written or read

    @property
    def name(self) -> str:
        """Of its file: it follows from where the file belongs, so that it can be probed."""
        place = f"{self.space}/{self.after}".encode()
        digest = hashlib.blake2b(place, digest_size=16).hexdigest()
        return f"{digest}-{self.lo}-{self.hi}.{self.kind}"

    @property
    def payload_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)

    @property
    def specs(self) -> list[ArraySpec]:
        return [spec for part in self.parts for spec in part.arrays]


# Whatever else lies in a folder that a user named is not ours to count or to delete.
_FOLDER = re.compile("[0-9a-f]{32}")
_FILE = re.compile(rf"[0-9a-f]{{32}}-\d+-\d+\.({'|'.join(FileKind)})(\.bad|\.tmp\.\d+)?")


def is_folder_name(name: str) -> bool:
    """Whether a model's folder may be called so."""
    return _FOLDER.fullmatch(name) is not None


def is_file_name(name: str) -> bool:
    """Whether one of our files may be called so, whole, half written or set aside."""
    return _FILE.fullmatch(name) is not None


def digest_of(keys: bytes | memoryview) -> str:
    """The hash of a path's keys: equal ones mean equal keys from the very start."""
    return hashlib.blake2b(keys, digest_size=16).hexdigest()


def sums_of(buffers: Sequence[memoryview]) -> bytes:
    """The checksums of a payload that lies in these buffers, one after the other."""
    sums = []
    for chunk in _chunks(buffers):
        running = xxhash.xxh3_128()
        for piece in chunk:
            running.update(piece)
        sums.append(running.digest())
    return b"".join(sums)


def check_payload(buffers: Sequence[memoryview], sums: bytes) -> None:
    """Raises BadFile unless the buffers hold what the checksums were made of."""
    if sums_of(buffers) != sums:
        raise BadFile("payload", "the payload is not what its checksums say")


def _chunks(buffers: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    chunk: list[memoryview] = []
    room = SUM_BYTES
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            piece = buffer[at : at + room]
            chunk.append(piece)
            at, room = at + len(piece), room - len(piece)
            if not room:
                yield chunk
                chunk, room = [], SUM_BYTES
    if chunk:
        yield chunk


def encode(header: Header, sums: bytes) -> tuple[bytes, Header]:
    """The bytes of a header, and the header with its digest."""
    meta = asdict(header)
    del meta["keys"], meta["digest"]
    text = json.dumps(meta, separators=(",", ":")).encode()
    lengths = len(text), len(header.keys), len(sums), header.payload_bytes
    rest = text + header.keys + sums
    digest = _header_digest(VERSION, lengths, rest)
    prefix = _PREFIX.pack(MAGIC, VERSION, *lengths, digest)
    return prefix + rest, replace(header, digest=digest)


def _header_digest(version: int, lengths: tuple[int, int, int, int], rest: bytes) -> bytes:
    running = xxhash.xxh3_128(struct.pack("<IIIIQ", version, *lengths))
    running.update(rest)
    return running.digest()


def rest_len(prefix: bytes) -> int:
    """How many bytes of header follow the prefix. Raises BadFile."""
    if len(prefix) < PREFIX_LEN or prefix[:8] != MAGIC:
        raise BadFile("header", "this is no file of keepwarm's")
    _, version, meta_len, keys_len, sums_len, _, _ = _PREFIX.unpack(prefix[:PREFIX_LEN])
    if version != VERSION:
        raise BadFile("format", f"a file of format {version}, not {VERSION}")
    total: int = meta_len + keys_len + sums_len
    if total > _MAX_HEADER:
        raise BadFile("header", f"a header of {total} bytes")
    return total


def decode(data: bytes, file_bytes: int) -> tuple[Header, bytes]:
    """The header that `data` begins with, and the checksums of the payload. `file_bytes` is how
    long the whole file is. Raises BadFile."""
    end = PREFIX_LEN + rest_len(data)
    _, version, meta_len, keys_len, sums_len, payload_bytes, digest = _PREFIX.unpack(
        data[:PREFIX_LEN]
    )
    rest = data[PREFIX_LEN:end]
    if len(data) < end:
        raise BadFile("length", "the header is cut short")
    if _header_digest(version, (meta_len, keys_len, sums_len, payload_bytes), rest) != digest:
        raise BadFile("header", "the header is not what its hash says")
    if file_bytes != end + payload_bytes:
        raise BadFile("length", f"{file_bytes} bytes where {end + payload_bytes} belong")
    try:
        header = _header_of(json.loads(rest[:meta_len]), rest[meta_len : meta_len + keys_len])
        header = replace(header, digest=digest)
        _check_sense(header, payload_bytes, sums_len)
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile("header", f"the header makes no sense: {error}") from error
    return header, rest[meta_len + keys_len :]


def _header_of(meta: dict[str, Any], keys: bytes) -> Header:
    parts = tuple(
        Part(
            leaf=part["leaf"],
            lo=part["lo"],
            hi=part["hi"],
            arrays=tuple(ArraySpec(a["dtype"], tuple(a["shape"])) for a in part["arrays"]),
            plain=part["plain"],
        )
        for part in meta.pop("parts")
    )
    return Header(**{**meta, "kind": FileKind(meta["kind"])}, parts=parts, keys=keys)


def _check_sense(header: Header, payload_bytes: int, sums_len: int) -> None:
    """Raises ValueError."""
    num_keys = header.hi - header.lo
    if not 0 <= header.lo <= header.hi or len(header.keys) != num_keys * header.width:
        raise ValueError(f"{len(header.keys)} bytes of keys for {header.lo}..{header.hi}")
    if payload_bytes != header.payload_bytes:
        raise ValueError(f"arrays of {header.payload_bytes} bytes in {payload_bytes}")
    if sums_len != -(-payload_bytes // SUM_BYTES) * _SUM_LEN:
        raise ValueError(f"{sums_len} bytes of checksums")
