"""`plegate rows`: the rows gate alone, for any GGUF with a lazily read table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import JsonFile, Model, Modes, TextFiles, Texts, TokenFiles


def rows(
    model: Model,
    mode: Modes = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            readable=False,
            help="What is right comes from FILE, the original of MODEL or another copy, and both tables are compared "
            "whole, from the first byte to the last. Default: MODEL itself, by plain positional reads.",
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
            help="Require a verified cold start for every mode, or leave it out. Default: tried, and required for "
            "tables of 64 MiB and more.",
            show_default=False,
        ),
    ] = None,
    scan: Annotated[
        bool,
        typer.Option("--scan", help="Read the whole table too: rows with NaN or infinity, rows of zeros, holes."),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Judge the rows alone: every mode, cold and warm, packed and as float32, against plain positional reads.

    Works for every GGUF file with a `per_layer_token_embd.weight`: qwen4exp (rows by the hash), gemma3n and gemma4
    (row = token id). Its type may be any; one that nothing here unpacks is compared as bytes alone. Only the header and
    the table are read. Each mode gathers everything twice; one that does not agree with itself is `unsteady`.

    The table shows for the random rows: rate cold and warm, over-read (bytes the device read over bytes of the pages
    needed), read calls, page faults of the gathering thread, and reads in flight on average.

    Examples:

        plegate rows model.gguf

        plegate rows copy.gguf --against original.gguf

        plegate rows model.gguf --mode uring --mode on --rows 32768

        plegate rows model.gguf --mode mmap --scan

    Exit codes: 0 all equal, 1 a difference (the first row is named: prompt, token, head, row, shard, offset, both
    bytes), 2 bad input, or --scan found NaN, infinity or bytes never written (rows of zeros are only told), 3 a mode or
    a cold measurement could not be run here, or a file changed meanwhile.
    """
    from fast.rows import RowSettings, locate_table
    from harness.cases.case import parse_modes
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.gate.batches import choose_batches
    from harness.gate.rows_only import judge_rows
    from harness.pages.rows_text import print_rows, rows_as_json
    from model_file.gguf_file import open_gguf

    sources = parse_modes(mode or [])
    inputs = [model, against, *(source.path for source in sources), *(prompt_file or []), *(tokens or [])]
    write = outputs({"--json": json_file}, inputs)
    with stages() as report:
        with open_gguf(model) as opened:
            table = locate_table(opened)
            batches, notes = choose_batches(
                opened, model, table, count, seed, prompt or [], prompt_file or [], tokens or []
            )
        result = judge_rows(model, batches, sources, RowSettings(metering="full"), against, cold, report, scan)
    result.seed, result.notes = seed, [*notes, *result.notes]
    print_rows(result)
    write({"--json": lambda: rows_as_json(result)})
    raise typer.Exit(result.exit_code)
