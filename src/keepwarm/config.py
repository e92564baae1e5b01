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
from pathlib import Path
from typing import Any

from keepwarm.cache.policy import POLICIES
from keepwarm.engine.request import DecodeMode, EngineSettings, IdlePrefill, Sampling
from keepwarm.errors import BadInput
from keepwarm.model.names import BUILT_IN, DTYPES, KERNELS

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
        raise BadInput(f"{text!r} is no amount of memory; write 4GB, 512MB or a number of bytes")
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
        raise BadInput(f"{text!r} is no share of the memory; write a number from 0% to 100%")
    return Percent(share)


def _read_bool(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False, "": False}
    if text.strip().lower() not in known:
        raise BadInput(f"{text!r} is neither true nor false")
    return known[text.strip().lower()]


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInput("a JSON object is needed")
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
        BUILT_IN, "model", _MODEL, "a folder, or the name of a repository of models; sprout is the"
        " small one that is built in", is_positional=True,
    )  # fmt: skip
    served_name: str | None = _setting(
        None, "served-name", _MODEL, "the name that answers give the model", metavar="NAME"
    )
    adapter_path: str | None = _setting(
        None, "adapter-path", _MODEL, "a folder with a LoRA adapter", metavar="DIR"
    )
    trust_remote_code: bool = _setting(
        False, "trust-remote-code", _MODEL, "run code that comes with the model", read=_read_bool
    )
    chat_template: str | None = _setting(
        None, "chat-template", _MODEL, "a Jinja file instead of the model's own", metavar="FILE"
    )
    chat_template_args: dict[str, Any] | None = _setting(
        None,
        "chat-template-args",
        _MODEL,
        'arguments for the template, such as {"enable_thinking": false}',
        read=_read_object,
        metavar="JSON",
    )
    dtype: str = _setting(
        "auto", "dtype", _MODEL, "what the weights are computed in; auto is as they were saved, and"
        " on a CPU float32, which is faster there", choices=DTYPES,
    )  # fmt: skip
    kernels: str = _setting(
        "keepwarm", "kernels", _MODEL, "where there is no Metal: keepwarm's functions, which take"
        " many tokens at once, or those of mlx-lm, which often take one by one", choices=KERNELS,
    )  # fmt: skip
    context_len: int | None = _setting(
        None, "context-len", _MODEL, "tokens of prompt and reply; what the model says", read=int
    )

    host: str = _setting("127.0.0.1", "host", _SERVER, "the address to listen on")
    port: int = _setting(8080, "port", _SERVER, "the port; 0 for any free one", read=int)
    api_keys: tuple[str, ...] = _setting(
        (), "api-key", _SERVER, "a key that may ask; may be repeated", is_many=True, is_secret=True
    )
    api_key_file: str | None = _setting(
        None, "api-key-file", _SERVER, "a file with one key on each line", metavar="FILE"
    )
    shared_cache: bool = _setting(
        False,
        "shared-cache",
        _SERVER,
        "let all keys share cached prompts; by default each has its own, since answers that come"
        " sooner tell what others asked",
        read=_read_bool,
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "cors-origin", _SERVER, "a web page's origin that may ask; may be repeated",
        is_many=True, metavar="ORIGIN",
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = _setting(
        (), "allowed-host", _SERVER, "another name that this server goes by; may be repeated",
        is_many=True, metavar="NAME",
    )  # fmt: skip
    max_body_bytes: int = _setting(
        32 * 2**20, "max-body-bytes", _SERVER, "the largest request", read=read_bytes
    )
    keep_alive_s: float = _setting(
        5.0, "keep-alive-s", _SERVER, "a comment in silent streams every so often", read=float
    )
    shutdown_s: float = _setting(
        30.0, "shutdown-s", _SERVER, "how long running requests may go on after Ctrl-C", read=float
    )
    log_level: str = _setting(
        "info", "log-level", _SERVER, "how much to tell",
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip

    cache_bytes: int | Percent | None = _setting(
        None, "cache-bytes", _CACHE, "memory for cached prompts, such as 4GB or 40%; by default 40%"
        " of what is free once the model is loaded", read=read_budget, metavar="SIZE",
    )  # fmt: skip
    exact: bool = _setting(
        False, "exact", _CACHE, "reuse only what gives the very bits of a cold prompt; decoded"
        " replies are read again", read=_read_bool,
    )  # fmt: skip
    min_span: int = _setting(
        512, "min-span", _CACHE, "the least tokens between two checkpoints", read=int
    )
    prefill_step: int = _setting(
        2048, "prefill-step", _CACHE, "the most tokens read at once", read=int
    )
    policy: str = _setting("worth", "policy", _CACHE, "what to evict first", choices=POLICIES)
    kv_bits: int | None = _setting(
        None,
        "kv-bits",
        _CACHE,
        "quantize the rows of attention to 2, 3, 4, 5, 6 or 8 bits; replies then decode in turn",
        read=int,
    )
    kv_group_size: int = _setting(
        64, "kv-group-size", _CACHE, "numbers that share a scale when quantized", read=int
    )
    idle_prefill: IdlePrefill = _setting(
        IdlePrefill.ALL,
        "idle-prefill",
        _CACHE,
        "what to read ahead while nothing runs",
        read=IdlePrefill,
        choices=tuple(IdlePrefill),
    )

    decode: DecodeMode = _setting(
        DecodeMode.BATCH,
        "decode",
        _ENGINE,
        "all running replies in one step, or in turn, each as if it ran alone",
        read=DecodeMode,
        choices=tuple(DecodeMode),
    )
    max_running: int = _setting(32, "max-running", _ENGINE, "replies at once", read=int)
    max_queue: int = _setting(
        256, "max-queue", _ENGINE, "requests that wait; more are answered 429", read=int
    )
    max_stall_ms: float = _setting(
        50.0, "max-stall-ms", _ENGINE, "how long reading a prompt may hold up replies", read=float
    )
    memory_bytes: int | None = _setting(
        None, "memory-bytes", _ENGINE, "for the cache and all running replies; by default measured",
        read=read_bytes, metavar="SIZE",
    )  # fmt: skip

    max_tokens: int | None = _setting(
        None, "max-tokens", _REPLY, "of a reply when the request does not say; 16384, and 512 for"
        " the built-in model, whose answers are short", read=int,
    )  # fmt: skip
    generation_config: str = _setting(
        "auto", "generation-config", _REPLY, "auto samples as the model's generation_config.json"
        " says where neither a request nor a flag does; off ignores that file",
        choices=("auto", "off"),
    )  # fmt: skip
    temperature: float | None = _setting(
        None, "temp", _REPLY, "when the request does not say; by default the model's own, and else"
        " 0, which takes the likeliest", read=float,
    )  # fmt: skip
    top_p: float | None = _setting(
        None, "top-p", _REPLY, "likewise; 1 is off, as where the model says nothing", read=float
    )
    top_k: int | None = _setting(None, "top-k", _REPLY, "likewise; 0 is off", read=int)
    min_p: float | None = _setting(None, "min-p", _REPLY, "likewise; 0 is off", read=float)
    repetition_penalty: float | None = _setting(
        None, "repetition-penalty", _REPLY, "likewise; 1 is off", read=float
    )

    def __post_init__(self) -> None:
        for name, is_good, wanted in (
            ("port", 0 <= self.port < 1 << 16, "from 0 to 65535"),
            ("max-body-bytes", self.max_body_bytes > 0, "above 0"),
            ("keep-alive-s", self.keep_alive_s > 0, "above 0"),
            ("shutdown-s", self.shutdown_s >= 0, "at least 0"),
            ("kv-bits", self.kv_bits in (None, 2, 3, 4, 5, 6, 8), "2, 3, 4, 5, 6 or 8"),
            ("kv-group-size", self.kv_group_size in (32, 64, 128), "32, 64 or 128"),
            ("max-tokens", self.max_tokens is None or self.max_tokens > 0, "above 0"),
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
                raise BadInput(f"--{name} must be {wanted}")

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
    unknown = _unknown_in(env)
    if unknown:
        raise BadInput(f"there is no setting called {', '.join(unknown)}")
    values["api_keys"] = (*values.get("api_keys", ()), *_keys_in(values.get("api_key_file")))
    return Config(**values)


def _unknown_in(env: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: a letter too few would go unnoticed."""
    known = {setting.env for _, setting in settings()}
    return sorted(
        name
        for name in env
        if name.startswith(ENV_PREFIX) and name not in known and name not in _NOT_SETTINGS
    )


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
        kind = "whole number" if setting.read is int else "number"
        raise BadInput(f"{where}: {given!r} is no {kind}") from error


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {file}: {error}") from error
    content = {key.replace("_", "-"): value for key, value in content.items()}
    unknown = content.keys() - {setting.name for _, setting in settings()}
    if unknown:
        raise BadInput(f"{file}: there is no setting called {', '.join(sorted(unknown))}")
    return content


def _keys_in(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the API keys: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        # An empty file would otherwise open the server to all.
        raise BadInput(f"there is no API key in {file}")
    return keys
