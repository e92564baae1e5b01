"""Whatever happened to the files: the prompt is read cold, or comes back warm with the right states;
and it is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cache.disk import opening, reading
from keepwarm.cache.disk.format import VERSION, decode, digest_of, encode
from keepwarm.cache.store import PrefixCache
from keepwarm.model import fingerprint
from tests.architectures.zoo import ARCHITECTURES
from tests.cache.disk.folders import Weightless, crash, disk_at, flushed, tier_of
from tests.cache.disk.test_restart import cache_at
from tests.cache.toy import TOYS, Toy, messages, prefill
from tests.state.feeding import are_same, contents

PROMPT = messages(list(range(1, 41)), 9, 17, 30)


def written(folder: Path, toy: Toy, **settings: Any) -> list[Path]:
    """The files of a prompt that was read, after a crash."""
    first = cache_at(folder, toy, **settings)
    prefill(first, toy, PROMPT)
    flushed(first)
    crash(first)
    return sorted(path for path in folder.glob("*/*") if path.suffix in (".rows", ".state"))


def served(folder: Path, toy: Toy, **settings: Any) -> tuple[int, dict[str, int]]:
    """How much of the prompt comes from disk, and what was counted. Its states are those of a cold
    run, whatever was found."""
    cache = cache_at(folder, toy, **settings)
    tier_of(cache).load_now(PROMPT, cache.peek(PROMPT))
    cached_len = cache.peek(PROMPT).cached_len
    live = prefill(cache, toy, PROMPT)
    assert are_same(contents(live.caches), contents(toy.cold(PROMPT.tokens)))
    flushed(cache)
    counts = tier_of(cache).stats().events
    crash(cache)
    return cached_len, counts


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "prefix": lambda path: flip(path, 20),
    "meta": lambda path: flip(path, 120),
    "payload": lambda path: flip(path, -3),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "cut to nothing": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", ["rows", "rows_window", "rows_snapshot", "snapshot"])
def test_damaged_file_is_read_cold_counted_and_written_again(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    toy = TOYS[name]
    files = written(tmp_path, toy)
    for path in files:
        damage(path)
        cached_len, counts = served(tmp_path, toy)
        is_told = any(kind.startswith("bad_") or kind == "orphans" for kind in counts)
        assert is_told or damage is DAMAGES["gone"]
        assert cached_len < 39 or damage is DAMAGES["payload"]
    assert served(tmp_path, toy)[0] >= 30  # what was read cold was written once more


@pytest.mark.parametrize("kind", ["rows", "state"])
def test_payload_changed_behind_a_running_server_is_read_cold(kind: str, tmp_path: Path) -> None:
    toy = TOYS["rows_snapshot"]
    files = written(tmp_path, toy)
    cache = cache_at(tmp_path, toy)
    for path in files:
        if path.suffix == f".{kind}":
            flip(path, -3)
    load = tier_of(cache).load_now(PROMPT, cache.peek(PROMPT))
    assert load is not None
    assert not load.position
    assert cache.peek(PROMPT).cached_len == 0
    assert tier_of(cache).stats().events["bad_payload"] == 1
    flushed(cache)
    assert list(tmp_path.glob("*/*.bad"))
    crash(cache)


def test_token_changed_in_a_file_whose_hashes_all_hold_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MIN_GAIN", 1)
    toy = TOYS["rows"]
    files = written(tmp_path, toy)
    path = min(files, key=lambda file: int(file.name.split("-")[1]))
    data = path.read_bytes()
    header, sums = decode(data, len(data))
    keys = bytearray(header.keys)
    keys[8] ^= 1
    forged, _ = encode(replace(header, keys=bytes(keys)), sums)
    path.write_bytes(forged + data[-header.payload_bytes :])
    cached_len, counts = served(tmp_path, toy)
    assert cached_len == 0
    assert counts["orphans"] == len(files)
    # And with the hash of the path made to fit, under the name that follows from it:
    fitting = replace(header, keys=bytes(keys), after=digest_of(bytes(keys)))
    forged, _ = encode(fitting, sums)
    path.unlink()
    path.with_name(fitting.name).write_bytes(forged + data[-header.payload_bytes :])
    assert served(tmp_path, toy)[0] == 2  # the tokens before it are the prompt's


def test_files_of_another_prompt_do_not_help(tmp_path: Path) -> None:
    toy = TOYS["rows_snapshot"]
    one, other = tmp_path / "one", tmp_path / "other"
    mine = written(one, toy)
    cache = cache_at(other, toy)
    prefill(cache, toy, messages([7, *range(2, 41)], 9, 17, 30))
    flushed(cache)
    crash(cache)
    theirs = sorted(p for p in other.glob("*/*") if p.suffix in (".rows", ".state"))
    for target, source in zip(mine, theirs, strict=True):
        target.write_bytes(source.read_bytes())
    assert served(one, toy)[0] == 0


# What a state means


def num_found(folder: Path, model: Any, **settings: Any) -> int:
    """Files that a start finds."""
    cache = PrefixCache(model, disk=disk_at(folder), **settings)
    found = tier_of(cache).stats().num_files
    prompt = messages(list(range(1, 41)), 9, 17, 30)
    if not found:
        live = cache.fresh()
        model(mx.array(prompt.tokens[:30])[None], cache=live.caches)
        live.advance(prompt.tokens[:30])
        assert cache.insert(prompt, live).is_stored
        flushed(cache)
    crash(cache)
    return found


def test_other_weights_dtype_or_settings_are_another_model(tmp_path: Path) -> None:
    llama = ARCHITECTURES["llama"]
    model = llama.build(mx.float32)
    assert num_found(tmp_path, model) == 0
    assert num_found(tmp_path, model) == 1
    assert num_found(tmp_path, llama.build(mx.float32)) == 1  # the same, loaded anew
    assert num_found(tmp_path, llama.build(mx.bfloat16)) == 0
    other = llama.build(mx.float32)
    weight = other.model.layers[1].mlp.up_proj.weight
    other.model.layers[1].mlp.up_proj.weight = weight.at[3, 4].add(1e-3)
    assert num_found(tmp_path, other) == 0
    other = llama.build(mx.float32)
    other.args.rms_norm_eps *= 2
    assert num_found(tmp_path, other) == 0
    assert num_found(tmp_path, model) == 1


def test_other_code_of_mlx_lm_is_another_model_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = ARCHITECTURES["llama"].build(mx.float32)
    assert num_found(tmp_path, model) == 0
    getsource = fingerprint.inspect.getsource

    def changed(module: Any) -> str:
        text: str = getsource(module)
        return text + "# fixed" if module.__name__ == "mlx_lm.models.cache" else text

    with monkeypatch.context() as patch:
        patch.setattr(fingerprint.inspect, "getsource", changed)
        with caplog.at_level("INFO", logger="keepwarm.disk"):
            assert num_found(tmp_path, model) == 0
        assert "are not used" in caplog.text
        assert "other code" in caplog.text
    assert num_found(tmp_path, model) == 1


def test_quantized_rows_and_exact_mode_have_files_of_their_own(tmp_path: Path) -> None:
    for number, name in enumerate(("rows", "quantized")):
        for exact in (False, True):
            assert served(tmp_path, TOYS[name], exact=exact)[0] == 0
            assert len(list(tmp_path.glob("*/about.json"))) == 2 * number + exact + 1


def test_other_format_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = TOYS["rows"]
    written(tmp_path, toy)
    monkeypatch.setattr(opening, "VERSION", VERSION + 1)
    assert served(tmp_path, toy)[0] == 0


def test_about_says_what_the_files_are_of(tmp_path: Path) -> None:
    written(tmp_path, TOYS["rows"], model=Weightless("mine"))
    (about,) = tmp_path.glob("*/about.json")
    found = json.loads(about.read_text())
    assert found["config"] == '{"name": "mine"}'
    assert {"weights", "code", "kernels", "layout", "mode"} <= set(found)
