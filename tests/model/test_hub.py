"""Downloads by the real huggingface_hub, from a small hub on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from keepwarm.cli.main import main
from keepwarm.errors import BadInput
from keepwarm.model import hub as ours
from keepwarm.model.hub import Transfer, download, look_up
from keepwarm.model.loader import model_loader
from keepwarm.model.places import find
from tests.compat.serving import save_small_model
from tests.model.small_hub import Hub, small_hub
from tests.model.test_places import home, put_cached

__all__ = ["home"]
NAME = "mlx-community/small"


@pytest.fixture
def hub(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    """A hub with one model, and an empty cache here."""
    with small_hub() as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        template = made.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        folder = tmp_path_factory.mktemp("hub") / "small"
        made.repositories[NAME] = save_small_model(folder)
        (folder / "README.md").write_text("not needed")
        yield made


def put(hub: Hub, name: str, *files: str) -> Path:
    folder = hub.repositories[NAME].parent / name.replace("/", "-")
    folder.mkdir()
    for file in files:
        (folder / file).write_bytes(b"{}")
    hub.repositories[name] = folder
    return folder


def test_what_mlx_lm_reads_is_downloaded_and_found(hub: Hub) -> None:
    offer, transfer = look_up(NAME), Transfer()
    config_bytes = (hub.repositories[NAME] / "config.json").stat().st_size  # is fetched first
    assert 0 < offer.missing_bytes == offer.total_bytes - config_bytes
    folder = download(offer, transfer)
    found = find("small")
    assert found is not None
    assert found.folder == folder
    assert transfer.is_over
    assert transfer.done_bytes == transfer.total_bytes
    assert not (folder / "README.md").exists()


def test_nothing_is_fetched_twice(hub: Hub) -> None:
    download(look_up(NAME), Transfer())
    hub.fetched.clear()
    assert look_up(NAME).missing_bytes == 0
    download(look_up(NAME), Transfer())
    assert hub.fetched == []


def test_stopped_download_goes_on_with_the_missing_files(hub: Hub) -> None:
    folder = download(look_up(NAME), Transfer())
    (folder / "model.safetensors").resolve().unlink()
    (folder / "model.safetensors").unlink()
    hub.fetched.clear()
    download(look_up(NAME), Transfer())
    assert hub.fetched == ["model.safetensors"]
    found = find(NAME)
    assert found is not None
    assert found.reason is None


def test_how_far_a_download_is_can_be_read_while_it_runs(hub: Hub) -> None:
    hub.slow_file = "model.safetensors"
    offer, transfer = look_up(NAME), Transfer()
    thread = threading.Thread(target=download, args=(offer, transfer))
    thread.start()
    assert hub.is_in_the_middle.wait(30)
    assert transfer.is_running
    assert 0 <= transfer.done_bytes < transfer.total_bytes
    hub.go_on.set()
    thread.join(30)
    assert transfer.done_bytes == transfer.total_bytes


def test_disk_that_is_too_full_is_told_before_anything_is_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = look_up(NAME)
    hub.fetched.clear()
    monkeypatch.setattr(ours.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    with pytest.raises(BadInput, match=r"needs 0.0 GB more, and .* has 1.1 GB free.*HF_HUB_CACHE"):
        download(offer, Transfer())
    assert hub.fetched == []


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("a-Q4.gguf", "config.json"), "a/b holds GGUF; keepwarm serves MLX weights"),
        (("config.json", "pytorch_model.bin"), "a/b has no weights that keepwarm can read"),
        (("model.safetensors",), "a/b has no config.json"),
    ],
)
def test_repository_without_mlx_weights_is_told_before_it_is_downloaded(
    hub: Hub, files: tuple[str, ...], told: str
) -> None:
    put(hub, "a/b", *files)
    with pytest.raises(BadInput, match=told):
        look_up("a/b")
    assert hub.fetched == []


def test_unknown_repository_is_told_with_the_one_that_may_be_meant(hub: Hub, home: Path) -> None:
    put_cached(home, NAME)
    with pytest.raises(
        BadInput, match=r"has no repository mlx-community/smal.*Did you mean mlx-comm"
    ):
        look_up("mlx-community/smal")


def test_gated_repository_and_wrong_name_are_told(hub: Hub) -> None:
    hub.gated.add("a/gated")
    with pytest.raises(BadInput, match=r"accept its terms at http.*a/gated.*hf auth login"):
        look_up("a/gated")
    with pytest.raises(BadInput, match="not the name of a repository"):
        look_up("a b/c")


def test_hub_that_cannot_be_reached_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BadInput, match=r"cannot download .*from 127\.0\.0\.1:9: .*refused"):
        look_up(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match="HF_HUB_OFFLINE forbids"):
        look_up(NAME)


def test_model_that_is_not_here_is_downloaded_when_it_is_loaded(hub: Hub) -> None:
    transfer = Transfer()
    _, tokenizer = model_loader(NAME, transfer=transfer)()
    assert tokenizer.encode("w10") == [10]
    assert transfer.is_over
    hub.repositories.clear()  # from now on nobody need be asked
    model_loader("SMALL")()


def test_type_that_mlx_lm_does_not_know_is_not_downloaded(hub: Hub) -> None:
    folder = put(hub, "a/whisper", "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "whisper"}')
    with pytest.raises(BadInput, match=r"a/whisper cannot be served: .*type 'whisper'"):
        model_loader("a/whisper")()
    assert hub.fetched == ["config.json"]


def test_pull_tells_the_size_and_how_to_go_on_and_is_done_once(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME]) == 0
    output = capsys.readouterr().out
    assert "765.5 kB to download" in output
    assert "Room here for a conversation of 4K tokens" in output
    assert f"keepwarm serve {NAME}" in output
    assert main(["pull", NAME]) == 0
    assert "is here already" in capsys.readouterr().out
