"""Import layers of the package; offline code never imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ddpbench"
LAYERS = [
    ["record"],
    ["machine"],
    ["distributed", "analysis"],
    ["data", "workloads", "kernels", "loaders"],
    ["report", "training"],
    ["bench"],
    ["published", "script"],
    ["cli", "callbacks"],
    ["__main__"],
]
LAYER = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
WITHOUT_TORCH = {"record", "analysis", "report"}
HEAVY = {"torch", "numpy", "scipy", "matplotlib", "torchvision"}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> set[str]:
    """Every module that ``path`` imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in LAYER)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_from_lower_layers_or_its_own_package(path: Path) -> None:
    room = package_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "ddpbench" and len(parts) > 1 and parts[1] in LAYER and parts[1] != room:
            assert LAYER[parts[1]] < LAYER[room], f"{room} (layer {LAYER[room]}) imports {name} (layer {LAYER[parts[1]]})"


FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent.parent not in (PACKAGE, PACKAGE.parent))
BY_NAME = {".".join(("ddpbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path for path in MODULES}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE)))
def test_imports_of_a_subpackage_do_not_import_it_back(folder: Path) -> None:
    reached = {path for path in MODULES if folder in path.parents}
    while more := {BY_NAME[name] for path in reached for name in imports(path) & BY_NAME.keys()} - reached:
        for path in more:
            back = {name for name in imports(path) & BY_NAME.keys() if folder in BY_NAME[name].parents}
            assert not back, f"{path.relative_to(PACKAGE)} imports {back}"
        reached |= more


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_offline_packages_never_import_torch(path: Path) -> None:
    if package_of(path) in WITHOUT_TORCH:
        allowed = {"matplotlib"} if path.name.startswith("draw") else set()  # imported lazily, only for drawing
        assert not {name.split(".")[0] for name in imports(path)} & (HEAVY - allowed)


@pytest.mark.parametrize("path", sorted((PACKAGE / "report").rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_pages_read_what_was_judged(path: Path) -> None:
    """A page recommends and predicts nothing; that of a what-if query shows an answer, which is not in a record."""
    judging = [name for name in imports(path) if name.startswith(("ddpbench.analysis.remedies", "ddpbench.analysis.whatif"))]
    assert not judging or path.stem == "whatif"


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"} <= set(LAYER)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["list"], ["env"], ["report", "--help"]], ids=" ".join)
def test_offline_commands_do_not_import_torch(words: list[str]) -> None:
    script = (
        "import sys; from ddpbench.cli import main\n"
        f"sys.argv = ['ddpbench', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"loaded = {HEAVY!r} & set(sys.modules); assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
