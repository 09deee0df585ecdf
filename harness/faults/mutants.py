"""Mutants by rule: every place of `fast/` where an operator, a constant, an index or a boolean could be another one.

Enumerated from the syntax tree, in order, and chosen by the SHA-256 of seed and text, so that an edit elsewhere in a
file leaves the choice as it was. Left out, because no rows and no tokens depend on it:
- docstrings, annotations, imports, `__all__`, and texts (f-strings, strings that are joined);
- `raise` and `warn`, and what stands before a `raise` under the same `if` or `except`: it makes the message. What is
  refused is decided by the condition, which is mutated;
- guards against what cannot happen: `assert`, and the keywords of `_GUARDS`;
- what only sets counters or times, and the files of `NO_ANSWERS`.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.faults.child import ROOT

NO_ANSWERS = {
    "fast/rows/counters.py": "what a gather cost",
    "fast/rows/probe.py": "how fast the device is",
    "fast/rows/residency.py": "what is in memory, and eviction, for cold measurements",
    "fast/engine/timings.py": "where time goes",
    "fast/engine/memory.py": "the memory that a model will need",
    "fast/engine/ahead.py": "programs compiled before they are asked for",
    "fast/engine/nonfinite.py": "where logits began not to be finite, for an error's text",
}
_GUARDS = ("strict", "frozen", "repr", "maxsize", "maxlen", "stacklevel")
_COUNTED = ("counters", "stats", "timings")  # objects that hold measurements and nothing else
_COUNTS = ("GatherCounters", "ReadStats", "Step")  # what makes them
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_AROUND = 60  # characters that are shown before and after a change
_CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """One change. where: function or class; original, changed: the statement, of a compound one its head.

    number: which of the mutants of its file with these same texts.
    """

    file: str
    line: int
    last_line: int
    where: str
    rule: str
    original: str
    changed: str
    number: int = 0

    @property
    def text(self) -> str:
        """What it is, whatever its line."""
        return "\n".join((self.file, self.where, self.rule, self.original, self.changed, str(self.number)))

    @property
    def shown(self) -> str:
        """The change with a little around it, and where it is."""
        old, new = self.original, self.changed
        start = _shared(old, new)
        end = min(_shared(old[::-1], new[::-1]), len(old) - start, len(new) - start)
        low, high = max(0, start - _AROUND), end - _AROUND
        parts = [text[low : len(text) - max(high, 0)] for text in (old, new)]
        return f"{self.file}:{self.line} {self.where}: {parts[0]}  ->  {parts[1]}"

    def digest(self, *more: str) -> str:
        """Hexadecimal SHA-256 of its text and `more`."""
        return hashlib.sha256("\0".join((self.text, *more)).encode()).hexdigest()


def mutated_files() -> list[str]:
    """Every file that mutants are made of."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "fast").rglob("*.py"))
    return [file for file in files if file not in NO_ANSWERS]


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file."""
    return list(_applied(file, ast.parse(source)))


def mutated(source: str, mutant: Mutant) -> str:
    """The file's source with that change. Raises: KeyError where it cannot be made any more."""
    tree = ast.parse(source)
    for found in _applied(mutant.file, tree):
        if found.text == mutant.text:
            return ast.unparse(tree)
    raise KeyError(mutant.text)


def sample(mutants: Iterable[Mutant], count: int, seed: str) -> list[Mutant]:
    """At least one of every file, beyond that of each file in proportion to its mutants; fixed by the seed."""
    files: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        files.setdefault(mutant.file, []).append(mutant)
    total = sum(map(len, files.values()))
    chosen: list[Mutant] = []
    for here in files.values():
        share = max(1, -(-count * len(here) // total)) if total else 0
        chosen += sorted(here, key=lambda mutant: mutant.digest(seed))[:share]
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.line, mutant.text))


def _applied(file: str, tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant of a tree, the tree being changed while it is handed out."""
    seen: Counter[Mutant] = Counter()
    for node, statement, where in _places(tree, None, ()):
        for rule, owner, name, value in _changes(node):
            before, original = getattr(owner, name), _head(statement)
            setattr(owner, name, value)
            lines = node.lineno, node.end_lineno or node.lineno
            mutant = Mutant(file, *lines, ".".join(where), rule, original, _head(statement))
            if mutant.changed != original:
                key = Mutant(file, 0, 0, mutant.where, rule, original, mutant.changed)
                yield Mutant(**{**vars(mutant), "number": seen[key]})
                seen[key] += 1
            setattr(owner, name, before)


def _places(node: ast.AST, statement: ast.stmt | None, where: tuple[str, ...]) -> Iterator[tuple[Any, Any, Any]]:
    """Expressions that may matter, each with its statement and the names of what it stands in."""
    if isinstance(node, ast.keyword) and node.arg in _GUARDS:
        return
    if isinstance(node, ast.stmt):
        if _is_nothing(node):
            return
        statement = node
        if isinstance(node, ast.AugAssign):
            yield node, statement, where
    elif isinstance(node, ast.expr):
        counts = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COUNTS
        if isinstance(node, ast.JoinedStr) or _is_text(node) or counts:
            return
        yield node, statement, where
    inside = (*where, node.name) if isinstance(node, ast.FunctionDef | ast.ClassDef) else where
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment"):
            continue
        refuses = name == "body" and isinstance(node, ast.If | ast.ExceptHandler) and isinstance(value[-1], ast.Raise)
        for child in [] if refuses else value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child, statement, inside if name == "body" else where)


def _is_nothing(node: ast.stmt) -> bool:
    """Whether neither rows nor tokens depend on a statement."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "warn"
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(map(_is_measured, targets))
    return False


def _is_measured(target: ast.expr) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr.endswith("_s") or (isinstance(target.value, ast.Name) and target.value.id in _COUNTED)
    return isinstance(target, ast.Name) and (target.id.endswith("_s") or target.id == "__all__")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _changes(node: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """What can be changed at a node: the rule, and which attribute of which node becomes what."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        yield "operator", node, "op", _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        for place, comparison in enumerate(node.ops):
            changed = [*node.ops[:place], _COMPARISONS[type(comparison)](), *node.ops[place + 1 :]]
            yield "comparison", node, "ops", changed
    elif isinstance(node, ast.BoolOp):
        yield "and, or", node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield "not", node, "operand", ast.UnaryOp(ast.Not(), node.operand)
        elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            yield "sign", node, "op", ast.UAdd()
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Subscript):
        yield from _indices(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(node: ast.Constant) -> Iterator[tuple[str, Any, str, Any]]:
    if isinstance(node.value, bool):
        yield "boolean", node, "value", not node.value
    elif isinstance(node.value, int):
        yield "constant + 1", node, "value", node.value + 1
        yield "constant - 1", node, "value", node.value - 1
    elif isinstance(node.value, float):
        yield "constant * 2", node, "value", node.value * 2 or 1.0


def _indices(node: ast.Subscript) -> Iterator[tuple[str, Any, str, Any]]:
    def moved(expression: ast.expr, by: ast.operator) -> ast.expr:
        return ast.BinOp(expression, by, ast.Constant(1))

    if isinstance(node.slice, ast.Slice):
        for name, by in (("lower", ast.Add()), ("upper", ast.Sub())):
            bound = getattr(node.slice, name)
            if bound is not None and not isinstance(bound, ast.Constant):
                yield "bound", node.slice, name, moved(bound, by)
    elif isinstance(node.slice, ast.Name | ast.BinOp | ast.UnaryOp):
        yield "index", node, "slice", moved(node.slice, ast.Add())


def _calls(node: ast.Call) -> Iterator[tuple[str, Any, str, Any]]:
    name, attribute = (node.func, "id") if isinstance(node.func, ast.Name) else (node.func, "attr")
    called = getattr(name, attribute, None)
    if called in _CALLS:
        yield "min, max", name, attribute, _CALLS[called]
    elif called == "where" and len(node.args) == 3:
        yield "where swapped", node, "args", [node.args[0], node.args[2], node.args[1]]


def _shared(left: str, right: str) -> int:
    """How many characters are the same from the start on."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


def _head(statement: ast.stmt) -> str:
    """A statement's text, of one that has others inside only the part before them."""
    fields = dict(ast.iter_fields(statement))
    if isinstance(statement, ast.Try):
        return "try"
    if "body" in fields:
        fields |= {"body": [ast.Pass()], **({"orelse": []} if "orelse" in fields else {})}
        statement = ast.fix_missing_locations(type(statement)(**fields))
    return " ".join(ast.unparse(statement).removesuffix("pass").split())
