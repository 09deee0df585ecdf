"""Numbers are read strictly, on the command line and in files: what Python takes and nobody means is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cases.prompts import read_token_file
from harness.cli import app
from harness.inputs import LARGEST, byte_count, decimal_number, whole_number
from model_file.errors import InputError

ODD = ["1_0", "+1", " 1", "1 ", "1\n", "\u0661", "\u00b2", "0x10", "1e2", "1.0", "", "-", "--1", "1,000", "9" * 41]


@given(st.integers(-LARGEST, LARGEST))
def test_whole_numbers_are_read(value: int) -> None:
    assert whole_number(str(value)) == value


@pytest.mark.parametrize("text", ODD)
def test_odd_whole_numbers_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--rows: found .*, expected a whole number from 0 to 9$"):
        whole_number(text, "--rows", 0, 9)


@pytest.mark.parametrize(
    ("text", "limits"), [("-1", (0, 9)), ("10", (0, 9)), (str(LARGEST + 1), ()), ("1" + "0" * 20, ())]
)
def test_whole_numbers_have_limits(text: str, limits: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"found '{text}', expected a whole number"):
        whole_number(text, "", *limits)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimal_numbers_are_read(value: float) -> None:
    assert decimal_number(repr(value)) == value


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1e999", "1_0.5", "+1.5", "\u0661.5", ".5", "1.", " 1", "", "1e"]
)
def test_odd_decimal_numbers_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a number such as 1\.5"):
        decimal_number(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("4KiB", 4096), ("1.5g", 3 << 29), ("2 MB", 2 << 20), ("1 t", 1 << 40), ("7b", 7)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize(
    "text", ["0", "0.4", "-1", "4XiB", "4GiBs", "1_0", "\u0664GiB", "", "inf", "9" * 20 + "g", "4  g"]
)
def test_odd_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--memory-limit: found .*, expected a number of bytes"):
        byte_count(text, "--memory-limit")


@pytest.mark.parametrize(
    "text", ["5 1_0", "5 +1", "5 \u0661", "[5, 1_0]", "[5, +1]", "[5, \u0661]", "[5, true]", "[5, 1.0]"]
)
def test_token_files_take_plain_numbers_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"token 1 is |not valid JSON"):
        read_token_file(tmp_path / "ids")


def numbers_of_commands() -> Iterator[tuple[str, str]]:
    """Every option of every command that takes a number, found by what typer says of it."""

    def of(name: list[str], command: Any) -> Iterator[tuple[str, str]]:
        for inner, found in getattr(command, "commands", {}).items():
            yield from of([*name, inner], found)
        for option in command.params:
            if option.metavar in ("N", "X", "W", "TOKENS") or option.opts[-1] == "--least-unique":
                yield " ".join(name), option.opts[0]

    return of([], typer.main.get_command(app))


NUMBERS = list(numbers_of_commands())


def test_numbers_of_commands_are_found() -> None:
    assert {("rows", "--rows"), ("bench", "--depth"), ("synth", "--gib"), ("run", "--context")} <= set(NUMBERS)


@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_commands_refuse_odd_numbers(command: str, option: str) -> None:
    for text in ("1_0", "\u0661", "nan", "1" + "0" * 400):
        done = CliRunner().invoke(app, [*command.split(), f"{option}={text}", "x", "x"], env={"COLUMNS": "1000"})
        assert done.exit_code == 2, done.output
        assert f"Invalid value for '{option}'" in done.output and "expected a" in done.output, done.output
