"""Workloads, groups and cells: the same objects drive `plegate bench`, its views and the reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from model_file.errors import InputError

COLD, WARM = "cold", "warm"
STATES = (COLD, WARM)
KINDS = ("prefill", "decode", "gather", "steps")
MAX_TOKENS = 1 << 18  # the engine's longest context; of rows alone, millions for every repeat


@dataclass(frozen=True)
class Workload:
    """Some tokens of work. kind: prefill (at once), decode (greedy, one by one), or rows alone, without the model:
    gather (those of all tokens at once) or steps (those of one token after the other, as a decode asks for them).
    """

    kind: str
    tokens: int

    @property
    def needs_model(self) -> bool:
        """Whether more than the table is needed."""
        return self.kind in ("prefill", "decode")

    @property
    def name(self) -> str:
        """How results spell it."""
        return f"{self.kind}{self.tokens}"


@dataclass(frozen=True)
class Group:
    """What must be equal for two arms to be compared. Units: depth in tokens before the workload."""

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


@dataclass(frozen=True)
class Cell:
    """One measurement. repeat: all arms have processes of their own in each. block: within the same processes."""

    arm: str
    state: str
    depth: int
    workload: Workload
    repeat: int
    block: int = 0

    @property
    def id(self) -> str:
        """Its name, and that of its result file."""
        return f"{self.group.id}.{self.arm}.r{self.repeat}.b{self.block}"

    @property
    def group(self) -> Group:
        """The cells that it is compared with."""
        return Group(self.state, self.depth, self.workload)


def parse_workload(text: str) -> Workload:
    """`prefill:512`, `decode:128`, `gather:512` or `steps:16`. Raises: InputError."""
    kind, _, count = text.partition(":")
    kind = {"pp": "prefill", "tg": "decode"}.get(kind, kind)
    if kind not in KINDS or not (count.isascii() and count.isdecimal()) or not int(count):
        raise InputError(
            f"--workload {text}: expected prefill:N, decode:N, gather:N or steps:N with N tokens, such as prefill:512"
        )
    if int(count) > MAX_TOKENS:
        raise InputError(f"--workload {text}: expected at most {MAX_TOKENS:,} tokens: use fewer")
    return Workload(kind, int(count))


def cell_as_dict(cell: Cell) -> dict[str, Any]:
    """The cell as plain values, for JSON."""
    return asdict(cell)


def cell_from(values: dict[str, Any]) -> Cell:
    """The inverse of `cell_as_dict`."""
    return Cell(**{**values, "workload": Workload(**values["workload"])})
