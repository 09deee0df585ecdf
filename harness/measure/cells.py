"""Workloads, arms and cells: the same objects drive `plegate bench`, `tests/bench` and the reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from fast.rows.settings import RowSettings
from model_file.errors import InputError

COLD, WARM = "cold", "warm"
STATES = (COLD, WARM)
KINDS = ("prefill", "decode", "gather")
MAX_TOKENS = 1 << 18  # the engine's longest context; of rows alone, millions for every repeat
TWIN = "#aa"  # what the name of the baseline's second run ends in
_ROW_SETTINGS = tuple(field.name for field in fields(RowSettings) if field.type == "int")
_ENGINE_SETTINGS = ("chunk", "overlap")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Workload:
    """Some tokens of work. kind: prefill (at once), decode (greedy, one by one) or gather (rows alone, no model)."""

    kind: str
    tokens: int

    @property
    def name(self) -> str:
        """How results spell it."""
        return f"{self.kind}{self.tokens}"


@dataclass(frozen=True)
class Arm:
    """One of the ways that are compared: a mode with settings, of this tree or of another commit.

    settings: pairs of name and value, of the row reader or of the engine. commit: the full id, None for this tree.
    """

    name: str
    mode: str
    settings: tuple[tuple[str, str], ...] = ()
    commit: str | None = None

    def row_settings(self) -> dict[str, Any]:
        """The settings that are the row reader's."""
        return {name: int(value) for name, value in self.settings if name in _ROW_SETTINGS}

    def engine_settings(self) -> dict[str, Any]:
        """The settings that are the engine's."""
        return {
            name: int(value) if name == "chunk" else value for name, value in self.settings if name in _ENGINE_SETTINGS
        }


@dataclass(frozen=True)
class Cell:
    """One measurement, made by one process. Units: depth in tokens before the workload."""

    arm: str
    state: str
    depth: int
    workload: Workload
    repeat: int

    @property
    def id(self) -> str:
        """Its name, and that of its result file."""
        return f"{self.group.id}.{self.arm}.r{self.repeat}"

    @property
    def group(self) -> Group:
        """The cells that it is compared with."""
        return Group(self.state, self.depth, self.workload)


@dataclass(frozen=True)
class Group:
    """What must be equal for two arms to be compared."""

    state: str
    depth: int
    workload: Workload

    @property
    def id(self) -> str:
        """Its name in files."""
        return f"{self.state}.d{self.depth}.{self.workload.name}"

    @property
    def title(self) -> str:
        """Its name in words."""
        return f"{self.state}, {self.workload.kind} of {self.workload.tokens}, depth {self.depth}"


def parse_workload(text: str) -> Workload:
    """`prefill:512`, `decode:128` or `gather:512`. Raises: InputError."""
    kind, _, count = text.partition(":")
    kind = {"pp": "prefill", "tg": "decode"}.get(kind, kind)
    if kind not in KINDS or not count.isdecimal() or not int(count):
        raise InputError(
            f"--workload {text}: expected prefill:N, decode:N or gather:N with N tokens, such as prefill:512"
        )
    if int(count) > MAX_TOKENS:
        raise InputError(f"--workload {text}: expected at most {MAX_TOKENS:,} tokens: use fewer")
    return Workload(kind, int(count))


def parse_arm(text: str) -> Arm:
    """An arm from a mode, or from NAME=PART[,PART...], where a part is a mode, commit:REV or setting=value.

    The commit is not resolved here. Raises: InputError naming the part that is not understood.
    """
    from fast.rows import ALIASES, MODES, canonical_mode

    name, equals, rest = text.partition("=")
    if not equals:
        return Arm(canonical_mode(text), canonical_mode(text))
    if not _NAME.fullmatch(name):
        raise InputError(f"--arm {text}: {name!r} is no name for an arm, expected letters, digits and . _ + -")
    mode, commit, settings = "auto", None, []
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not equals and key in (*MODES, *ALIASES):
            mode = canonical_mode(key)
        elif key.startswith("commit:") and not equals and len(key) > len("commit:"):
            commit = key.removeprefix("commit:")
        elif equals and (
            (key in _ROW_SETTINGS and value.isdecimal())
            or (key == "chunk" and value.isdecimal() and 0 < int(value) <= MAX_TOKENS)
            or (key == "overlap" and value in ("auto", "always", "never"))
        ):
            settings.append((key, value))
        else:
            known = ", ".join((*_ROW_SETTINGS, *_ENGINE_SETTINGS))
            raise InputError(
                f"--arm {text}: {part!r} is not understood, expected a mode ({', '.join(MODES)}), commit:REV, or "
                f"setting=value with one of {known}"
            )
    arm = Arm(name, mode, tuple(sorted(settings)), commit)
    try:
        RowSettings(**arm.row_settings())
    except ValueError as error:
        raise InputError(f"--arm {text}: {error}") from None
    return arm


def parse_arms(texts: Sequence[str], baseline: str | None) -> list[Arm]:
    """The arms in order, the baseline first. Raises: InputError for a double name or an unknown baseline."""
    arms = [parse_arm(text) for text in texts]
    names = [arm.name for arm in arms]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InputError(f"--arm {double}: is there twice; the baseline's second run, for the noise, is added anyway")
    if baseline is not None:
        if baseline not in names:
            raise InputError(f"--baseline {baseline}: is no arm of this run, expected one of {', '.join(names)}")
        arms.sort(key=lambda arm: arm.name != baseline)
    return arms


def cell_as_dict(cell: Cell) -> dict[str, Any]:
    """The cell as plain values, for JSON."""
    return asdict(cell)


def cell_from(values: dict[str, Any]) -> Cell:
    """The inverse of `cell_as_dict`."""
    return Cell(**{**values, "workload": Workload(**values["workload"])})


def arm_as_dict(arm: Arm) -> dict[str, Any]:
    """The arm as plain values, for JSON."""
    return asdict(arm)


def arm_from(values: dict[str, Any]) -> Arm:
    """The inverse of `arm_as_dict`."""
    return Arm(**{**values, "settings": tuple((name, value) for name, value in values["settings"])})
