"""MLX's products in a fast library: every case in a process of its own, since a slot that was
written stays written."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from keepwarm.config import read_config
from keepwarm.model import blas
from keepwarm.model.backend import ENV

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or mx.default_device() != mx.cpu, reason="for CPUs without Accelerate"
)

MLX = Path(mx.__file__).parent / "lib" / "libmlx.so"
SRC = Path(__file__).parents[2] / "src"
AFTER = """
from pathlib import Path
import mlx.core as mx
from keepwarm.config import read_config
from keepwarm.model import blas
from keepwarm.model.backend import ENV
print(blas.in_use(Path(mx.__file__).parent / "lib" / "libmlx.so"))
"""
# Every kind of product and layout; the sizes are small integers, so that every order of additions
# gives the same sums.
CHECK = """
import numpy as np
from itertools import product
made = np.random.default_rng(0)
for dtype, turn_a, turn_b in product(("float32", "float64", "complex64"), (0, 1), (0, 1)):
    a = made.integers(-4, 5, (65, 33)).astype(dtype)
    b = made.integers(-4, 5, (33, 129)).astype(dtype)
    left = mx.array(a.T).T if turn_a else mx.array(a)
    right = mx.array(b.T).T if turn_b else mx.array(b)
    assert np.array_equal(np.array(left @ right), a @ b), (dtype, turn_a, turn_b)
"""


def run(script: str, choice: str | None = None) -> tuple[str, str]:
    """What the script printed, and what it said on stderr."""
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    env.pop("KEEPWARM_BLAS", None)
    if choice is not None:
        env["KEEPWARM_BLAS"] = choice
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def need(choice: str) -> None:
    if blas.open_library(choice) is None:
        pytest.skip(f"no BLAS: {choice}")


@pytest.mark.parametrize("choice", ["auto", "scipy-openblas32", "openblas", "mkl", "blis"])
def test_products_are_right_and_in_the_chosen_library(choice: str) -> None:
    need(choice)
    out, err = run("import keepwarm" + AFTER + CHECK, choice)
    assert blas.is_fast(Path(out))
    assert err == ""


def test_a_file_can_be_chosen() -> None:
    need("auto")
    library = blas.open_library("auto")
    assert library is not None
    file = blas.file_of(library)
    assert Path(run("import keepwarm" + AFTER, str(file))[0]).samefile(file)


def test_mlx_imported_and_used_first_is_fast_from_then_on() -> None:
    need("auto")
    first = "import mlx.core as mx\nmx.eval(mx.ones((8, 8)) @ mx.ones((8, 8)))\nimport keepwarm"
    assert blas.is_fast(Path(run(first + AFTER + CHECK)[0]))


MAPS = "print(open('/proc/self/maps').read())"


def test_off_leaves_mlx_alone_and_says_nothing() -> None:
    out, err = run("import keepwarm" + AFTER + MAPS, "off")
    assert not blas.is_fast(Path(out.splitlines()[0]))
    assert not {"libscipy_openblas.so", "libopenblas.so.0"} & set(
        re.findall(r"[^/\s]+$", out, re.M)
    )
    assert err == ""


def test_nothing_is_loaded_before_mlx_is() -> None:
    out, _ = run("import sys, keepwarm\nassert 'mlx' not in sys.modules\n" + MAPS)
    assert "blas" not in out
    assert "libmlx" not in out


def test_the_import_is_watched_once() -> None:
    count = "print(sum(type(finder).__name__ == '_After' for finder in sys.meta_path))\n"
    assert run(f"import sys, keepwarm\n{count}import mlx.core\n{count}")[0].split() == ["1", "0"]


def test_the_watch_outlives_a_look_for_the_module() -> None:
    need("auto")
    look = "import keepwarm, importlib.util\nassert importlib.util.find_spec('mlx.core')\n"
    assert blas.is_fast(Path(run(2 * look + AFTER)[0]))


def test_the_watch_outlives_an_import_that_fails() -> None:
    need("auto")
    fail = """
import sys, keepwarm
from importlib.machinery import ExtensionFileLoader as Loader
run, Loader.exec_module = Loader.exec_module, None
try:
    import mlx.core
except TypeError:
    Loader.exec_module = run
assert "mlx.core" not in sys.modules
"""
    assert blas.is_fast(Path(run(fail + AFTER)[0]))


def test_names_of_mapped_files_need_be_no_text(tmp_path: Path) -> None:
    need("auto")
    file = os.fsencode(tmp_path) + b"/caf\xe9\r\x85.bin"
    map_it = f"""
import mmap
with open({file!r}, "w+b") as file:
    file.write(bytes(4096))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 4096)
import keepwarm
"""
    assert blas.is_fast(Path(run(map_it + AFTER)[0]))


@pytest.mark.parametrize("first", ["keepwarm, mlx.core", "mlx.core, keepwarm"])
def test_whatever_goes_wrong_is_a_warning_and_mlx_is_imported(first: str) -> None:
    script = f"""
from keepwarm.model import blas
def in_use(mlx):
    raise KeyError("a fault of ours")
blas.in_use = in_use
import sys
for name in ("keepwarm", "keepwarm.model.backend"):
    del sys.modules[name]
sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ != "_After"]
import {first}
print(mlx.core.array(1).item())
"""
    out, err = run(script)
    assert out == "1"
    assert err == "BLAS: MLX's own, which is slow: 'a fault of ours'\n"


def test_tables_are_found_where_the_loader_leaves_offsets_in_them() -> None:
    """As musl does: the tables of this process, with the base taken off again."""
    tables = blas._LinkMap.from_address(blas._link_map(MLX))
    expected = blas._dynamic(tables)
    entries = (blas._Dynamic * 64)()
    for i, (tag, value) in enumerate(expected.items()):
        is_pointer = tag in (blas._DT_STRTAB, blas._DT_SYMTAB, blas._DT_JMPREL)
        entries[i] = blas._Dynamic(tag, value - (tables.base if is_pointer else 0))
    raw = blas._LinkMap(tables.base, tables.name, ctypes.addressof(entries))
    assert blas._dynamic(raw) == expected


def test_what_is_not_there_is_warned_of_once_with_the_way_to_get_it() -> None:
    script = "import keepwarm, mlx.core, mlx.nn" + AFTER
    out, err = run(script, "nowhere.so")
    assert not blas.is_fast(Path(out))
    assert err.count(blas.INSTALL) == 1
    assert "'nowhere.so' (KEEPWARM_BLAS)" in err


def test_the_log_names_the_library() -> None:
    need("auto")
    out, err = run("import logging\nlogging.basicConfig(level='INFO')\nimport keepwarm" + AFTER)
    assert err.endswith(f"BLAS: {out}\n")


def test_a_library_without_products_is_none() -> None:
    assert blas.open_library("libm.so.6") is None


def test_mlx_that_is_not_loaded_is_a_fault() -> None:
    with pytest.raises(blas.BlasFault, match=r"libelse\.so is not loaded"):
        blas.in_use(Path("libelse.so"))


def test_a_library_that_calls_no_blas_is_a_fault() -> None:
    need("auto")
    library = blas.open_library("auto")
    assert library is not None
    with pytest.raises(blas.BlasFault, match="by way of slots"):
        blas.use(library, Path("libm.so.6"))


def test_sealed_slots_are_left_alone(tmp_path: Path) -> None:
    """As a wheel linked with `-z now` would have them: to write there would end the process."""
    need("auto")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    calls = "".join(f"void {name}(void);" for name in blas.PRODUCTS)
    calls += "void f(void) {" + "".join(f"{name}();" for name in blas.PRODUCTS) + "}"
    (tmp_path / "blas.c").write_text("".join(f"void {name}(void) {{}}" for name in blas.PRODUCTS))
    (tmp_path / "mlx.c").write_text(calls)
    own, mlx = tmp_path / "libown.so", tmp_path / "libmlx.so"
    make = [compiler, "-shared", "-fPIC", "-fplt"]
    subprocess.run([*make, tmp_path / "blas.c", "-o", own], check=True)
    sealed = ["-Wl,-z,relro,-z,now", "-o", mlx]
    subprocess.run([*make, tmp_path / "mlx.c", own, *sealed], check=True)
    loaded = ctypes.CDLL(str(mlx))
    library = blas.open_library("auto")
    assert library is not None
    with pytest.raises(blas.BlasFault, match="cannot be written"):
        blas.use(library, mlx)
    assert blas.in_use(mlx).samefile(own)
    loaded.f()


def test_the_variable_is_no_unknown_setting() -> None:
    read_config({}, {ENV: "off"})


COUNT = """
import ctypes, os, keepwarm, mlx.core
from keepwarm.model import blas
library = blas.open_library(os.environ["KEEPWARM_BLAS"])
names = ("openblas_get_num_threads", "scipy_openblas_get_num_threads", "MKL_Get_Max_Threads",
    "bli_thread_get_num_threads")
print(next(getattr(library, name)() for name in names if hasattr(library, name)))
"""
VARIABLES = {
    "scipy-openblas32": "OPENBLAS_NUM_THREADS",
    "openblas": "OPENBLAS_NUM_THREADS",
    "mkl": "MKL_NUM_THREADS",
    "blis": "BLIS_NUM_THREADS",
}


@pytest.mark.parametrize("choice", VARIABLES)
def test_one_core_is_left_for_others_unless_the_environment_counts(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(choice)
    for name in (*VARIABLES.values(), "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name in set(VARIABLES.values()) - {VARIABLES[choice]}:
        monkeypatch.setenv(name, "2")  # not meant for this one
    assert run(COUNT, choice)[0] == str(max(1, blas.num_cores() - 1))
    if blas.num_cores() > 1:
        for name in ("OMP_NUM_THREADS", VARIABLES[choice]):
            with monkeypatch.context() as patch:
                patch.setenv(name, "2")
                assert run(COUNT, choice)[0] == "2"


class Told:
    """A library of which only the setter is there."""

    def __init__(self, setter: str) -> None:
        self.counts: list[int] = []
        setattr(self, setter, lambda count: self.counts.append(count.value))


@pytest.mark.parametrize("setter", blas._SET_THREADS)
def test_each_library_is_told_in_its_own_way(setter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = blas._SET_THREADS[setter]
    for name in (*VARIABLES.values(), "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    told = Told(setter)
    blas.limit_threads(told, 3)
    for name in (variable, "OMP_NUM_THREADS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "2")
            blas.limit_threads(told, 5)
    assert told.counts == [3]
