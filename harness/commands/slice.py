"""`plegate slice`: the first layers of a model as a model of its own, to try a change on in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import JsonFile, Model


def slice_(
    model: Model,
    layers: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Layers to keep, from the first on; the PLE layer must be among them."),
    ] = 4,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="What the shards are named after: FILE-0000N-of-0000M.gguf."),
    ] = Path("cut.gguf"),
    table_rows: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Keep about so many rows of the table; the hash's head sizes follow. Default: all."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace shards that are there.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Cut the first layers out of a model: it loads in seconds, and reads its table as the whole model does.

    Layer kinds, ratios, weights and hash stay as they are; draft heads are left out. The table gets a shard of its own:
    a hard link where the model's table has one, a reflink where the file system can (xfs, btrfs), else a copy. Models
    are opened read-only. plegate and llama.cpp open the slice by its first shard.

    Examples:

        plegate slice model-00001-of-00003.gguf --layers 4 --out cut.gguf

        plegate slice model.gguf --layers 4 --table-rows 1000000 --out small.gguf

    Exit codes: 0 made, 2 bad input, no space, no permission.
    """
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.pages.numbers import count
    from harness.pages.tables import print_line
    from harness.synth.slice import slice_model
    from model_file.gguf_file import open_gguf

    write = outputs({"--out": out, "--json": json_file}, [model])
    done = 0
    with stages() as report, open_gguf(model) as whole:

        def written(count_bytes: int) -> None:
            nonlocal done
            done += count_bytes
            report(f"writing {out.name}, MiB", done >> 20)

        made = slice_model(whole, layers, out, table_rows=table_rows, force=force, on_bytes=written)
    for path in made.paths:
        print_line(str(path))
    print_line(f"{made.layers} layers, {count(made.size_bytes)} bytes; the table is a {made.table}")
    facts = {
        "schema": "plegate.slice/1",
        "paths": [str(path) for path in made.paths],
        "layers": made.layers,
        "table": made.table,
        "size_bytes": made.size_bytes,
    }
    write({"--json": lambda: facts})
