"""An engine made from the settings: what `serve` and `chat` have in common."""

from __future__ import annotations

from typing import Any

from keepwarm.cache.disk.settings import Disk, default_folder
from keepwarm.cache.placement import Placement
from keepwarm.cache.store import PrefixCache
from keepwarm.config import Config, Percent
from keepwarm.engine.engine import Engine
from keepwarm.machine import free_bytes
from keepwarm.model.caches import cache_maker
from keepwarm.model.hub import Transfer
from keepwarm.model.loader import Load, model_loader
from keepwarm.model.names import shown_name


def make_engine(
    config: Config, load: Load | None = None, *, transfer: Transfer | None = None
) -> Engine:
    """An engine for the model, not started yet; with `load`, for what that gives. How far
    a download is stands in `transfer`. Raises BadInput for what cannot be there."""
    load = load or model_loader(
        config.model,
        adapter_path=config.adapter_path,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
        dtype=config.dtype,
        kernels=config.kernels,
        transfer=transfer,
    )
    placement = Placement(min_span=config.min_span, prefill_step=config.prefill_step)

    def make_cache(model: Any) -> PrefixCache:
        maker = cache_maker(model, config.kv_bits, config.kv_group_size)
        return PrefixCache(
            model if config.kv_bits is None else maker,
            budget_bytes=_budget_bytes(config.cache_bytes),
            exact=config.exact,
            placement=placement,
            policy=config.policy,
            disk=_disk(config),
        )

    return Engine(load, make_cache=make_cache, settings=config.engine_settings())


def _disk(config: Config) -> Disk | None:
    """Where and how prompts are kept for the next start. On the engine's thread."""
    if config.disk_cache in (None, "off"):
        return None
    folder = default_folder() if config.disk_cache == "auto" else str(config.disk_cache)
    return Disk(
        folder,
        name=config.served_name or shown_name(config.model),
        max_bytes=config.disk_cache_bytes,
        max_days=config.disk_cache_days,
        day_bytes=config.disk_cache_write_bytes_per_day,
        idle_s=config.disk_cache_idle_s,
        min_spared_s=config.disk_cache_min_s,
    )


def _budget_bytes(budget: int | Percent | None) -> int | None:
    """On the engine's thread, once the model is loaded."""
    if not isinstance(budget, Percent):
        return budget
    return int(free_bytes() * budget.value / 100)
