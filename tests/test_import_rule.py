"""The floors of the project: who may import whom, and that no files import each other in a circle.

The reference stays an oracle that nothing of `fast` leans on. In the harness a package uses what stands below it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEAVES = ("harness.pages.numbers", "harness.pages.tables")
"""How numbers, lines and tables are written: they import nothing of ours, and every floor of the harness prints."""
BOTTOM = ("atomic", "environment", "errors", "identity", "inputs", "supervise", "schema")
FLOORS = ("synth", "cases", "engines", "answers", "gate", "faults", "diagnose", "pages", "commands")
"""The packages of the harness from the bottom up. `measure` stands beside `gate` and `faults`: below `pages`."""
FREE = ("model_file", "reference", "fast", "goldens")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "model_file": (),
    "reference": ("model_file",),
    "fast.rows": ("model_file",),
    "fast.model": ("model_file", "fast.rows.dequantize", "reference.shapes"),
    "fast.engine": ("model_file", "fast.model", "fast.rows", "reference.shapes"),
    "ci": (),
    **{f"harness.{name}": ("model_file", "harness.errors") for name in BOTTOM},
}
"""What stands below a package or file of ours, beside itself."""
_low = (*FREE, *LEAVES, "harness.oracle", *(f"harness.{name}" for name in BOTTOM))
for _place, _name in enumerate(FLOORS):
    MAY_IMPORT[f"harness.{_name}"] = (*_low, *(f"harness.{below}" for below in FLOORS[:_place]))
MAY_IMPORT["harness.measure"] = tuple(n for n in MAY_IMPORT["harness.gate"])
MAY_IMPORT |= dict.fromkeys(("harness.inspection", "harness.oracle", "harness.unreached"), _low)
MAY_IMPORT["harness.pages"] += ("harness.measure",)
MAY_IMPORT["harness.commands"] += ("harness.measure", "harness.inspection")
MAY_IMPORT |= dict.fromkeys(LEAVES, ())
OURS = ("model_file", "reference", "fast", "harness", "goldens", "tests")
OFFENDERS: dict[str, set[str]] = {}
"""Imports that break the rule today, by file: the list only ever gets shorter."""
KNOWN_CIRCLES: list[list[str]] = []


def imports_of(source: str) -> set[str]:
    """Every module of ours that a source names, at the top, inside a function or for types; a name may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if file_of(name) or node.module in ("reference", "fast") else node.module for name in names}
    return {name for name in found if name.split(".")[0] in OURS}


def file_of(module: str) -> Path | None:
    """The file of a module or package of ours."""
    place = ROOT / module.replace(".", "/")
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def files_of(package: str) -> list[Path]:
    """The files that a rule is about."""
    folder = ROOT / package.replace(".", "/")
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def forbidden(package: str, imported: Iterable[str]) -> set[str]:
    """Those that stand on the same floor or above."""
    allowed = (package, *MAY_IMPORT[package])
    return {name for name in imported if not any(name == each or name.startswith(each + ".") for each in allowed)}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_floors_hold(package: str) -> None:
    sources = [path for path in files_of(package) if path.is_file()]
    assert sources or package in ("harness.oracle", "harness.inspection")
    for path in sources:
        name = str(path.relative_to(ROOT))
        assert forbidden(package, imports_of(path.read_text())) == OFFENDERS.get(name, set()), name


def test_every_file_has_its_floor() -> None:
    """The top alone has none: the command line, which uses everything."""
    covered = {path for package in MAY_IMPORT for path in files_of(package)}
    found = {
        path for folder in ("model_file", "reference", "fast", "harness") for path in (ROOT / folder).rglob("*.py")
    }
    top = {ROOT / "harness" / name for name in ("__init__.py", "__main__.py", "cli.py")} | {
        ROOT / "fast" / "__init__.py"
    }
    assert found - covered == top


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of names each of which leads to all others of its group, by what each name leads to."""

    def reached(start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            new = edges.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    leads = {name: reached(name) for name in edges}
    groups = {
        frozenset(other for other in leads[name] if name in leads.get(other, ()))
        for name in leads
        if name in leads[name]
    }
    return sorted(sorted(group) for group in groups)


def test_no_file_imports_itself_by_way_of_others() -> None:
    files = [path for folder in (*FREE, "harness", "ci") for path in (ROOT / folder).rglob("*.py")]
    edges = {}
    for path in files:
        named = {file_of(name) for name in imports_of(path.read_text())} - {path, None}
        edges[str(path.relative_to(ROOT))] = {
            str(found.relative_to(ROOT)) for found in named if found is not None and found.name != "__init__.py"
        }
    assert circles(edges) == KNOWN_CIRCLES


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert imports_of("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fast.rows import reader") == {
        "fast.rows.reader"
    }


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
        ("harness.errors", "from harness.atomic import writing"),
        ("harness.synth", "from harness.cases.case import Case"),
        ("harness.cases", "from harness.engines import fast"),
        ("harness.engines", "from harness.answers.store import read_golden"),
        ("harness.answers", "from harness.gate.run import run_gate"),
        ("harness.gate", "from harness.pages.gate_text import summary"),
        ("harness.gate", "from harness.measure import cells"),
        ("harness.gate", "from harness.faults import plants"),
        ("harness.measure", "from harness.gate.rows import judge_rows"),
        ("harness.measure", "from harness.pages.figures import bars"),
        ("harness.faults", "from harness.commands.outputs import outputs"),
        ("harness.pages", "def f():\n    from harness.commands.outputs import outputs"),
        ("harness.pages.tables", "from harness.pages.numbers import short"),
        ("harness.commands", "from harness import cli"),
        ("harness.inspection", "from harness.gate.compare import check_type"),
    ],
)
def test_floors_can_be_broken(package: str, line: str) -> None:
    assert forbidden(package, imports_of(line))
