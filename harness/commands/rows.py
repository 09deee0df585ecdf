"""`plegate rows`: the rows gate alone, for any GGUF with a lazily read table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import JsonFile, Model, Modes, TextFiles, Texts, TokenFiles

if TYPE_CHECKING:
    from harness.gate.table import ModeRows, RowsResult

SCHEMA = "plegate.rows/1"


def rows(
    model: Model,
    mode: Modes = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            readable=False,
            help="What is right comes from FILE, the original of MODEL or another copy. Left out: from MODEL itself, "
            "by plain positional reads. With FILE, both tables are also compared whole, from the first byte to the "
            "last.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="Random rows, first and last row and repeats included.")
    ] = 2048,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Which random rows.")] = 1,
    prompt: Texts = None,
    prompt_file: TextFiles = None,
    tokens: TokenFiles = None,
    cold: Annotated[
        bool | None,
        typer.Option(
            "--cold/--no-cold",
            help="Insist on a verified cold start for every mode, or leave it out. Neither: tried, and insisted on "
            "for tables of 64 MiB and more.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Judge the rows alone: every mode, cold and warm, packed and as float32, against plain positional reads.

    Works for every GGUF file with a `per_layer_token_embd.weight`: qwen4exp (rows by the hash), gemma3n and gemma4
    (row = token id). Only the header and the table are read. Each mode gathers everything twice; one that does not
    agree with itself is `unsteady`.

    The table shows for the random rows: rate cold and warm, over-read (bytes the device read over bytes of the pages
    needed), read calls, page faults of the gathering thread, and reads in flight on average.

    Examples:

        plegate rows model.gguf

        plegate rows copy.gguf --against original.gguf

        plegate rows model.gguf --mode uring --mode on --rows 32768

    Exit codes: 0 all equal, 1 a difference (the first row is named: prompt, token, head, row, shard, offset, both
    bytes), 2 bad input, 3 a mode or a cold measurement could not be run here.
    """
    from fast.rows import RowSettings, locate_table
    from harness.atomic import write_json
    from harness.cases.case import parse_modes
    from harness.commands.outputs import check_outputs
    from harness.commands.progress import stages
    from harness.gate.batches import choose_batches
    from harness.gate.table import judge_rows
    from model_file.gguf_file import open_gguf

    sources = parse_modes(mode or [])
    inputs = [model, against, *(source.path for source in sources), *(prompt_file or []), *(tokens or [])]
    check_outputs({"--json": json_file}, inputs)
    with stages() as tell:
        with open_gguf(model) as opened:
            table = locate_table(opened)
            batches, notes = choose_batches(
                opened, model, table, count, seed, prompt or [], prompt_file or [], tokens or []
            )
        result = judge_rows(model, batches, sources, RowSettings(), against, cold, tell)
    result.seed, result.notes = seed, notes
    _print(result)
    if json_file is not None:
        write_json(json_file, as_json(result))
    raise typer.Exit(result.exit_code)


def _print(result: RowsResult) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.text import Text

    from harness.gate.verdicts import EQUAL, STYLES
    from harness.pages.fitted_table import Column, print_fitted

    console = Console(highlight=False)
    table = result.table
    compared = ", ".join(f"{batch.name} {batch.ids.size:,}" for batch in result.batches)
    console.print(
        Text(
            f"{result.model}: {result.architecture}, {table.rows:,} rows of {table.row_bytes} bytes "
            f"({table.type.name}, {_size(table.size_bytes)})\nrows compared: {compared}"
        )
    )
    for note in result.notes:
        console.print(Text(note))
    columns = [
        Column("mode", justify="left"),
        Column("cold\nrows/s", 5),
        Column("warm\nrows/s", 4),
        Column("over-\nread", 3),
        Column("calls", 1),
        Column("major\nfaults", 2),
        Column("in\nflight", 0),
        Column("verdict", justify="left"),
    ]
    cells: list[list[str | Text]] = [
        [*_cells(mode), Text(mode.verdict, style=STYLES[mode.verdict])] for mode in result.modes
    ]
    print_fitted(console, columns, cells, SIMPLE_HEAD, pad_edge=False)
    for mode in result.modes:
        for line in stories(mode):
            console.print(Text(f"{mode.name}: {line}"))
    equal = sum(mode.verdict == EQUAL for mode in result.modes)
    against = f" as in {result.against}" if result.against else ""
    console.print(Text(f"{equal} of {len(result.modes)} modes give the rows{against} byte for byte; {result.coverage}"))


def _cells(mode: ModeRows) -> list[str]:
    cold, warm = mode.counters.get("cold"), mode.counters.get("warm")
    if warm is None:  # nothing could be read in this mode
        return [mode.name, *["-"] * 6]
    shown = cold or warm
    pages, device = shown["pages_unique"], shown["bytes_device"]
    concurrency = shown["effective_concurrency"]
    return [
        mode.name,
        rate(cold["rows_requested"] / cold["wall_s"]) if cold else "-",
        rate(warm["rows_requested"] / warm["wall_s"]),
        f"{device / (pages * 4096):.1f}x" if cold and device is not None else "-",
        f"{shown['read_calls']:,}",
        f"{shown['major_faults']:,}",
        f"{concurrency:.0f}" if concurrency else "-",
    ]


def rate(per_s: float) -> str:
    """A rate in three digits: 1.23 M, 45.6 k, 789."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if per_s >= limit:
            return f"{per_s / limit:.3g}{unit}" if per_s < 1000 * limit else f"{per_s / limit:,.0f}{unit}"
    return f"{per_s:.0f}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.2f} MiB"


def stories(mode: ModeRows) -> list[str]:
    """What a person must know of a mode beside its line in the table."""
    lines = [mode.control] if mode.control else []
    if mode.difference:
        lines.append(mode.difference.story())
        lines.append(f"row {mode.difference.row}: found    {mode.difference.found_row}")
        lines.append(f"row {mode.difference.row}: expected {mode.difference.expected_row}")
    if mode.not_run:
        lines.append(mode.not_run)
    if mode.fallback_reason:
        lines.append(f"ran as {mode.effective}: {mode.fallback_reason}")
    if mode.not_cold and mode.cold_required:
        lines.append(f"not cold: {mode.not_cold}")
    return lines


def as_json(result: RowsResult) -> dict[str, Any]:
    """The result as plain values."""
    from harness.environment import environment
    from harness.gate.compare import as_json as difference_as_json

    table = result.table
    return {
        "schema": SCHEMA,
        "exit_code": result.exit_code,
        "model": result.model,
        "against": result.against,
        "architecture": result.architecture,
        "table": {
            "type": table.type.name,
            "rows": table.rows,
            "row_width": table.row_width,
            "row_bytes": table.row_bytes,
            "shards": [segment.path.name for segment in table.segments],
        },
        "seed": result.seed,
        "batches": [
            {"name": b.name, "rows": int(b.ids.size), "unique": len(set(b.ids.tolist())), "rows_per_token": b.heads}
            for b in result.batches
        ],
        "notes": result.notes,
        "rows_sampled": result.rows_sampled,
        "whole_table": result.whole.as_json() if result.whole else None,
        "modes": [
            {
                "name": mode.name,
                "verdict": mode.verdict,
                "effective_mode": mode.effective,
                "fallback_reason": mode.fallback_reason,
                "not_run": mode.not_run,
                "rows_compared": mode.rows_compared,
                "difference": difference_as_json(mode.difference),
                "control": mode.control,
                "not_cold": mode.not_cold,
                "counters": mode.counters,
            }
            for mode in result.modes
        ],
        "environment": environment(),
    }
