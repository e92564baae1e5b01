"""What a model may be called, and where the built-in one lies. No mlx; any thread."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from keepwarm.errors import BadInput

BUILT_IN = "sprout"  # the model that comes with the package, at model/sprout/
DTYPES = ("auto", "float32", "bfloat16", "float16")
KERNELS = ("keepwarm", "mlx-lm")  # whose functions compute where there is no Metal


def source_of(name: str) -> str:
    """What mlx-lm is to load for `name`. `sprout` is the built-in model wherever a command is
    run; a folder of that name is `./sprout`. Raises BadInput."""
    return str(built_in_folder()) if name == BUILT_IN else name


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
