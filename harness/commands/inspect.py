"""`plegate inspect`: what a file says of itself, from its header alone."""

from __future__ import annotations

from typing import Any

from harness.commands.options import JsonFile, Model


def inspect(model: Model, json_file: JsonFile = None) -> None:
    """Say what a model file holds: the table, the hash, the memory it needs. Reads headers only, any size in a second.

    Works for every architecture; for a qwen4exp file the whole configuration and every tensor's name and shape are
    checked too, and all problems are listed together (exit 2).
    """
    from rich.console import Console
    from rich.table import Table

    from harness.atomic import write_json
    from harness.commands.outputs import check_outputs
    from harness.inspection import describe
    from model_file.errors import InputError
    from model_file.gguf_file import open_gguf

    check_outputs({"--json": json_file}, [model])
    with open_gguf(model) as opened:
        facts, problems = describe(opened)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name.removesuffix("_bytes").replace("_", " "), _readable(name, value))
    Console(markup=False, highlight=False).print(table)
    if json_file is not None:
        write_json(json_file, {"schema": "plegate.inspect/1", **facts, "problems": problems})
    if problems:
        raise InputError("\n".join(problems))


def _readable(name: str, value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(str(item) for item in value)
    if name.endswith("_bytes") and isinstance(value, int):
        unit, size = ("GiB", 2**30) if value >= 2**30 else ("MiB", 2**20)
        return f"{value:,} bytes ({value / size:.2f} {unit})" if value >= 2**20 else f"{value:,} bytes"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
