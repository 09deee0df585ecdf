"""`plegate inspect`: what a file says of itself, from its header alone."""

from __future__ import annotations

from typing import Any

from harness.commands.options import JsonFile, Model


def inspect(model: Model, json_file: JsonFile = None) -> None:
    """Say what a model file holds: the table, the hash, the memory it needs. Only headers are read, whatever the size.

    Works for every architecture. Of a qwen4exp file the whole configuration and the name and shape of every tensor are
    checked too, and all problems are listed together.

    Examples:

        plegate inspect model-00001-of-00004.gguf

        plegate inspect model.gguf --json facts.json

    Exit codes: 0 nothing stops a run, 2 something does (each problem is named), or the file is no model.
    """
    from harness.commands.outputs import outputs
    from harness.inspection import describe
    from harness.pages.tables import print_table, text_column
    from model_file.errors import InputError
    from model_file.gguf_file import open_gguf

    write = outputs({"--json": json_file}, [model])
    with open_gguf(model) as opened:
        facts, problems = describe(opened)
    rows = [(name.removesuffix("_bytes").replace("_", " "), _readable(name, value)) for name, value in facts.items()]
    print_table([text_column(""), text_column("", wrap=True)], rows)
    write({"--json": lambda: {"schema": "plegate.inspect/1", **facts, "problems": problems}})
    if problems:
        raise InputError("\n".join(problems))


def _readable(name: str, value: Any) -> str:
    from harness.pages.numbers import count, exact_size

    if isinstance(value, list):
        return "\n".join(str(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return exact_size(value) if name.endswith("_bytes") else count(value)
