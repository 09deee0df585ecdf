"""A fault: how it is planted, by which check it must be caught first, and which words must say where it is."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from importlib import import_module
from pathlib import Path

from harness.answers.record import Golden
from harness.faults.planting import rewrite


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
    rows_only: bool = False


_REGISTERED: dict[str, Fault] = {}


@cache
def faults() -> dict[str, Fault]:
    """Every fault by name: those of `faults.toml`, and those that a function plants."""
    for module in ("row_plants", "plants"):
        import_module(f"harness.faults.{module}")
    content = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    branches = {f"branch: {name}": ("", (), partial(_change, [flip])) for name, flip in content["branches"].items()}
    found = {
        name: Fault(name, f"in a compiled program: {name}", *rest, None, "auto") for name, rest in branches.items()
    }
    for one in content["fault"]:
        case = None if one.get("in_both_forms") else one.get("case", "tiny-quant")
        plant, mode = partial(_change, one["change"]), one.get("mode", "resident")
        found[one["name"]] = Fault(
            one["name"], one["about"], one["check"], (*one["named"],), plant, case, mode, one.get("rows_only", False)
        )
    return {**_REGISTERED, **found}


def _change(changes: Sequence[Sequence[str]], _: Trial) -> None:
    for module, function, old, new in changes:
        *inside, name = function.split(".")
        rewrite(reduce(getattr, inside, import_module(module)), name, old, new)


def fault(
    check: str,
    *named: str,
    case: str | None = "tiny-quant",
    mode: str = "resident",
    rows_only: bool = False,
) -> Callable[[Plant], Plant]:
    """Register the function below as a fault: its name is the fault's, its docstring says what is wrong."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", " ")
        _REGISTERED[name] = Fault(name, plant.__doc__ or "", check, named, plant, case, mode, rows_only)
        return plant

    return register
