"""What a model may be called, and where the built-in one lies. No mlx; any thread."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from keepwarm.errors import BadInput
from keepwarm.model.places import GGUF, HUGGING_FACE, find, meant

BUILT_IN = "sprout"  # the model that comes with the package, at model/sprout/
DTYPES = ("auto", "float32", "bfloat16", "float16")
KERNELS = ("keepwarm", "mlx-lm")  # whose functions compute where there is no Metal


def source_of(name: str) -> str:
    """What mlx-lm is to load for `name`: a folder, or a repository that is to be downloaded.

    `sprout` is the built-in model wherever a command is run; a folder of that name is `./sprout`. A
    model that any program has put on this disk goes by its name, without its publisher too. Raises
    BadInput where the name can be neither, with names that are spelt like it.
    """
    if name == BUILT_IN:
        return str(built_in_folder())
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return str(folder) if name.startswith("~") else name
    if folder.suffix.lower() == ".gguf":
        raise BadInput(f"{name} is {GGUF}, such as those of huggingface.co/mlx-community")
    if not name or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise BadInput(f"there is no model folder {name!r}")
    return _source_here(name) or _repository(name)


def full_name(name: str) -> str:
    """The name that `keepwarm models` lists a model by, the publisher included; any other name as
    it is. Raises BadInput where it may mean several."""
    is_other = name == BUILT_IN or Path(name).expanduser().is_dir()
    found = None if is_other else find(name)
    return name if found is None else found.name


def _source_here(name: str) -> str | None:
    """None where no program has put such a model here, or where its download has not ended."""
    found = find(name)
    if found is None:
        return None
    if found.reason is None:
        return str(found.folder)
    if found.place == HUGGING_FACE and found.reason != GGUF:
        return None
    raise BadInput(f"{found.name}, which {found.place} has here, cannot be served: {found.reason}")


def _repository(name: str) -> str:
    if "/" in name:
        return name
    raise BadInput(
        f"there is no model {name!r} on this disk.{meant(name)} `keepwarm models` lists what there"
        " is; a repository to download is written publisher/name"
    )


def built_in_folder() -> Path:
    """Raises BadInput where the package came without its model."""
    folder = Path(str(files("keepwarm.model") / BUILT_IN))
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise BadInput("this build has no built-in model; name one")
    return folder


def shown_name(name: str) -> str:
    """What a person calls it: a folder goes by its own name, without the way there."""
    folder = Path(name).expanduser()
    return folder.resolve().name if folder.is_dir() else name


def weights_bytes(name: str) -> int | None:
    """How large the weights of a local model are; None for one that is elsewhere. Raises
    BadInput."""
    folder = Path(source_of(name)).expanduser()
    if not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
