"""The names that a worker needs of the tree that it measures, which may be that of another commit.

Before the rebuilding (345a4d3) the same things had other places: `fast.engine` was a file, and what both sides share
was a part of `reference`. Everything that knows so is here; it can go when nobody compares with those commits.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fast

ROOT = Path(str(fast.__file__)).parents[1]


def _module(*names: str) -> Any:
    """The first of these modules that is a file of this tree; another tree's may be importable beside it."""
    for name in names:
        place = ROOT.joinpath(*name.split("."))
        if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file():
            return importlib.import_module(name)
    raise ModuleNotFoundError(f"this commit has none of {', '.join(names)}: it cannot be measured")


rows = _module("fast.rows")
residency = _module("fast.rows.residency")
open_read_only = _module("fast.rows.table").open_read_only
count_pages = _module("fast.rows.counters").count_pages


def open_model(path: Path) -> Any:
    """The GGUF file, opened."""
    return _module("model_file.gguf_file", "reference.gguf_file").open_gguf(path)


def config_of(file: Any) -> Any:
    """The architecture of the file."""
    return _module("model_file.config", "reference.config").config_from(file)


def row_settings(chosen: dict[str, Any]) -> Any:
    """Settings of a reader; every counter is on, where the tree lets them be chosen."""
    known = {field.name for field in fields(rows.RowSettings)}
    _check("row reader", chosen, known)
    return rows.RowSettings(**({"metering": "full"} if "metering" in known else {}) | chosen)


def make_engine(file: Any, reader: Any, chosen: dict[str, Any]) -> Any:
    """The fast engine with these settings; what is not named is as that tree has it."""
    settings = _module("fast.engine.settings", "fast.settings").EngineSettings
    known = {field.name for field in fields(settings)}
    _check("engine", chosen, known)
    typed = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
    typed["cache_dir"] = Path(str(typed["cache_dir"]))
    return _module("fast.engine.engine", "fast.engine").FastEngine(file, reader, settings(**typed))


def measure_early_part(engine: Any) -> None:
    """Let the engine note how long the layers take that a decode computes while its rows are read."""
    if hasattr(engine, "step"):
        engine.step.measure_early_part()
    else:
        engine.early_s = _module("fast.decode").measure_early_part(engine)


def device_probe(table: Any) -> Any:
    """What reads random pages past the page cache."""
    return _module("fast.rows.probe").DeviceProbe(table)


def _check(what: str, chosen: dict[str, Any], known: set[str]) -> None:
    missing = sorted(set(chosen) - known)
    if missing:
        raise ValueError(f"the {what} of this commit has no setting {missing[0]}, expected one of {sorted(known)}")


def row_ids(config: Any, fed: Sequence[int], before: Sequence[int]) -> Any:
    """Table rows of the tokens by the reference's hash, in order, duplicates included. Shapes: int64 [t * n]."""
    constants, ngram = config.ple.hash, _module("reference.ngram")
    keep = constants.order - 1
    fresh = constants.fresh_history() if hasattr(constants, "fresh_history") else ngram.fresh_history(constants)
    history = np.concatenate([fresh, np.asarray(before[-keep:] if keep else [], np.uint64)])[-keep:] if keep else fresh
    of_tree = constants.row_ids if hasattr(constants, "row_ids") else partial(ngram.row_ids, constants)
    return of_tree(fed, history).astype(np.int64).reshape(-1)
