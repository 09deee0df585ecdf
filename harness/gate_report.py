"""The gate's result as a table for people and as JSON for machines."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fast.rows import MODES
from harness.compare import as_json
from harness.environment import environment
from harness.gate import DIFFERENT, EQUAL, NOT_RUN, UNSTEADY, GateResult, ModeVerdict

SCHEMA = "plegate.gate/1"
_STYLES = {EQUAL: "green", DIFFERENT: "bold red", UNSTEADY: "bold magenta", NOT_RUN: "yellow"}


def print_gate(result: GateResult) -> None:
    """One line for each mode, the story of every difference, and the verdict."""
    console = Console(highlight=False)
    table = Table(title=f"{result.model}\n{len(result.prompts)} prompts, engine {result.engine}", title_justify="left")
    for name, align in (("mode", "left"), ("rows compared", "right"), ("rows", "left"), ("tokens compared", "right")):
        table.add_column(name, justify=align)  # type: ignore[arg-type]
    for name in ("tokens", "control", "verdict"):
        table.add_column(name)
    for mode in result.modes:
        table.add_row(*_cells(mode))
    console.print(table)
    for mode in result.modes:
        for line in stories(mode):
            console.print(Text(f"{mode.name}: {line}"))
    console.print(Text(summary(result)))


def _cells(mode: ModeVerdict) -> list[str | Text]:
    same_tokens = "-" if not mode.tokens_compared else DIFFERENT if mode.token_difference else EQUAL
    return [
        mode.name,
        f"{mode.rows_compared:,}",
        DIFFERENT if mode.row_difference else EQUAL,
        f"{mode.tokens_compared:,}",
        same_tokens,
        "failed" if mode.control else "steady",
        Text(mode.verdict, style=_STYLES[mode.verdict]),
    ]


def stories(mode: ModeVerdict) -> list[str]:
    """What is to be said of a mode beyond its line in the table."""
    lines = [f"control: {line}" for line in mode.control]
    lines += [difference.story() for difference in (mode.row_difference, mode.token_difference) if difference]
    return lines + ([mode.not_run] if mode.not_run else [])


def summary(result: GateResult) -> str:
    """The verdict in one sentence."""
    count = {name: sum(mode.verdict == name for mode in result.modes) for name in (EQUAL, DIFFERENT, UNSTEADY, NOT_RUN)}
    if count[EQUAL] == len(result.modes):
        return f"verdict: equal. {count[EQUAL]} modes gave the same rows, byte for byte, and the same tokens."
    rest = ", ".join(f"{number} {name}" for name, number in count.items() if number and name != EQUAL)
    word = "different" if count[DIFFERENT] or count[UNSTEADY] else "incomplete"
    return f"verdict: {word}. {count[EQUAL]} of {len(result.modes)} modes equal, {rest}."


def gate_as_json(result: GateResult) -> dict[str, Any]:
    """The result as plain values; `schema` names the layout."""
    return {
        "schema": SCHEMA,
        "verdict": summary(result),
        "exit_code": result.exit_code,
        "model": result.model,
        "engine": result.engine,
        "generate": result.generate,
        "prompts": [asdict(prompt) for prompt in result.prompts],
        "modes": [
            {
                "mode": mode.name,
                "effective_mode": mode.effective,
                "verdict": mode.verdict,
                "rows_compared": mode.rows_compared,
                "tokens_compared": mode.tokens_compared,
                "row_difference": as_json(mode.row_difference),
                "token_difference": as_json(mode.token_difference),
                "control": mode.control,
                "not_run": mode.not_run,
                "counters": mode.counters,
            }
            for mode in result.modes
        ],
        "environment": environment(),
    }


def mode_list() -> None:
    """Print every registered mode with the first line of its documentation."""
    table = Table(box=None)
    table.add_column("mode", style="bold")
    table.add_column("how it reads")
    for name, reader in MODES.items():
        table.add_row(name, (inspect.getdoc(reader) or "").split("\n\n")[0])
    Console(highlight=False).print(table)
