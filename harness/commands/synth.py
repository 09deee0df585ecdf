"""`plegate synth`: make a model file that is the same, byte for byte, on every machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.commands.options import JsonFile


class PresetName(StrEnum):
    """The presets, spelled here so that `--help` loads nothing; a test compares them with the maker's."""

    nano = "nano"
    pico = "pico"
    femto = "femto"
    table = "table"
    mini = "mini"
    flash = "flash"


class HeadPlace(StrEnum):
    """Likewise."""

    none = "none"
    inside = "inside"
    alone = "alone"


def synth(
    preset: Annotated[
        PresetName,
        typer.Argument(
            metavar="PRESET",
            help="`nano`: a whole small model, 222 MiB, what `plegate gate` uses by default. `pico`: the smallest "
            "whole model, 8 MiB. `femto`: what it has not, 2 MiB. `table`: Flash-Next's metadata, vocabulary size and "
            "hash with the table alone, of any size and type. `mini`: a whole model with Flash-Next's sizes per layer, "
            "4 layers, 8 experts, 834 MiB. `flash`: the same with all 512 experts and Flash-Next's table, packed as "
            "served files are, 8 layers, 43 GB; its table is a shard of its own.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: PRESET.gguf here.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers of `flash`, 4 to 48 (1.8 GB each). Default: 8.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Other weights and rows. Default: the preset's own seed.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Rows of the table; the hash's head sizes follow. Flash-Next has 320001536 (26.8 GiB in IQ4_NL). "
            "Default: 1000064 for nano, 1600000 for mini, 1 GiB for table, Flash-Next's for flash.",
        ),
    ] = None,
    gib: Annotated[float | None, typer.Option(metavar="X", help="The table's size in GiB, instead of --rows.")] = None,
    table_type: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="The table's number format: F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0, IQ4_NL (default), and Q6_K or "
            "IQ1_S where a row's width is a multiple of 256.",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="W", help="Values in a row, for `table` alone. Default: Flash-Next's 160.")
    ] = None,
    head: Annotated[
        HeadPlace,
        typer.Option(
            help="An MTP head (random too): `inside` the file, or `alone`, as a file for --mtp beside the same model."
        ),
    ] = HeadPlace.none,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Make a model to test with: random weights, a real vocabulary, the same bytes on every machine.

    The SHA-256 is printed, and compared with the one recorded for these options where there is one. llama.cpp loads
    `nano` and `mini` as they are, `flash` at least with `--no-repack` (on a CPU with AMX, b11434 crashes without it).
    Files are written whole or not at all. Of a large model, space and time are told first.

    Examples:

        plegate synth nano

        plegate synth nano --rows 40000000 --out big.gguf   (the same small model, a table larger than memory)

        plegate synth table --gib 6 --type Q8_0

        plegate synth flash --layers 4 --rows 1000000 --out flash.gguf   (7.8 GB)

    Exit codes: 0 made, 1 made but with another SHA-256 than recorded, 2 bad input, no space, no permission.
    """
    import shutil
    import time

    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.errors import EXIT_DIFFERENT, EXIT_EQUAL
    from harness.pages.numbers import count, seconds
    from harness.pages.tables import print_line, screen
    from harness.synth import Head, make_recipe, make_shards
    from harness.synth.making import recorded_digests
    from harness.synth.table import table_type as type_named

    kind = None if table_type is None else type_named(table_type)
    recipe = make_recipe(
        preset.value, seed=seed, layers=layers, rows=rows, gib=gib, table_kind=kind, row_width=width, head=Head(head)
    )
    path = Path(f"{preset.value}.gguf") if out is None else out
    write = outputs({"--json": json_file}, [path])
    started_s, size_bytes, done = time.perf_counter(), recipe.size_bytes, 0
    with stages() as report:

        def written(count_bytes: int) -> None:
            nonlocal done
            done += count_bytes
            report(f"writing {path.name}, MiB", done >> 20, size_bytes >> 20)

        def expected(wall_s: float) -> None:
            free = f"{count(shutil.disk_usage(path.parent).free)} are free"
            said = f"{recipe.label}: {count(size_bytes)} bytes, {free}; about {seconds(wall_s)} here"
            print_line(said, screen(stderr=True))

        digests = make_shards(recipe, path, force=force, on_bytes=written, on_estimate=expected)
    wall_s = time.perf_counter() - started_s
    files: list[dict[str, Any]] = [
        {"path": str(made), "size_bytes": made.stat().st_size, "sha256": digest, "sha256_recorded": known}
        for (made, digest), known in zip(digests.items(), recorded_digests(recipe), strict=True)
    ]
    print_line(f"{recipe.label}: {count(recipe.rows)} rows of {recipe.row_bytes} bytes in the table")
    for file in files:
        print_line(f"{file['path']}: {count(file['size_bytes'])} bytes")
        print_line(f"SHA-256 {file['sha256']}")
        print_line(_verdict(file["sha256"], file["sha256_recorded"]))
    print_line(f"made in {seconds(wall_s)}")
    facts = {
        "schema": "plegate.synth/1",
        **files[0],
        "size_bytes": size_bytes,
        "files": files,
        "seconds": wall_s,
        "preset": recipe.preset.name,
        "seed": recipe.seed,
        "rows": recipe.rows,
        "row_bytes": recipe.row_bytes,
        "type": recipe.table_kind.name,
    }
    write({"--json": lambda: facts})
    right = all(file["sha256_recorded"] in (None, file["sha256"]) for file in files)
    raise typer.Exit(EXIT_EQUAL if right else EXIT_DIFFERENT)


def _verdict(digest: str, recorded: str | None) -> str:
    if recorded is None:
        return "no digest is recorded for these options; making it again anywhere must give this one"
    if recorded == digest:
        return "equal to the recorded digest"
    return f"DIFFERENT from the recorded digest {recorded}: please report this with your CPU and NumPy version"
