"""The machine: device, memory, what computes, and whether the server could start."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import mlx.core as mx

from keepwarm.cache.disk.survey import models_in, verify
from keepwarm.cli.amounts import amount
from keepwarm.cli.doctor.findings import Level, Section
from keepwarm.cli.listen import listen
from keepwarm.config import Config
from keepwarm.errors import BadInput
from keepwarm.machine import free_bytes, rooms
from keepwarm.model import backend, blas, speedups
from keepwarm.server.guard import is_loopback

_PACKAGES = ("keepwarm", "mlx", "mlx-lm", "transformers")
_READ_BYTES = 2 << 30  # of the disk cache; more would take longer than a few seconds
_SIDE = 768  # of the matrices whose product is timed


def machine_section(config: Config) -> Section:
    section = Section("machine", "Machine")
    info = mx.device_info()
    is_cpu = mx.default_device() == mx.cpu
    kind = "CPU" if is_cpu else "Metal" if mx.metal.is_available() else "CUDA"
    name = str(info.get("device_name", platform.machine()))
    where = f"{platform.system()} {platform.release()}, {platform.machine()}"
    section.add(
        "device", f"{kind}: {name}; {os.cpu_count()} cores; {where}", kind=kind, device=name
    )
    versions: dict[str, Any] = {package: version(package) for package in _PACKAGES}
    versions["python"] = platform.python_version()
    section.add("versions", ", ".join(f"{k} {v}" for k, v in versions.items()), **versions)
    _add_memory(section)
    if mx.metal.is_available():
        _add_wired_limit(section)
    _add_products(section, is_cpu=is_cpu)
    _add_kernels(section, config)
    return section


def server_section(config: Config) -> Section:
    section = Section("server", "Server")
    _add_port(section, config)
    _add_keys(section, config)
    _add_disk(section, config)
    return section


def _add_memory(section: Section) -> None:
    free = free_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    words = f"{amount(free)} for weights, cache and running requests, of {amount(total)}"
    left = min(rooms(), default=total)
    section.add("memory", words, total_bytes=total, free_bytes=free, left_bytes=left)


def _add_wired_limit(section: Section) -> None:
    """How much of its memory a Mac lets the GPU hold on to."""
    recommended = int(mx.device_info().get("max_recommended_working_set_size", 0))
    asked = _sysctl("iogpu.wired_limit_mb")
    words = f"the GPU may use {amount(recommended)}"
    words += (
        f"; iogpu.wired_limit_mb is set to {asked} MB"
        if asked
        else "; `sudo sysctl iogpu.wired_limit_mb=MB` raises it, at the cost of other programs"
    )
    section.add("wired limit", words, recommended_bytes=recommended, wired_limit_mb=asked)


def _sysctl(name: str) -> int | None:
    try:
        told = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
        )
        return int(told.stdout) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _add_products(section: Section, *, is_cpu: bool) -> None:
    """What multiplies matrices, and how fast."""
    speed = _products_per_s()
    figure = f"{speed / 1e9:.0f} GFLOP/s"
    data: dict[str, Any] = {"flops_per_s": speed}
    if not is_cpu:
        section.add("products", f"by the GPU: {figure}", **data)
    elif sys.platform == "darwin":
        section.add("products", f"by Apple's Accelerate: {figure}", **data)
    else:
        file = _blas_file()
        if file is not None and blas.is_fast(file):
            section.add("BLAS", f"{file.name}: {figure}", file=str(file), **data)
        else:
            name = "MLX's own" if file is None else file.name
            words = f"{name}: {figure}. A fast one takes about a 50th of the time: {blas.INSTALL}"
            if os.environ.get(backend.ENV) == "off":
                words = (
                    f"{name}: {figure}, as {backend.ENV}=off; a fast one takes a 50th of the time"
                )
            section.add("BLAS", words, Level.ADVICE, file=str(file), **data)


def _blas_file() -> Path | None:
    try:
        return blas.in_use(Path(mx.__file__).parent / "lib" / "libmlx.so")
    except (blas.BlasFault, OSError):
        return None


def _products_per_s() -> float:
    """Floating point operations a second in a product of two matrices; the best of three."""
    a = mx.random.normal((_SIDE, _SIDE))
    times = []
    for _ in range(4):
        began = perf_counter()
        mx.eval(a @ a)
        times.append(perf_counter() - began)
    return 2.0 * _SIDE**3 / min(times[1:])


def _add_kernels(section: Section, config: Config) -> None:
    """Whose functions compute: installed as a model's loading would."""
    speedups.install(config.kernels)
    used = speedups.kernels_in_use()
    names = speedups.replaced()
    if mx.metal.is_available():
        words = "mlx-lm's and MLX's own, for Metal"
    elif used == "keepwarm":
        words = f"keepwarm's in place of {len(names)} functions that are slow without Metal"
    else:
        words = "mlx-lm's, as --kernels says; without Metal many read token by token"
    level = Level.OK if used == "keepwarm" or mx.metal.is_available() else Level.ADVICE
    section.add("kernels", words, level, used=used, replaced=names)


def _add_port(section: Section, config: Config) -> None:
    where = f"{config.host}:{config.port}"
    try:
        listen(config.host, config.port).close()
    except BadInput as error:
        answer = _who_answers(config)
        level = Level.OK if answer else Level.PROBLEM
        words = f"{answer} runs at {where}" if answer else f"{error}"
        section.add("port", words, level, is_free=False)
    else:
        section.add("port", f"{where} is free", is_free=True)


def _who_answers(config: Config) -> str | None:
    """A keepwarm that is there already; None for any other program."""
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    headers = {"Authorization": f"Bearer {config.api_keys[0]}"} if config.api_keys else {}
    try:
        request = Request(f"http://{host}:{config.port}/", headers=headers)
        with urlopen(request, timeout=2) as answer:
            told = json.load(answer)
    except (URLError, OSError, ValueError):
        return None
    if not isinstance(told, dict) or told.get("server") != "keepwarm":
        return None
    return f"keepwarm {told.get('version', '')} with {told.get('model', 'a model')}"


def _add_keys(section: Section, config: Config) -> None:
    count = len(config.api_keys)
    if count:
        apart = "share one cache" if config.shared_cache else "each have a cache of their own"
        words = "1 key may ask" if count == 1 else f"{count} keys may ask; they {apart}"
        section.add("keys", words, count=count)
    elif is_loopback(config.host):
        section.add("keys", "none; only programs on this machine can ask", count=0)
    else:
        words = f"none, and anyone who reaches {config.host} may ask; --api-key changes that"
        section.add("keys", words, Level.ADVICE, count=0)


def _add_disk(section: Section, config: Config) -> None:
    """Whether the folder for prompts can be used."""
    if config.disk_cache in (None, "off"):
        section.add("disk cache", "off; --disk-cache DIR keeps prompts for the next start")
        return
    folder = Path(str(config.disk_cache)).expanduser()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        section.add("disk cache", f"{folder} cannot be written", Level.PROBLEM)
        return
    held = models_in(folder)
    used, free = sum(model.nbytes for model in held), shutil.disk_usage(existing).free
    words = f"{folder}: {amount(used)} of {len(held)} models, {amount(free)} free on that disk"
    faults: list[tuple[Path, str]] = []
    if used > _READ_BYTES:
        words += "; `keepwarm cache verify` reads and checks every file"
    elif held:
        faults = verify(folder, lambda _: None)
        words += f"; {len(faults)} files are damaged" if faults else "; every file holds"
    level = Level.ADVICE if faults else Level.OK  # what is damaged is a miss, never an answer
    data: dict[str, Any] = {"used_bytes": used, "free_bytes": free, "damaged_files": len(faults)}
    section.add("disk cache", words, level, **data)
