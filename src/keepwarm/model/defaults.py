"""How the makers of a model want its tokens to be chosen: what `generation_config.json` says.
No mlx; any thread."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from keepwarm.engine.request import Sampling
from keepwarm.errors import BadInput

log = logging.getLogger(__name__)

FILE = "generation_config.json"
# In the order in which they are told.
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

_ATTRIBUTE = "keepwarm_sampling"


def read_sampling(folder: Path) -> Sampling | None:
    """What the file in `folder` says; None where it says nothing on sampling, or cannot be read.

    A temperature counts whether or not `do_sample` is there; without one, `do_sample: true` means
    a temperature of 1, and `do_sample: false` means that the likeliest token is always taken.
    """
    try:
        said = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read, so it is ignored: %s", FILE, error)
        return None
    if not isinstance(said, dict):
        log.warning("%s holds no JSON object, so it is ignored", FILE)
        return None
    given = {name: said[name] for name in FIELDS if said.get(name) is not None}
    if "do_sample" in said:
        if said["do_sample"]:
            given.setdefault("temperature", 1.0)
        else:
            given["temperature"] = 0.0
    if not given:
        return None
    try:
        numbers: dict[str, Any] = {name: _number(name, value) for name, value in given.items()}
        return Sampling(**numbers)
    except (BadInput, ValueError) as error:
        log.warning("the sampling in %s is not valid, so it is ignored: %s", FILE, error)
        return None


def give_sampling(model: Any, sampling: Sampling | None) -> None:
    """Keeps it with the model, where `own_sampling` finds it. Mutates."""
    if sampling is not None:
        setattr(model, _ATTRIBUTE, sampling)


def own_sampling(model: Any) -> Sampling | None:
    """None where the model says nothing, or was not loaded by `keepwarm.load`."""
    found = getattr(model, _ATTRIBUTE, None)
    return found if isinstance(found, Sampling) else None


def sampling_words(sampling: Sampling) -> str:
    """What holds, in a few words."""
    off = Sampling()
    if not sampling.temperature:
        words = ["always the likeliest token"]
        names = [name for name in FIELDS if name == "repetition_penalty"]
    else:
        words, names = [f"temperature {sampling.temperature:g}"], list(FIELDS[1:])
    for name in names:
        if (value := getattr(sampling, name)) != getattr(off, name):
            words.append(f"{name} {value:g}")
    return ", ".join(words)


def _number(name: str, value: Any) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number: {value!r}")
    return max(int(value), 0) if name == "top_k" else float(value)
