"""The floors of the project: who may import whom. The reference stays an oracle that nothing of `fast` leans on."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "model_file": (),
    "reference": ("model_file",),
    "fast.rows": ("model_file",),
    "fast.model": ("model_file", "fast.rows.dequantize", "reference.shapes"),
    "fast.engine": ("model_file", "fast.model", "fast.rows", "reference.shapes"),
    "ci": (),
}
"""What stands below a package of ours, beside itself; `harness` may use all of them."""
OURS = ("model_file", "reference", "fast", "harness", "tests")


def imports_of(source: str) -> set[str]:
    """Every module of ours that a source names, at the top or inside a function; a name may be a module too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = node.module in ("reference", "fast", "fast.rows", "harness", "model_file")
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if whole else {node.module}
    return {name for name in found if name.split(".")[0] in OURS}


def forbidden(package: str, imported: Iterable[str]) -> set[str]:
    """Those that stand on the same floor or above."""
    allowed = (package, *MAY_IMPORT[package])
    return {name for name in imported if not any(name == each or name.startswith(each + ".") for each in allowed)}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_floors_hold(package: str) -> None:
    sources = sorted((ROOT / package.replace(".", "/")).rglob("*.py"))
    assert sources
    for path in sources:
        assert forbidden(package, imports_of(path.read_text())) == set(), path


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("model_file", "from fast.rows.table import Table"),
        ("model_file", "import reference"),
        ("reference", "from fast.rows import open_rows"),
        ("reference", "import harness.gate.run"),
        ("fast.rows", "from fast.engine.engine import FastEngine"),
        ("fast.model", "from fast.engine.settings import EngineSettings"),
        ("fast.model", "from reference.attention import attention"),
        ("fast.model", "from reference import experts"),
        ("fast.engine", "def f():\n    from reference.layers import rms_norm"),
        ("fast.engine", "import harness"),
        ("ci", "from harness import cli"),
    ],
)
def test_floors_can_be_broken(package: str, line: str) -> None:
    assert forbidden(package, imports_of(line))
