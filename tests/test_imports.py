"""What a file may name: the import rules of the design, read from the source with `ast`.

A rule holds modules to what they may import themselves, wherever in the file the import stands.
With `through` it also follows what is loaded along with them: the packages above them, the
keepwarm modules they import, and what those import at module level. Imports under
`if TYPE_CHECKING:` load nothing, so no chain goes through them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"


@dataclass(frozen=True, slots=True)
class Rule:
    """`modules` (and all below them) never import `forbidden` (and all below), save `allowed`."""

    modules: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    through: bool = False


MLX = ("mlx", "mlx_lm")  # mlx_lm imports mlx

PURE = (
    "keepwarm.cache.tree",
    "keepwarm.cache.policy",
    "keepwarm.cache.placement",
    "keepwarm.cache.ledger",
    "keepwarm.cache.returns",
    "keepwarm.engine.scheduler",
    "keepwarm.explain",
    "keepwarm.prompt.boundaries",
)

RULES = (
    # Decisions are tested without arrays.
    Rule(PURE, forbidden=MLX, through=True),
    # Flags are refused before anything is loaded, those of plots too.
    Rule(("keepwarm.bench.plot",), forbidden=MLX, through=True),
    # One thread owns the arrays, and it is not one of HTTP's.
    Rule(("keepwarm.server",), forbidden=(*MLX, "keepwarm.cache")),
    # A layer state knows nothing of tokens or trees.
    Rule(
        ("keepwarm.state",),
        forbidden=("keepwarm.cache", "keepwarm.prompt", "keepwarm.engine"),
    ),
    # The cache knows layers only through their contract.
    Rule(
        ("keepwarm.cache",),
        forbidden=("keepwarm.state",),
        allowed=("keepwarm.state.base", "keepwarm.state.registry", "keepwarm.state.live"),
    ),
)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name. `loads`: the import runs; `at_import`: it runs when the module does."""

    target: str
    line: int
    loads: bool
    at_import: bool


def violations(src: Path, rules: tuple[Rule, ...]) -> list[str]:
    """Every broken rule in the packages under `src`, one line each, with the chain of imports."""
    modules = _modules(src)
    imports = {name: list(_imports(name, path, set(modules))) for name, path in modules.items()}
    found = []
    for rule in rules:
        for name in modules:
            if _within(name, rule.modules):
                chains = _direct(name, rule, imports)
                if rule.through:
                    chains += _indirect(name, rule, imports)
                found += [" -> ".join(chain) for chain in chains]
    return found


def _modules(src: Path) -> dict[str, Path]:
    """Dotted name to file. A package goes by its `__init__`, or its folder if it has none."""
    modules: dict[str, Path] = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        for depth in range(1, len(parts)):
            modules.setdefault(".".join(parts[:depth]), src.joinpath(*parts[:depth]))
        is_package = parts[-1] == "__init__"
        modules[".".join(parts[:-1] if is_package else parts)] = path
    return modules


def _imports(name: str, path: Path, known: set[str]) -> Iterator[Import]:
    if path.is_dir():
        return
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node, loads, at_import in _import_nodes(tree, loads=True, at_import=True):
        for target in _targets(node, package, known):
            yield Import(target, node.lineno, loads, at_import)


def _import_nodes(
    node: ast.AST, *, loads: bool, at_import: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, loads, at_import
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for unloaded in node.body:
            yield from _import_nodes(unloaded, loads=False, at_import=False)
        for loaded in node.orelse:
            yield from _import_nodes(loaded, loads=loads, at_import=at_import)
    else:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_import = False
        for child in ast.iter_child_nodes(node):
            yield from _import_nodes(child, loads=loads, at_import=at_import)


def _targets(node: ast.Import | ast.ImportFrom, package: str, known: set[str]) -> list[str]:
    """The modules that an import names: `from a import b` is `a.b` where that is a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    return [
        f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names
    ]


def _direct(name: str, rule: Rule, imports: dict[str, list[Import]]) -> list[list[str]]:
    return [
        [f"{name}:{found.line}", found.target]
        for found in imports[name]
        if _is_forbidden(found.target, rule)
    ]


def _indirect(name: str, rule: Rule, imports: dict[str, list[Import]]) -> list[list[str]]:
    """The shortest chain from `name` over other keepwarm modules to each forbidden module."""
    chains: list[list[str]] = []
    first = [found.target for found in imports[name] if found.loads]
    queue = [[name, step] for target in [name, *first] for step in _loaded(target, imports)]
    seen = {name}
    for chain in queue:  # grows while we walk
        last = chain[-1]
        if last in seen:
            continue
        seen.add(last)
        for found in imports[last]:
            if not found.at_import:
                continue
            if _is_forbidden(found.target, rule):
                chains.append([*chain[:-1], f"{last}:{found.line}", found.target])
            queue += [[*chain, step] for step in _loaded(found.target, imports)]
    return chains


def _loaded(target: str, imports: dict[str, list[Import]]) -> list[str]:
    """The modules under test that run when `target` is imported: its packages, then itself."""
    parts = target.split(".")
    names = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return [name for name in names if name in imports]


def _is_forbidden(target: str, rule: Rule) -> bool:
    return _within(target, rule.forbidden) and not _within(target, rule.allowed)


def _within(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def test_keepwarm_keeps_its_import_rules() -> None:
    assert violations(SRC, RULES) == []


def test_pure_modules_import_where_mlx_is_missing() -> None:
    present = [name for name in PURE if name in _modules(SRC)]
    script = f"""
import importlib, sys
sys.path.insert(0, {str(SRC)!r})
sys.modules.update(mlx=None, mlx_lm=None)
for name in {present!r}:
    importlib.import_module(name)
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# Each case: the files of a package `keepwarm`, and the violations that must be found in it.
CASES = {
    "nothing wrong": ({"cache/tree.py": "import numpy"}, []),
    "mlx in a pure module": (
        {"cache/tree.py": "import mlx.core as mx"},
        ["keepwarm.cache.tree:1 -> mlx.core"],
    ),
    "mlx inside a function": (
        {"cache/policy.py": "def f():\n    from mlx import core"},
        ["keepwarm.cache.policy:2 -> mlx"],
    ),
    "mlx for types only": (
        {"cache/ledger.py": "if TYPE_CHECKING:\n    import mlx.core"},
        ["keepwarm.cache.ledger:2 -> mlx.core"],
    ),
    "mlx through another module": (
        {
            "cache/placement.py": "from keepwarm.cache import middle",
            "cache/middle.py": "from keepwarm.cache.far import x",
            "cache/far.py": "import mlx_lm",
        },
        ["keepwarm.cache.placement -> keepwarm.cache.middle -> keepwarm.cache.far:1 -> mlx_lm"],
    ),
    "mlx through a package's __init__": (
        {"engine/scheduler.py": "", "engine/__init__.py": "import mlx.core"},
        ["keepwarm.engine.scheduler -> keepwarm.engine:1 -> mlx.core"],
    ),
    "mlx in a function of another module": (
        {"cache/tree.py": "import keepwarm.far", "far.py": "def f():\n    import mlx.core"},
        [],
    ),
    "types from a module with mlx": (
        {
            "cache/tree.py": "if typing.TYPE_CHECKING:\n    import keepwarm.far",
            "far.py": "import mlx.core",
        },
        [],
    ),
    "a name that only begins like mlx": ({"cache/tree.py": "import mlxtend"}, []),
    "arrays and trees in the server": (
        {
            "server/app.py": "import mlx.core\nfrom keepwarm import cache\nimport keepwarm.engine",
            "cache/__init__.py": "",
            "engine/__init__.py": "import mlx.core",
        },
        ["keepwarm.server.app:1 -> mlx.core", "keepwarm.server.app:2 -> keepwarm.cache"],
    ),
    "tokens and trees in a layer state": (
        {"state/base.py": "from ..prompt.boundaries import Prompt\nfrom keepwarm.cache import x"},
        [
            "keepwarm.state.base:1 -> keepwarm.prompt.boundaries",
            "keepwarm.state.base:2 -> keepwarm.cache",
        ],
    ),
    "a layer's class in the cache": (
        {
            "cache/store.py": "from keepwarm.state import attention, base\nimport keepwarm.state",
            "state/attention.py": "import mlx.core",
            "state/base.py": "import mlx.core",
        },
        [
            "keepwarm.cache.store:1 -> keepwarm.state.attention",
            "keepwarm.cache.store:2 -> keepwarm.state",
        ],
    ),
}


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES.keys())
def test_checker_finds(files: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / "keepwarm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert violations(tmp_path, RULES) == expected


def test_no_file_names_a_private_folder() -> None:
    private = re.compile(r"(?<![\w.~])/(?:home|root|Users|work)/\w+")
    suffixes = {".py", ".md", ".toml", ".yml", ".sh"}
    folders = [ROOT / name for name in ("src", "tests", "docs", "bench", "scripts", ".github")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*paths, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if private.search(line)
    ]
    assert found == []
