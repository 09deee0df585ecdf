"""The engines by name. Adding one is a file with a function `load(model, reader, settings)`, and a line here."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

from model_file.errors import InputError

if TYPE_CHECKING:
    from fast.engine.settings import EngineSettings
    from fast.rows import RowReader
    from harness.engines.protocol import Engine
    from model_file.gguf_file import GgufFile


class EngineName(StrEnum):
    """Each engine, by the name of its module, which is imported when it is asked for: `--help` needs none of them."""

    fast = "fast"
    reference = "reference"
    transformers = "transformers"
    llama_server = "llama-server"


def load_engine(name: str, model: GgufFile, reader: RowReader, settings: EngineSettings) -> Engine:
    """An engine over an open model and an open reader of its table.

    Raises: InputError for another name, CannotRun for an engine that is not here.
    """
    if name not in list(EngineName):
        raise InputError(f"engine {name!r} does not exist, expected one of {', '.join(EngineName)}")
    engine: Engine = import_module(f"harness.engines.{EngineName(name).name}").load(model, reader, settings)
    return engine
