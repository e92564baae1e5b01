"""Every setting once: its flag, its environment variable, its key in a file and its default.

A flag goes before KEEPWARM_* in the environment, that before the file given with --config, that
before the default. `--max-queue 8`, `KEEPWARM_MAX_QUEUE=8` and `max-queue = 8` say the same.
Plain data, no mlx; any thread.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from keepwarm.cache.policy import POLICIES
from keepwarm.engine.request import DecodeMode, EngineSettings, IdlePrefill, Sampling
from keepwarm.errors import BadInput, cause_of
from keepwarm.model.names import BUILT_IN, DTYPES, KERNELS
from keepwarm.prompt.hygiene import RULE_NAMES

ENV_PREFIX = "KEEPWARM_"
# What the tests read, and what model/ reads before there are settings.
_NOT_SETTINGS = frozenset(
    {"KEEPWARM_TEST_DEVICE", "KEEPWARM_SOAK_S", "KEEPWARM_FUZZ_SEED"}
    | {"KEEPWARM_BLAS", "KEEPWARM_KERNELS"}
)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Percent:
    """A share of the memory that is free when the model has been loaded."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}%"


def read_bytes(text: str) -> int:
    """`4GB`, `512 MiB`, `1000`. Raises BadInput."""
    found = _AMOUNT.fullmatch(text.strip())
    unit = found[2].lower() if found else ""
    if found is None or unit == "i":
        raise BadInput(
            f"{text!r} is not an amount of memory; write 4GB, 512MB or a number of bytes"
        )
    return int(float(found[1]) * (_UNITS | _BINARY)[unit])


def read_budget(text: str) -> int | Percent:
    """As `read_bytes`, or a share of the free memory such as `40%`. Raises BadInput."""
    if not text.strip().endswith("%"):
        return read_bytes(text)
    try:
        share = float(text.strip().removesuffix("%"))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise BadInput(f"{text!r} is not a share of memory; write a number from 0% to 100%")
    return Percent(share)


def _read_bool(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False, "": False}
    if text.strip().lower() not in known:
        raise BadInput(f"{text!r} is neither true nor false; write one of them")
    return known[text.strip().lower()]


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInput('a JSON object is needed, such as {"enable_thinking": false}')
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of `Config` is asked for."""

    name: str  # as in --name, KEEPWARM_NAME and the file
    group: str
    words: str
    read: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    is_many: bool = False
    is_positional: bool = False
    is_secret: bool = False

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper().replace("-", "_")


def _setting(default: Any, name: str, group: str, words: str, **more: Any) -> Any:
    setting = Setting(name, group, words, **more)
    return field(default=default, metadata={"setting": setting}, repr=not setting.is_secret)


_MODEL, _SERVER, _CACHE, _ENGINE, _REPLY = "model", "server", "cache", "engine", "replies"


@dataclass(frozen=True)
class Config:
    """All settings of a server. Raises BadInput for values that cannot be meant."""

    model: str = _setting(
        BUILT_IN, "model", _MODEL, "a folder, a name that `keepwarm models` lists, or a repository"
        " on Hugging Face; without it sprout, the small built-in model", is_positional=True,
    )  # fmt: skip
    served_name: str | None = _setting(
        None, "served-name", _MODEL, "the name of the model in answers and in /v1/models",
        metavar="NAME",
    )  # fmt: skip
    adapter_path: str | None = _setting(
        None, "adapter-path", _MODEL, "a folder with a LoRA adapter for the model", metavar="DIR",
    )  # fmt: skip
    trust_remote_code: bool = _setting(
        False, "trust-remote-code", _MODEL, "let the model run the Python code that comes with"
        " it", read=_read_bool,
    )  # fmt: skip
    chat_template: str | None = _setting(
        None, "chat-template", _MODEL, "a file with a Jinja template, to use instead of the"
        " model's own", metavar="FILE",
    )  # fmt: skip
    chat_template_args: dict[str, Any] | None = _setting(
        None, "chat-template-args", _MODEL, "arguments of the chat template, such as"
        ' {"enable_thinking": false}', read=_read_object, metavar="JSON",
    )  # fmt: skip
    dtype: str = _setting(
        "auto", "dtype", _MODEL, "the type that weights are computed in; auto keeps the type"
        " they were saved in, but takes float32 on a CPU, where it is faster", choices=DTYPES,
    )  # fmt: skip
    kernels: str = _setting(
        "keepwarm", "kernels", _MODEL, "on machines without Metal: keepwarm's functions, which"
        " compute many tokens at once, or mlx-lm's own, which often compute one at a time",
        choices=KERNELS,
    )  # fmt: skip
    context_len: int | None = _setting(
        None, "context-len", _MODEL, "the most tokens of prompt and reply together; by default"
        " the model's limit", read=int,
    )  # fmt: skip
    hygiene_off: tuple[str, ...] = _setting(
        (), "hygiene-off", _MODEL, "a rule that is not applied to messages which the chat template"
        f" cannot write: {', '.join(RULE_NAMES)}; may be repeated", is_many=True, metavar="RULE",
    )  # fmt: skip

    host: str = _setting(
        "127.0.0.1", "host", _SERVER, "the address to listen on; 0.0.0.0 is every address of"
        " this machine",
    )  # fmt: skip
    port: int = _setting(
        8080, "port", _SERVER, "the port to listen on; 0 takes any free one", read=int,
    )  # fmt: skip
    api_keys: tuple[str, ...] = _setting(
        (), "api-key", _SERVER, "a key that clients must send; may be repeated", is_many=True,
        is_secret=True,
    )  # fmt: skip
    api_key_file: str | None = _setting(
        None, "api-key-file", _SERVER, "a file with one such key on each line", metavar="FILE",
    )  # fmt: skip
    shared_cache: bool = _setting(
        False, "shared-cache", _SERVER, "let all keys share cached prompts; by default each key"
        " has its own cache, because a faster answer tells that somebody asked the same before",
        read=_read_bool,
    )  # fmt: skip
    cors_origins: tuple[str, ...] = _setting(
        (), "cors-origin", _SERVER, "an origin whose web pages may send requests, such as"
        " https://chat.example; may be repeated", is_many=True, metavar="ORIGIN",
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = _setting(
        (), "allowed-host", _SERVER, "another host name that clients call this server by, such"
        " as host.docker.internal; may be repeated", is_many=True, metavar="NAME",
    )  # fmt: skip
    max_body_bytes: int = _setting(
        32 * 2**20, "max-body-bytes", _SERVER, "the largest request that is accepted",
        read=read_bytes,
    )  # fmt: skip
    keep_alive_s: float = _setting(
        5.0, "keep-alive-s", _SERVER, "seconds of silence in a stream before a comment keeps it"
        " open", read=float,
    )  # fmt: skip
    shutdown_s: float = _setting(
        30.0, "shutdown-s", _SERVER, "seconds that running requests have to end after Ctrl-C",
        read=float,
    )  # fmt: skip
    drain_s: float = _setting(
        3.0, "drain-s", _SERVER, "seconds after SIGTERM in which new connections are still"
        " answered, with 503, so that a router sees no refused ones", read=float,
    )  # fmt: skip
    log_json: bool = _setting(
        False, "log-json", _SERVER, "write the log as JSON lines", read=_read_bool
    )
    hide_text: bool = _setting(
        False,
        "hide-text",
        _SERVER,
        "keep what was said out of the log: where prompts part, say lengths and causes only",
        read=_read_bool,
    )
    log_level: str = _setting(
        "info", "log-level", _SERVER, "the least severe messages that are logged",
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip

    cache_bytes: int | Percent | None = _setting(
        None, "cache-bytes", _CACHE, "memory for cached prompts, such as 4GB or 40%; by default"
        " 40% of the memory that is free once the model is loaded", read=read_budget,
        metavar="SIZE",
    )  # fmt: skip
    exact: bool = _setting(
        False, "exact", _CACHE, "give the very bits of a cold run after a hit; less is reused,"
        " and decoded replies are read again", read=_read_bool,
    )  # fmt: skip
    min_span: int = _setting(
        512, "min-span", _CACHE, "the fewest tokens between two checkpoints", read=int,
    )  # fmt: skip
    prefill_step: int = _setting(
        2048, "prefill-step", _CACHE, "the most tokens that are read at once", read=int,
    )  # fmt: skip
    policy: str = _setting(
        "worth", "policy", _CACHE, "what to evict first; the others are there to compare worth"
        " with", choices=POLICIES,
    )  # fmt: skip
    kv_bits: int | None = _setting(
        None, "kv-bits", _CACHE, "quantize the rows of attention to 2, 3, 4, 5, 6 or 8 bits;"
        " replies are then decoded in turn", read=int,
    )  # fmt: skip
    kv_group_size: int = _setting(
        64, "kv-group-size", _CACHE, "how many values share a scale when rows are quantized: 32,"
        " 64 or 128", read=int,
    )  # fmt: skip
    disk_cache: str | None = _setting(
        None, "disk-cache", _CACHE, "a folder that keeps prompts for the next start; by default,"
        " for `keepwarm serve`, one in the user's cache folder; off keeps none", metavar="DIR",
    )  # fmt: skip
    disk_cache_bytes: int | None = _setting(
        None, "disk-cache-bytes", _CACHE, "the largest size of the folder, all models together; by"
        " default a tenth of the free space there, and at most 32 GiB", read=read_bytes, metavar="SIZE",
    )  # fmt: skip
    disk_cache_days: float = _setting(
        30.0, "disk-cache-days", _CACHE, "delete files that were idle for so many days",
        read=float,
    )  # fmt: skip
    disk_cache_write_bytes_per_day: int = _setting(
        50 * 10**9, "disk-cache-write-bytes-per-day", _CACHE, "write no more than that in a day, to"
        " spare the drive", read=read_bytes, metavar="SIZE",
    )  # fmt: skip
    disk_cache_idle_s: float = _setting(
        5.0, "disk-cache-idle-s", _CACHE, "a conversation that is idle for so long is written to"
        " disk", read=float,
    )  # fmt: skip
    disk_cache_min_s: float = _setting(
        0.5, "disk-cache-min-s", _CACHE, "seconds of prefill that a file must spare after a restart;"
        " what spares less is not written", read=float,
    )  # fmt: skip
    idle_prefill: IdlePrefill = _setting(
        IdlePrefill.ALL, "idle-prefill", _CACHE, "what to read ahead while no request runs:"
        " every next turn, only those that drop a thought (stripped), or nothing",
        read=IdlePrefill, choices=tuple(IdlePrefill),
    )  # fmt: skip

    decode: DecodeMode = _setting(
        DecodeMode.BATCH, "decode", _ENGINE, "batch decodes all running replies in one step;"
        " turn decodes them one after another, each as if it ran alone", read=DecodeMode,
        choices=tuple(DecodeMode),
    )  # fmt: skip
    max_running: int = _setting(32, "max-running", _ENGINE, "the most replies at once", read=int)
    max_queue: int = _setting(
        256, "max-queue", _ENGINE, "the most requests that wait; more are answered with 429",
        read=int,
    )  # fmt: skip
    max_stall_ms: float = _setting(
        50.0, "max-stall-ms", _ENGINE, "how many milliseconds reading a prompt may hold up"
        " running replies", read=float,
    )  # fmt: skip
    memory_bytes: int | None = _setting(
        None, "memory-bytes", _ENGINE, "memory for the cache and all running replies together;"
        " by default measured", read=read_bytes, metavar="SIZE",
    )  # fmt: skip

    max_tokens: int | None = _setting(
        None, "max-tokens", _REPLY, "the most tokens of a reply; by default 16384, with the"
        " built-in model 512", read=int,
    )  # fmt: skip
    generation_config: str = _setting(
        "auto", "generation-config", _REPLY, "auto takes the defaults of sampling from the"
        " model's generation_config.json; off ignores that file", choices=("auto", "off"),
    )  # fmt: skip
    temperature: float | None = _setting(
        None, "temp", _REPLY, "temperature; 0 always takes the likeliest token (default: the"
        " model's own, else 0)", read=float,
    )  # fmt: skip
    top_p: float | None = _setting(
        None, "top-p", _REPLY, "choose among the likeliest tokens that together have this"
        " probability; 1 is off (default: the model's own, else 1)", read=float,
    )  # fmt: skip
    top_k: int | None = _setting(
        None, "top-k", _REPLY, "choose among this many of the likeliest tokens; 0 is off"
        " (default: the model's own, else 0)", read=int,
    )  # fmt: skip
    min_p: float | None = _setting(
        None, "min-p", _REPLY, "leave out tokens with less than this part of the likeliest one's"
        " probability; 0 is off (default: the model's own, else 0)", read=float,
    )  # fmt: skip
    repetition_penalty: float | None = _setting(
        None, "repetition-penalty", _REPLY, "make tokens that were used before less likely; 1 is"
        " off (default: the model's own, else 1)", read=float,
    )  # fmt: skip

    thinking_budget: int | None = _setting(
        None, "thinking-budget", _REPLY, "the most tokens of a thought, which is then closed; by"
        " default a thought may be as long as the reply", read=int,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in self.hygiene_off:
            if name not in RULE_NAMES:
                words = f"there is no rule {name!r}; the rules are {', '.join(RULE_NAMES)}"
                raise BadInput(f"--hygiene-off: {words}")
        for name, is_good, wanted in (
            ("port", 0 <= self.port < 1 << 16, "from 0 to 65535"),
            ("max-body-bytes", self.max_body_bytes > 0, "above 0"),
            ("keep-alive-s", self.keep_alive_s > 0, "above 0"),
            ("shutdown-s", self.shutdown_s >= 0, "at least 0"),
            ("drain-s", self.drain_s >= 0, "at least 0"),
            ("disk-cache-days", self.disk_cache_days > 0, "above 0"),
            ("disk-cache-idle-s", self.disk_cache_idle_s >= 0, "at least 0"),
            ("disk-cache-min-s", self.disk_cache_min_s >= 0, "at least 0"),
            ("kv-bits", self.kv_bits in (None, 2, 3, 4, 5, 6, 8), "2, 3, 4, 5, 6 or 8"),
            ("kv-group-size", self.kv_group_size in (32, 64, 128), "32, 64 or 128"),
            ("max-tokens", self.max_tokens is None or self.max_tokens > 0, "above 0"),
            (
                "thinking-budget",
                self.thinking_budget is None or self.thinking_budget >= 0,
                "at least 0",
            ),
            ("temp", self.temperature is None or 0 <= self.temperature <= 2, "from 0 to 2"),
            ("top-p", self.top_p is None or 0 <= self.top_p <= 1, "from 0 to 1"),
            ("min-p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1"),
            ("top-k", self.top_k is None or self.top_k >= 0, "at least 0"),
            (
                "repetition-penalty",
                self.repetition_penalty is None or self.repetition_penalty > 0,
                "above 0",
            ),
            ("min-span", 0 < self.min_span <= self.prefill_step, "from 1 to prefill-step"),
        ):
            if not is_good:
                given = next(getattr(self, f.name) for f, s in settings() if s.name == name)
                raise BadInput(f"--{name} must be {wanted}, not {given}")

    @property
    def default_reply_len(self) -> int:
        """Tokens of a reply whose request does not say."""
        return self.max_tokens or (512 if self.model == BUILT_IN else 16384)

    def engine_settings(self) -> EngineSettings:
        """Raises BadInput."""
        return EngineSettings(
            max_running=self.max_running,
            max_queue=self.max_queue,
            max_stall_s=self.max_stall_ms / 1000,
            idle_prefill=self.idle_prefill,
            decode=self.decode,
            memory_bytes=self.memory_bytes,
            context_len=self.context_len,
        )

    def sampling(self, own: Sampling | None) -> Sampling:
        """How tokens are chosen where a request does not say; `own` is what the model says."""
        said: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty,
        }
        usual = own if own is not None and self.generation_config != "off" else Sampling()
        return replace(usual, **{name: value for name, value in said.items() if value is not None})

    def template_kwargs(self) -> dict[str, Any]:
        return dict(self.chat_template_args or {})


def settings() -> list[tuple[Field[Any], Setting]]:
    """Every setting with the field of `Config` that it fills."""
    return [(found, found.metadata["setting"]) for found in fields(Config)]


def read_config(
    flags: Mapping[str, Any], env: Mapping[str, str], file: Path | None = None
) -> Config:
    """`flags` are texts by the name of their setting, those that were given only. Raises BadInput
    naming the setting and where it was found."""
    in_file = _read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    for found, setting in settings():
        for given, where in (
            (flags.get(setting.name), f"--{setting.name}"),
            (env.get(setting.env), setting.env),
            (in_file.get(setting.name), f"{setting.name} in {file}"),
        ):
            if given is not None:
                values[found.name] = _read(setting, given, where)
                break
    values["api_keys"] = (*values.get("api_keys", ()), *_keys_in(values.get("api_key_file")))
    return Config(**values)


def unknown_in(env: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like a setting and is none: a letter too few would go
    unnoticed. Kubernetes sets some itself for a service called keepwarm."""
    known = [setting.env for _, setting in settings()]
    names = sorted(name for name in env if name.startswith(ENV_PREFIX))
    lines = []
    for name in names:
        if name not in known and name not in _NOT_SETTINGS:
            near = get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            lines.append(f"{name} is ignored, since there is no such setting{hint}")
    return lines


def _read(setting: Setting, given: Any, where: str) -> Any:
    try:
        if setting.is_many:
            items = given.split(",") if isinstance(given, str) else given
            texts = tuple(text for item in items if (text := str(item).strip()))
            if setting.is_secret and not texts:
                # A variable that is not set would otherwise open the server to all.
                raise BadInput("this is empty; leave it out to serve without a key")
            return texts
        if isinstance(given, dict):
            return given
        text = str(given)
        if setting.choices is not None and text not in setting.choices:
            raise BadInput(f"use one of {', '.join(setting.choices)}, not {text!r}")
        return setting.read(text)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    except (ValueError, TypeError) as error:
        kind = "a whole number" if setting.read is int else "a number"
        raise BadInput(f"{where}: {given!r} is not {kind}") from error


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"--config: cannot read {file}: {cause_of(error)}") from error
    content = {key.replace("_", "-"): value for key, value in content.items()}
    unknown = content.keys() - {setting.name for _, setting in settings()}
    if unknown:
        raise BadInput(
            f"{file}: there is no setting called {', '.join(map(_named, sorted(unknown)))}"
        )
    return content


def _named(unknown: str) -> str:
    """With the setting that was probably meant."""
    near = get_close_matches(unknown, [setting.name for _, setting in settings()], n=1)
    return f"{unknown} (did you mean {near[0]}?)" if near else unknown


def _keys_in(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(f"--api-key-file: cannot read {file}: {cause_of(error)}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        # An empty file would otherwise open the server to all.
        raise BadInput(f"--api-key-file: there is no key in {file}; write one on each line")
    return keys
