"""Every axis that an annotation names is declared, once, in `reference.shapes`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reference.shapes import LETTERS, WORDS

ROOT = Path(__file__).parents[2]
ANNOTATION = re.compile(r'\b(?:Float|Int|Bool|UInt8)\[[\w.]+, "([^"]*)"\]')
SOURCES = sorted([*(ROOT / "reference").rglob("*.py"), *(ROOT / "fast").rglob("*.py")])


def undeclared(source: str) -> set[str]:
    """Terms of the annotations of a source that are no word and no product of up to three letters and digits."""
    shapes = ANNOTATION.findall(source)  # "*t" may be there or not
    terms = {term.removeprefix("*") for shape in shapes for term in shape.split() if term != "..."}
    parts = {part for term in terms for part in ([term] if term in WORDS else term.split("_and_"))}
    product = {part for part in parts if len(part) <= 3 and all(sign in LETTERS or sign.isdigit() for sign in part)}
    return parts - product - WORDS.keys()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_axis_is_declared(path: Path) -> None:
    assert undeclared(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x: Float[Array, "t q_and_T"]', {"T"}),
        ('x: Float[Array, "... mystery"]', {"mystery"}),
        ('x: Int[jax.Array, "t sd hk2 r_and_s row_bytes 1"]', set()),
    ],
)
def test_an_undeclared_axis_is_seen(source: str, found: set[str]) -> None:
    assert undeclared(source) == found
