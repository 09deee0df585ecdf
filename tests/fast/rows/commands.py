"""`plegate rows` and `plegate advise` as a command line of their own, and files for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import typer
from typer.testing import CliRunner

from fast.rows import Table, locate_table
from harness import cli
from harness.commands.advise import advise
from harness.commands.rows import rows
from model_file.gguf_file import open_gguf

app = typer.Typer(cls=cli._ExitCodes, pretty_exceptions_enable=False)
app.command()(rows)
app.command()(advise)
runner = CliRunner()


def run(*arguments: str | Path) -> Any:
    return runner.invoke(app, [str(argument) for argument in arguments])


def table_of(path: Path) -> Table:
    with open_gguf(path) as opened:
        return locate_table(opened)


def gemma(path: Path, table_rows: int = 4000) -> Path:
    """A made file of another architecture: nothing but a table, row = token id."""
    writer = gguf.GGUFWriter(path, "gemma4")
    values = np.random.default_rng(3).standard_normal((table_rows, 256)).astype(np.float32)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("per_layer_token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
