"""Gives MLX's CPU build a fast BLAS. Its wheels for Linux bring the reference one, which takes
about 50 times as long for a product. Any thread, best before there is work.

    libmlx.so                                  libopenblas.so, or any other
      call cblas_sgemm → [jump slot] ─────×──→   cblas_sgemm (scipy_cblas_sgemm in PyPI's build)
                              └─ was: mlx_cpu.libs/libblas.so (reference)
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# What libmlx.so takes from BLAS. What it takes from LAPACK stays with the reference.
PRODUCTS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
# PyPI's scipy-openblas32 puts this before every name, so as not to meet another OpenBLAS.
_PREFIXES = ("", "scipy_")
_FAST = ("openblas", "mkl", "blis")  # in the file's name, or its folder's on Debian
# Fedora's libopenblas.so.0 has one thread, its libopenblasp.so.0 many.
_SYSTEM = {
    "openblas": ("libopenblasp.so.0", "libopenblas.so.0"),
    "mkl": ("libmkl_rt.so.3", "libmkl_rt.so.2"),
    "blis": ("libblis.so.4", "libblis.so.3"),
}
INSTALL = "pip install scipy-openblas32 (or apt install libopenblas0, dnf install openblas-threads)"

# How each is told its number of threads, and the variable of its own that tells it, besides that
# of OpenMP. MKL takes a pointer under that name in lower case; BLIS is for one thread until told.
_SET_THREADS = {
    "openblas_set_num_threads": "OPENBLAS_NUM_THREADS",
    "scipy_openblas_set_num_threads": "OPENBLAS_NUM_THREADS",
    "MKL_Set_Num_Threads": "MKL_NUM_THREADS",
    "bli_thread_set_num_threads": "BLIS_NUM_THREADS",
}

# From <elf.h> and <dlfcn.h>; the same on x86-64 and AArch64.
_DT_NULL, _DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_PLTREL, _DT_JMPREL = 0, 2, 5, 6, 20, 23
_DT_RELA = 7
_POINTERS = (_DT_STRTAB, _DT_SYMTAB, _DT_JMPREL)
_RTLD_DI_LINKMAP = 2
_SYMBOL_BYTES = 24


class BlasFault(Exception):
    """MLX's products cannot be pointed elsewhere; they are as they were."""


class _LinkMap(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_uint64),
    )


class _Dynamic(ctypes.Structure):
    _fields_ = (("tag", ctypes.c_int64), ("value", ctypes.c_uint64))


class _Relocation(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("info", ctypes.c_uint64), ("addend", ctypes.c_int64))


class _Place(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def open_library(choice: str) -> ctypes.CDLL | None:
    """The first that is installed, for `auto`; else what is named: scipy-openblas32, openblas,
    mkl, blis, or a file. None where there is none."""
    for name in _names(choice):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if _product(library, PRODUCTS[0]) is not None:
            return library
    return None


def _names(choice: str) -> Iterator[str]:
    """What to give to the dynamic loader. (`ctypes.util.find_library` starts processes.)"""
    if choice in ("auto", "scipy-openblas32"):
        spec = importlib.util.find_spec("scipy_openblas32")
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield str(Path(folder, "lib", "libscipy_openblas.so"))
    wanted = [name for kind, names in _SYSTEM.items() if choice in ("auto", kind) for name in names]
    # What was installed into the environment (MKL, by pip) before what the system happens to have.
    yield from (str(Path(sys.prefix, "lib", name)) for name in wanted)
    yield from wanted
    if choice not in ("auto", "scipy-openblas32", *_SYSTEM):
        yield choice


def use(library: ctypes.CDLL, mlx: Path) -> None:
    """MLX, whose libmlx.so is the loaded `mlx`, computes its products with `library` from now on.
    Raises BlasFault."""
    slots = _slots(mlx)
    if set(slots) != set(PRODUCTS):
        raise BlasFault(f"{mlx.name} does not call BLAS by way of slots")
    targets = {name: _product(library, name) for name in PRODUCTS}
    if None in targets.values():
        raise BlasFault(f"{file_of(library)} lacks a product")
    if not all(_is_writable(address) for address in slots.values()):
        raise BlasFault(f"the slots of {mlx.name} cannot be written")
    for name, address in slots.items():
        ctypes.c_void_p.from_address(address).value = targets[name]


def limit_threads(library: ctypes.CDLL, count: int) -> None:
    """So many, unless the environment says how many. A thread that waits for a core which another
    process has makes a small product take fifty times as long."""
    for name, variable in _SET_THREADS.items():
        setter = getattr(library, name, None)
        if setter is not None:
            if not (os.environ.get(variable) or os.environ.get("OMP_NUM_THREADS")):
                setter(ctypes.c_int64(count))  # an int is its lower half, where arguments are
            return


def num_cores() -> int:
    """What this process may use: of the machine's cores those it is bound to, and of these no
    more than a container's share."""
    bound = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return max(1, min(bound, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return bound


def in_use(mlx: Path) -> Path:
    """The file that MLX's float32 products are in. Raises BlasFault."""
    slots = _slots(mlx)
    if PRODUCTS[0] not in slots:
        raise BlasFault(f"{mlx.name} does not call BLAS by way of slots")
    return _file_at(ctypes.c_void_p.from_address(slots[PRODUCTS[0]]).value or 0)


def is_fast(file: Path) -> bool:
    """Goes by the names of the file and its folder, links followed."""
    return any(kind in part for kind in _FAST for part in file.resolve().parts[-2:])


def file_of(library: ctypes.CDLL) -> Path:
    address = _product(library, PRODUCTS[0])
    return _file_at(address) if address is not None else Path(library._name)


def _product(library: ctypes.CDLL, name: str) -> int | None:
    for prefix in _PREFIXES:
        function = getattr(library, prefix + name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


def _file_at(address: int) -> Path:
    place = _Place()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(place))
    if not found:
        raise BlasFault(f"there is no library at {address:#x}")
    return Path(os.fsdecode(place.file))


def _slots(mlx: Path) -> dict[str, int]:
    """Where libmlx.so keeps the addresses of the products: the dynamic loader's own tables tell."""
    tables = _LinkMap.from_address(_link_map(mlx))
    values = _dynamic(tables)
    if values.get(_DT_PLTREL) != _DT_RELA:
        return {}
    num_slots = values[_DT_PLTRELSZ] // ctypes.sizeof(_Relocation)
    found = {}
    for entry in (_Relocation * num_slots).from_address(values[_DT_JMPREL]):
        symbol = values[_DT_SYMTAB] + (entry.info >> 32) * _SYMBOL_BYTES
        name_at = values[_DT_STRTAB] + ctypes.c_uint32.from_address(symbol).value
        name = ctypes.string_at(name_at).decode()
        if name in PRODUCTS:
            found[name] = tables.base + entry.offset
    return found


def _link_map(mlx: Path) -> int:
    try:
        library = ctypes.CDLL(str(mlx), mode=os.RTLD_NOLOAD)
    except OSError as error:
        raise BlasFault(f"{mlx.name} is not loaded") from error
    address = ctypes.c_void_p()
    failed = ctypes.CDLL(None).dlinfo(
        ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(address)
    )
    if failed or address.value is None:
        raise BlasFault(f"the dynamic loader does not tell of {mlx.name}")
    return address.value


def _dynamic(tables: _LinkMap) -> dict[int, int]:
    """The entries by tag. glibc has added the base to what points somewhere; musl leaves the file's
    own offsets, which are smaller than any base."""
    values: dict[int, int] = {}
    address = tables.dynamic
    while (entry := _Dynamic.from_address(address)).tag != _DT_NULL:
        is_offset = entry.tag in _POINTERS and entry.value < tables.base
        values[entry.tag] = entry.value + (tables.base if is_offset else 0)
        address += ctypes.sizeof(_Dynamic)
    return values


def _is_writable(address: int) -> bool:
    """A library linked with `-z now` has its slots sealed: to write there would end the process."""
    # Bytes: the names of files in it need be no text.
    for line in Path("/proc/self/maps").read_bytes().split(b"\n"):
        if line:
            span, rights = line.split(maxsplit=2)[:2]
            start, end = (int(part, 16) for part in span.split(b"-"))
            if start <= address < end:
                return b"w" in rights
    return False
