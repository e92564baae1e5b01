"""What MLX computes with: on a CPU without Apple's Accelerate, a fast BLAS if there is one.

`KEEPWARM_BLAS` is `auto`, `off`, a name or a file (see `blas.open_library`). Read when mlx.core is
imported, which is before there are settings. Any thread.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ENV = "KEEPWARM_BLAS"
logger = logging.getLogger(__name__)


def prepare() -> None:
    """Sees to BLAS: now, or as soon as somebody imports mlx.core. Costs nothing until then."""
    if sys.platform != "linux":
        return  # Accelerate is linked in
    if "mlx.core" in sys.modules:
        prepare_blas()
    else:
        sys.meta_path.insert(0, _After("mlx.core", prepare_blas))


def prepare_blas() -> None:
    """Logs what MLX's products are computed with from now on, and how to do better. Raises nothing:
    whoever imports mlx.core may know nothing of us."""
    try:
        _prepare_blas()
    except Exception as error:
        logger.warning("BLAS: MLX's own, which is slow: %s", str(error) or repr(error))


def _prepare_blas() -> None:
    from pathlib import Path

    import mlx.core as mx

    from keepwarm.model import blas

    choice = os.environ.get(ENV) or "auto"
    if choice == "off":
        logger.info("BLAS: MLX's own, as %s=off", ENV)
        return
    if choice == "auto" and mx.default_device() != mx.cpu:
        return  # products are the GPU's
    mlx = Path(mx.__file__).parent / "lib" / "libmlx.so"
    # Builds other than the wheels may be linked with a fast one.
    if choice != "auto" or not blas.is_fast(blas.in_use(mlx)):
        library = blas.open_library(choice)
        if library is None:
            what = "no fast BLAS" if choice == "auto" else f"no BLAS {choice!r} ({ENV})"
            logger.warning("%s found, and MLX's own is slow; %s", what, blas.INSTALL)
            return
        # One core is left for the server, the tokenizer and whatever else runs.
        blas.limit_threads(library, max(1, blas.num_cores() - 1))
        blas.use(library, mlx)
    logger.info("BLAS: %s", blas.in_use(mlx))


class _After:
    """A finder of modules that acts once a module has been imported, whoever imports it; then it is
    gone. To look for the module, or to fail to import it, is not enough."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = self._found_behind_us(path, target)
        loader: Any = spec.loader if spec is not None else None
        run = getattr(loader, "exec_module", None)
        if run is not None:

            def run_and_act(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._act()

            with suppress(AttributeError, TypeError):  # a loader that takes no attributes
                loader.exec_module = run_and_act
        return spec

    def _found_behind_us(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        specs = (finder.find_spec(self._name, path, target) for finder in behind)
        return next((spec for spec in specs if spec is not None), None)
