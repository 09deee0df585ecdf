"""The layers of the project: the reference stays an oracle that nothing else leans on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAST_MAY_IMPORT = {
    "reference.config",
    "reference.errors",
    "reference.gguf_file",  # the file's header: where tensors lie
    "reference.ngram",
    "reference.shapes",
    "reference.tensors",
}


def imports_of(source: str) -> set[str]:
    """Every module that a source names, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} if node.module != "reference" else {f"reference.{a.name}" for a in node.names}
    return found


def broken_rules(package: str, imported: set[str]) -> set[str]:
    top = {name: name.split(".")[0] for name in imported}
    if package == "reference":
        return {name for name in imported if top[name] in ("fast", "harness")}
    if package == "fast":
        return {n for n in imported if top[n] == "harness" or (top[n] == "reference" and n not in FAST_MAY_IMPORT)}
    return set()


@pytest.mark.parametrize("package", ["reference", "fast"])
def test_import_rule_holds(package: str) -> None:
    sources = sorted((ROOT / package).rglob("*.py"))
    assert len(sources) > 1
    for path in sources:
        assert broken_rules(package, imports_of(path.read_text())) == set(), path


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("reference", "from fast.rows import open_rows"),
        ("reference", "import harness.gate.run"),
        ("fast", "from reference.attention import attention"),
        ("fast", "from reference import experts"),
        ("fast", "def f():\n    from reference.layers import rms_norm"),
        ("fast", "import harness"),
    ],
)
def test_import_rule_can_fail(package: str, line: str) -> None:
    assert broken_rules(package, imports_of(line))


def test_ci_scripts_only_call_the_command_line() -> None:
    for path in sorted((ROOT / "ci").glob("*.py")):
        assert not {
            name for name in imports_of(path.read_text()) if name.split(".")[0] in ("reference", "fast", "harness")
        }
