"""What Prometheus reads: the engine's own counts, taken from its status when asked, and what the
server saw of each answer. Any thread may read; the event loop writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keepwarm.engine.status import Phase, Status
from keepwarm.events import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)


class HasStatus(Protocol):
    """The engine, as far as metrics know it."""

    def status(self) -> Status: ...


class Metrics:
    """One server's registry: nothing of the process's global one."""

    def __init__(self, engine: HasStatus) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        self._answers = Counter(
            "keepwarm_http_requests",
            "HTTP answers.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._unread_calls = Counter(
            "keepwarm_unread_calls",
            "Tool calls of replies that could not be read, and were passed on as content.",
            registry=self._registry,
        )
        self._first_token = self._histogram(
            "keepwarm_time_to_first_token_seconds", "From arrival to the first token.", _SECONDS
        )
        self._duration = self._histogram(
            "keepwarm_request_duration_seconds", "From arrival to the last token.", _SECONDS
        )
        self._gap = self._histogram(
            "keepwarm_token_gap_seconds", "Mean time between tokens of a reply.", _GAPS
        )

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, words, buckets=buckets, registry=self._registry)

    def count_answer(self, scope: Mapping[str, Any], status: int) -> None:
        """Counts by route, not by path: anybody may make up paths."""
        route = getattr(scope.get("route"), "path", None) or "unknown"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._answers.labels(method, route, str(status)).inc()

    def count_unread_calls(self, num_calls: int) -> None:
        self._unread_calls.inc(num_calls)

    def observe(self, result: Result, duration_s: float) -> None:
        """Takes note of one sequence that ended."""
        self._duration.observe(duration_s)
        if not result.tokens:
            return
        self._first_token.observe(result.timings.first_token_s)
        if len(result.tokens) > 1:
            self._gap.observe(result.timings.decode_s / (len(result.tokens) - 1))

    def text(self) -> bytes:
        return generate_latest(self._registry)


_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})


class _EngineCollector(Collector):
    """Reads a fresh status for every scrape."""

    def __init__(self, engine: HasStatus) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry would ask the engine for names while it is still made

    def collect(self) -> Iterable[Metric]:
        status = self._engine.status()
        yield from _gauges(status)
        yield from _counts(status)
        yield from _cache(status)
        yield from _disk(status)
        guides = getattr(self._engine, "guides", None)  # none before a model is loaded
        if guides is not None:
            words = "Tools of requests that no grammar could bind to their schemas."
            yield CounterMetricFamily("keepwarm_loosened_tools", words, value=guides.num_loosened)


def _gauges(status: Status) -> Iterable[Metric]:
    ready = status.phase is Phase.READY
    for name, words, value in (
        ("keepwarm_ready", "1 while requests are taken.", float(ready)),
        ("keepwarm_requests_queued", "Requests that wait.", status.num_queued),
        ("keepwarm_requests_prefilling", "Requests being read.", status.num_prefilling),
        ("keepwarm_requests_decoding", "Requests being answered.", status.num_decoding),
        ("keepwarm_live_bytes", "Estimated, of all running sequences.", status.live_bytes),
        ("keepwarm_memory_limit_bytes", "For cache and sequences.", status.memory_bytes),
        ("keepwarm_context_tokens", "The longest prompt and reply.", status.context_len or 0),
    ):
        yield GaugeMetricFamily(name, words, value=value)


def _counts(status: Status) -> Iterable[Metric]:
    counters = status.counters
    for name, words, value in (
        ("keepwarm_prompt_tokens", "Prompt tokens of all requests.", counters.prompt_tokens),
        ("keepwarm_cached_tokens", "Of those, not prefilled.", counters.cached_tokens),
        ("keepwarm_prefilled_tokens", "Prefilled for requests.", counters.prefilled_tokens),
        ("keepwarm_generated_tokens", "Tokens of replies.", counters.generated_tokens),
        (
            "keepwarm_inflight_tokens",
            "Cached tokens that a request running at the time computed.",
            counters.inflight_tokens,
        ),
        ("keepwarm_preemptions", "Sequences set aside for memory.", counters.preemptions),
        ("keepwarm_idle_prefilled_tokens", "Prefilled while idle.", counters.idle_tokens),
        ("keepwarm_idle_seconds", "Time that idle prefill took.", counters.idle_s),
        (
            "keepwarm_idle_saved_tokens",
            "Of what idle prefill read, what a request then found.",
            counters.idle_saved_tokens,
        ),
    ):
        yield CounterMetricFamily(name, words, value=value)
    yield _labelled(
        "keepwarm_requests", "Sequences that ended, by how.", "outcome", counters.requests
    )
    yield _labelled(
        "keepwarm_matches",
        "Requests by what the cache had for them.",
        "reason",
        counters.cached_by_reason,
    )


def _cache(status: Status) -> Iterable[Metric]:
    cache = status.cache
    if cache is None:
        return
    held = GaugeMetricFamily("keepwarm_cache_bytes", "What the cache holds.", labels=["kind"])
    held.add_metric(["rows"], cache.rows_bytes)
    held.add_metric(["snapshots"], cache.snapshot_bytes)
    yield held
    for name, words, value in (
        ("keepwarm_cache_limit_bytes", "The cache's budget.", cache.budget_bytes),
        ("keepwarm_cache_peak_bytes", "The most it ever held.", cache.peak_bytes),
        ("keepwarm_cache_checkpoints", "Places to restore from.", cache.num_checkpoints),
        ("keepwarm_cache_nodes", "Edges of the tree.", cache.num_nodes),
        ("keepwarm_cache_namespaces", "Callers with states of their own.", cache.num_namespaces),
    ):
        yield GaugeMetricFamily(name, words, value=value)
    yield _labelled("keepwarm_cache_events", "What the cache did.", "event", cache.events)


def _disk(status: Status) -> Iterable[Metric]:
    disk = status.disk
    if disk is None:
        return
    for name, words, value in (
        ("keepwarm_disk_on", "1 while the disk cache is used.", float(disk.phase == "on")),
        ("keepwarm_disk_bytes", "What it holds.", disk.nbytes),
        ("keepwarm_disk_files", "In so many files.", disk.num_files),
    ):
        yield GaugeMetricFamily(name, words, value=value)
    for name, words, value in (
        ("keepwarm_disk_read_bytes", "Read from it, and verified.", disk.read_bytes),
        ("keepwarm_disk_written_bytes", "Written to it.", disk.written_bytes),
    ):
        yield CounterMetricFamily(name, words, value=value)
    yield _labelled("keepwarm_disk_events", "What the disk cache did.", "event", disk.events)


def _labelled(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    shown: dict[str, int] = {}
    for key, value in counts.items():
        # What others have stored is nobody's business, here as in answers.
        shown_key = str(key).replace("other_namespace", "cold")
        shown[shown_key] = shown.get(shown_key, 0) + value
    family = CounterMetricFamily(name, words, labels=[label])
    for shown_key, value in sorted(shown.items()):
        family.add_metric([shown_key], value)
    return family
