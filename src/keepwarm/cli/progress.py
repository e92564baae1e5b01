"""What is shown while a model loads, and when it has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from keepwarm.cache.disk.stats import DiskStats
from keepwarm.cli.amounts import amount
from keepwarm.config import Config
from keepwarm.engine.request import Sampling
from keepwarm.engine.status import Status
from keepwarm.model.defaults import sampling_words
from keepwarm.model.hub import Transfer
from keepwarm.model.names import shown_name, weights_bytes
from keepwarm.server.guard import is_loopback


@contextmanager
def loading_bar(name: str, transfer: Transfer) -> Iterator[Callable[[], None]]:
    """A bar on the terminal; the function it gives moves it. How much of the weights has arrived
    is read from mlx's own count of its memory."""
    import mlx.core as mx

    total: int | None = None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    is_seen = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_seen) as progress:
        task = progress.add_task(f"loading {shown_name(name)}", total=None)

        def update() -> None:
            nonlocal total
            size: int | None
            if transfer.is_running:
                words, done, size = f"downloading {name}", transfer.done_bytes, transfer.total_bytes
            else:
                total = size = total or weights_bytes(name)
                words, done = f"loading {shown_name(name)}", mx.get_active_memory()
            if size is not None:
                progress.update(task, description=words, completed=min(done, size), total=size)

        yield update


def ready_words(
    config: Config,
    port: int,
    status: Status,
    own: Sampling | None,
    trouble: str | None = None,
) -> str:
    """Where the server is, what it serves and how to try it. `own` is the model's sampling,
    `trouble` why it cannot chat."""
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    name = config.served_name or config.model
    lines = [
        f"keepwarm serves {name} at {address}/v1",
        f"  layers   {status.layers or 'unknown'}{_notes(status)}",
    ]
    if status.cache is not None:
        lines.append(f"  cache    {amount(status.cache.budget_bytes)}{_keys(config)}")
    if status.disk is not None:
        lines.append(f"  disk     {_disk_words(status.disk)}")
    if status.context_len is not None:
        lines.append(f"  context  {status.context_len} tokens")
    lines.append(f"  sampling {_sampling(config, own)}")
    if trouble is not None:
        lines.append(f"  chats    refused: {trouble}; --chat-template FILE gives one")
    if not config.api_keys and not is_loopback(config.host):
        lines.append(
            "  anyone who reaches this address can send requests; --api-key asks for a key"
        )
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 100}
    route = "chat/completions"
    if trouble is not None:
        body, route = {"prompt": "Once upon a time", "max_tokens": 100}, "completions"
    key = " -H 'Authorization: Bearer KEY'" if config.api_keys else ""
    lines += [
        "",
        f"  curl {address}/v1/{route} -H 'Content-Type: application/json'{key} \\",
        f"    -d '{json.dumps(body)}'",
        "",
    ]
    return "\n".join(lines)


def _notes(status: Status) -> str:
    if status.disabled_because is not None:
        return f" (cannot be cached: {status.disabled_because})"
    return ", exact" if status.is_exact else ""


def _sampling(config: Config, own: Sampling | None) -> str:
    """What holds where a request does not say, and where it comes from."""
    held = config.sampling(own)
    if config.generation_config == "off":
        source = "generation_config.json ignored"
    elif own is None:
        source = "the model names no sampling of its own"
    else:
        source = "the model's own" if held == own else "the model's own, changed by flags"
    return f"{sampling_words(held)} ({source})"


def _disk_words(disk: DiskStats) -> str:
    """What lies there and how to turn it off."""
    if disk.off_because is not None:
        return f"off: {disk.off_because}"
    held = "" if disk.phase == "opening" else f" ({amount(disk.nbytes)} now)"
    return (
        f"{disk.folder}{held}: prompts as plain token ids, readable by you alone;"
        " --disk-cache off to keep none"
    )


def _keys(config: Config) -> str:
    if not config.api_keys:
        return ""
    return ", shared by all keys" if config.shared_cache else ", apart for each key"
