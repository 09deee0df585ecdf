"""A fault: how it is planted, by which check it must be caught first, and which words must say where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from harness.answers.record import Golden


@dataclass
class Trial:
    """What a fault may change beside code: the modes that are run, and the goldens that are compared with."""

    case: str
    modes: list[str]
    golden: Golden
    scratch: Path
    rows_only: bool = False
    begin: Callable[[], None] = lambda: None  # called before every run: what a fault remembers must not reach the next


Plant = Callable[[Trial], None]


@dataclass(frozen=True)
class Fault:
    """A fault, and the proof expected of the gate.

    check: which check must name it first, "" for any. named: words that its message must contain. mode: what reads the
    rows. rows_only: no token is run, because the fault is in none. case: None where both `plegate gate` and its
    `--quick` form must find it, on their own models and cases.
    """

    name: str
    about: str
    check: str
    named: tuple[str, ...]
    plant: Plant
    case: str | None
    mode: str
    rows_only: bool


_REGISTERED: dict[str, Fault] = {}


def faults() -> dict[str, Fault]:
    """Every fault by name."""
    for module in ("row_plants", "plants", "gate_plants"):
        import_module(f"harness.faults.{module}")
    return dict(_REGISTERED)


def fault(
    check: str,
    *named: str,
    case: str | None = "tiny-quant",
    mode: str = "resident",
    rows_only: bool = False,
    name: str = "",
) -> Callable[[Plant], Plant]:
    """Register the function below as a fault: its name is the fault's, its docstring says what is wrong."""

    def register(plant: Plant) -> Plant:
        called = name or plant.__name__.replace("_", " ")
        _REGISTERED[called] = Fault(called, plant.__doc__ or "", check, named, plant, case, mode, rows_only)
        return plant

    return register
