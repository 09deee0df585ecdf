"""`plegate advise`: which mode and depth for this disk and this table, in words and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import JsonFile, Model

if TYPE_CHECKING:
    from harness.measure.advise import Advice

SCHEMA = "plegate.advise/2"


def advise(
    model: Model,
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, metavar="N", help="Measure the io_uring modes with this queue depth."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, metavar="N", help="Which random rows. Default: others every time."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure this disk and this table in about a minute, and say which mode and depth to use.

    The device's own limit comes first: random reads past the page cache at several depths. Then every mode that is
    worth considering gathers random rows, cold (the table's own bytes are evicted, and that is verified) and warm, and
    one decode step's rows. From that follow the fastest prefill the disk allows and the mode to choose.

    Works for every GGUF file with a `per_layer_token_embd.weight`. Other programs that use the disk or the processor
    meanwhile show in the numbers: run it again when in doubt.

    Example:

        plegate advise model.gguf

    Exit codes: 0 advised, 2 bad input, 3 residency cannot be verified here, or the table could not be made cold.
    """
    import os

    from fast.rows import locate_table
    from harness.atomic import write_json
    from harness.commands.outputs import check_outputs
    from harness.commands.progress import stages
    from harness.environment import environment
    from harness.measure.advise import advise_table, rows_per_token_of
    from harness.measure.machine import storage_facts
    from model_file.gguf_file import open_gguf

    check_outputs({"--json": json_file}, [model])
    with open_gguf(model) as opened:
        table = locate_table(opened)
        rows_per_token = rows_per_token_of(opened.metadata, opened.architecture)
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    with stages() as progress:
        advice = advise_table(model, table, rows_per_token, depth, seed, progress)
    where = storage_facts(table.segments[0].path)
    disk = f"{where['file_system'] or 'an unknown file system'} on {where['disk'] or 'an unknown disk'}"
    _print(advice, f"{model}: {table.rows:,} rows of {table.row_bytes} bytes ({table.type.name}), {disk}")
    if json_file is not None:
        content = {"schema": SCHEMA, "model": str(model), "storage": where, "seed": seed, **advice.as_json()}
        write_json(json_file, content | {"environment": environment()})
    raise typer.Exit(3 if advice.cold_problem else 0)


def _print(advice: Advice, title: str) -> None:
    from harness.measure.advise import sentences
    from harness.pages.numbers import percent, seconds, short
    from harness.pages.tables import Column, print_line, print_table, text_column

    print_line(title)
    if advice.device:
        rows = [[str(depth), short(rate)] for depth, rate in advice.device.items()]
        print_table([Column("in flight"), Column("4 KiB reads/s")], rows, title="device")
    columns = [
        text_column("mode"),
        Column("cold\nrows/s"),
        Column("of the\ndevice", 2),
        Column("warm\nrows/s", 3),
        Column("decode\ncold", 1),
        Column("decode\nwarm", 0),
    ]
    limit = advice.limit if advice.limit_problem is None else None
    cells = [
        [
            mode.mode,
            short(mode.cold),
            percent(mode.cold / limit if mode.cold and limit else None),
            short(mode.warm),
            seconds(mode.decode_cold_s),
            seconds(mode.decode_warm_s),
        ]
        for mode in advice.modes
    ]
    print_table(columns, cells, title="rows")
    for sentence in sentences(advice):
        print_line(sentence)
    print_line(f"measured in {seconds(advice.seconds)}")
