"""Mutants by rule: what is enumerated, what is left out, that each is another program, and that the choice is fixed."""

from __future__ import annotations

import ast
import textwrap

import pytest

from harness.faults.child import ROOT
from harness.faults.mutants import NO_ANSWERS, mutants_of, mutated, mutated_files, sample

FILE = "fast/rows/some.py"


def _changed(source: str) -> set[str]:
    return {mutant.changed for mutant in mutants_of(FILE, textwrap.dedent(source))}


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a + b", {"x = a - b"}),
        ("x = a * b // c", {"x = a // b // c", "x = a * b * c"}),
        ("x = a / b % c", {"x = a * b % c", "x = a / b + c"}),
        ("x = a << b & c", {"x = a >> b & c", "x = a << b | c"}),
        ("x ^= a", {"x |= a"}),
        ("x = a < b <= c", {"x = a <= b <= c", "x = a < b < c"}),
        ("x = a > b", {"x = a >= b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a is None", {"x = a is not None"}),
        ("x = a in b", {"x = a not in b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = not not a"}),
        ("x = True", {"x = False"}),
        ("x = 5", {"x = 6", "x = 4"}),
        ("x = 1.5", {"x = 3.0"}),
        ("x = 0.0", {"x = 1.0"}),
        ("x = -a", {"x = +a"}),
        ("x = a[b:c]", {"x = a[b + 1:c]", "x = a[b:c - 1]"}),
        ("x = a[b]", {"x = a[b + 1]"}),
        ("x = a[2:]", {"x = a[3:]", "x = a[1:]"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = jnp.maximum(a, b)", {"x = jnp.minimum(a, b)"}),
        ("x = jnp.where(a, b, c)", {"x = jnp.where(a, c, b)"}),
        ("while a < b:\n    f()", {"while a <= b:"}),
        ("for i in range(a - b):\n    f()", {"for i in range(a + b):"}),
        ("def f(a, b=True):\n    pass", {"def f(a, b=False):"}),
    ],
)
def test_rules(source: str, changed: set[str]) -> None:
    assert _changed(source) == changed


@pytest.mark.parametrize(
    "source",
    [
        '"""Docs 1 + 1."""',
        "from a import b",
        '__all__ = ["a"]',
        "x: Float[Array, 3]",
        'def f(x: Array[3]) -> Array[4]:\n    "Doc."',
        'x = f"{a + 1}"',
        'x = "a" + b',
        "raise ValueError(1 + 2)",
        "assert a < b, 3",
        "warnings.warn(notice, stacklevel=5)",
        "x = zip(a, b, strict=True)",
        "counters.copy_s += now - started",
        "stats.calls += 1",
        "x = GatherCounters(batches=1, rows=a + b)",
        "spent_s = done - begun",
    ],
)
def test_what_cannot_matter_is_left_out(source: str) -> None:
    assert _changed(source) == set()


def test_what_makes_a_message_is_left_out_and_what_is_refused_is_not() -> None:
    source = "if a < b:\n    bad = a - 1\n    raise ValueError(bad)\nelse:\n    x = a - 1"
    assert _changed(source) == {"if a <= b:", "x = a + 1", "x = a - 2", "x = a - 0"}


def test_equal_statements_are_told_apart_by_number_and_by_what_they_stand_in() -> None:
    source = "def f():\n    x = a + b\n    x = a + b\ndef g():\n    x = a + b"
    found = mutants_of(FILE, source)
    assert [(mutant.where, mutant.number) for mutant in found] == [("f", 0), ("f", 1), ("g", 0)]
    assert mutated(source, found[1]).count("a - b") == 1
    assert len({mutant.text for mutant in found}) == 3


def test_a_change_is_shown_with_a_little_around_it() -> None:
    mutant = next(m for m in mutants_of(FILE, "def f():\n    x = [" + "'a', " * 40 + "b + 1" + ", 'c'" * 40 + "]"))
    assert mutant.shown.startswith("fast/rows/some.py:2 f: ")
    assert "'a', b + 1, 'c'" in mutant.shown and "'a', b - 1, 'c'" in mutant.shown
    assert len(mutant.shown) < 300
    short = mutants_of(FILE, "x = a + b")[0]
    assert short.shown == "fast/rows/some.py:1 : x = a + b  ->  x = a - b"


def test_every_mutant_of_a_file_is_another_program_and_leaves_the_rest_alone() -> None:
    source = (ROOT / "fast/rows/cache.py").read_text(encoding="utf-8")
    whole = ast.unparse(ast.parse(source))
    found = mutants_of("fast/rows/cache.py", source)
    assert len(found) > 40
    for mutant in found[::7]:
        text = mutated(source, mutant)
        assert text != whole
        compile(text, mutant.file, "exec")
        assert 1 <= mutant.line <= mutant.last_line <= len(source.splitlines())


def test_a_mutant_that_is_not_there_any_more_is_no_other_one() -> None:
    mutant = mutants_of(FILE, "x = a + b")[0]
    with pytest.raises(KeyError):
        mutated("x = a * b", mutant)


def test_the_sample_has_every_file_and_is_fixed() -> None:
    found = [mutant for file in mutated_files() for mutant in mutants_of(file, (ROOT / file).read_text("utf-8"))]
    chosen = sample(found, 150, "seed")
    assert 150 <= len(chosen) <= 150 + len(mutated_files())
    assert {mutant.file for mutant in chosen} == {mutant.file for mutant in found}
    assert sample(list(reversed(found)), 150, "seed") == chosen
    assert sample(found, 150, "another") != chosen
    assert set(sample(found, 100, "seed")) <= set(chosen)


def test_an_edit_elsewhere_in_a_file_leaves_the_choice_as_it_was() -> None:
    before = "def f():\n" + "".join(f"    x{i} = a + {i}\n" for i in range(40))
    after = "# a comment\ny = 'new'\n" + before
    first, second = (sample(mutants_of(FILE, source), 10, "seed") for source in (before, after))
    assert [mutant.text for mutant in first] == [mutant.text for mutant in second]


def test_every_file_of_fast_is_mutated_or_said_why_not() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fast").rglob("*.py")}
    assert set(mutated_files()) | set(NO_ANSWERS) == files
    assert all(NO_ANSWERS.values())
