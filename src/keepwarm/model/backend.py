"""What MLX computes with: on a CPU without Apple's Accelerate, a fast BLAS if there is one.

`KEEPWARM_BLAS` is `auto`, `off`, a name or a file (see `blas.open_library`). Read when mlx.core is
imported, which is before there are settings. Any thread.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

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
    """Logs what MLX's products are computed with from now on, and how to do better."""
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
    try:
        # Builds other than the wheels may be linked with a fast one.
        if choice != "auto" or not blas.is_fast(blas.in_use(mlx)):
            library = blas.open_library(choice)
            if library is None:
                what = "no fast BLAS" if choice == "auto" else f"no BLAS {choice!r} ({ENV})"
                logger.warning("%s found, and MLX's own is slow; %s", what, blas.INSTALL)
                return
            blas.use(library, mlx)
            # One core is left for the server, the tokenizer and whatever else runs.
            blas.limit_threads(library, max(1, blas.num_cores() - 1))
        logger.info("BLAS: %s", blas.in_use(mlx))
    except (blas.BlasFault, OSError) as error:
        logger.warning("BLAS: MLX's own, which is slow: %s", error)


class _After:
    """A finder of modules that acts once a module has been imported, whoever imports it; then it is gone."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)  # by those behind us
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_act(module: ModuleType) -> None:
                run(module)
                self._act()

            spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec
