"""Options that several commands share, so that they are spelled and explained alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from harness.inputs import byte_count, decimal_number, whole_number
from model_file.errors import InputError

# readable=False: asked by typer, a file without permission would be refused without a word on what to do.
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        readable=False,
        help="A GGUF file, any shard of a split one, or a text file NAME.shards that names all shards in order, one a "
        "line. Opened read-only, always.",
    ),
]
DefaultModel = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        readable=False,
        help="A GGUF file, any shard of a split one, or a text file NAME.shards that names all shards in order, one a "
        "line. Default: the small model `nano`, made on first use and kept.",
    ),
]
DEFAULT_RESULTS = Path("results/bench")
"""Where `bench` writes and `report` reads."""
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the same result as JSON, whole or not at all.")
]
Modes = Annotated[
    list[str] | None,
    typer.Option(
        "--mode",
        metavar="MODE[@FILE]",
        help="A mode to judge, several times for several. Default: all of them. `MODE@FILE` reads that mode's rows "
        "from FILE, a copy of the table. llama.cpp's names off, on, auto and on-direct work too.",
    ),
]
Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar="MODE|NAME=...",
        help="Who answers; several times. The first is the baseline. NAME='PROGRAM ARGUMENT...' (a path, or "
        "`llama-server`), NAME=http://... of a running llama-server, NAME=openai:http://..., or a mode of ours with "
        "settings.",
    ),
]
ArmsFile = Annotated[
    Path | None,
    typer.Option(
        "--arms",
        metavar="FILE",
        readable=False,
        help="Arms as TOML: [[arm]] with name, and program, address or mode, arguments, environment.",
    ),
]
Common = Annotated[
    str, typer.Option("--common", metavar="ARGUMENTS", help="Arguments for the programs of all arms on this line.")
]
Texts = Annotated[
    list[str] | None, typer.Option("--prompt", metavar="TEXT", help="A prompt as text, several times for several.")
]
TextFiles = Annotated[
    list[Path] | None,
    typer.Option("--prompt-file", metavar="FILE", readable=False, help="A file that is one prompt, as UTF-8 text."),
]
TokenFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        readable=False,
        help="Prompts as token ids: a JSON list (or list of lists), or ids with white space between.",
    ),
]


def _folder(path: Path | None) -> Path | None:
    """Raises: InputError for what is no folder and can become none."""
    if path is not None:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise InputError(f"--cache-dir {path}: {there} is no folder, expected one: name another")
    return path


CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        envvar="PLEGATE_CACHE_DIR",
        callback=_folder,
        help="Where made models and compiled code are kept. Default: plegate/ in the user's cache folder.",
    ),
]


Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of its own that the process may take, such as 12GiB: matrices stay packed, and experts are read "
        "when they are chosen. Default: all weights as float32 in memory.",
    ),
]
ExpertMode = Annotated[
    str | None,
    typer.Option(
        "--expert-mode", metavar="MODE", help="With --memory: how experts are read. Default: as table rows are."
    ),
]


def memory_settings(memory: str | None, expert_mode: str | None) -> dict[str, Any]:
    """The engine settings of both options. Raises: InputError."""
    if memory is None and expert_mode is None:
        return {}
    if memory is None:
        raise InputError(f"--expert-mode {expert_mode}: expected --memory SIZE too, experts are in memory without it")
    from fast.rows import canonical_mode

    return {
        "memory_bytes": byte_count(memory, "--memory"),
        "expert_mode": None if expert_mode is None else canonical_mode(expert_mode),
    }


@dataclass(frozen=True)
class ArmChoice:
    """Which arms are judged, and how, as the command line says it."""

    arms: Sequence[str]
    file: Path | None
    common: str
    golden: Path | None
    states: Sequence[str]
    close_calls: bool
    restart: bool
    top: int
    diagnose: str


def strict(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with every number among its options read by `harness.inputs`: typer's own `int` takes `1_0`."""
    hints = get_type_hints(command, include_extras=True)
    for hint in hints.values():
        kinds = {int, float} & {part for each in get_args(hint)[:1] for part in (each, *_parts(each))}
        for option in getattr(hint, "__metadata__", ()) if kinds else ():
            option.parser = _reader(kinds.pop(), option.min, option.max)
    command.__annotations__ = hints
    return command


def _parts(kind: Any) -> list[Any]:
    """int of int | None, and of list[int] | None."""
    return [part for each in get_args(kind) for part in (each, *_parts(each))]


def _reader(kind: type, least: float | None, most: float | None) -> Callable[[Any], Any]:
    limits = {name: kind(limit) for name, limit in (("least", least), ("most", most)) if limit is not None}

    def read(given: Any) -> Any:
        try:  # a default is a number already
            return (
                (whole_number if kind is int else decimal_number)(given, **limits) if isinstance(given, str) else given
            )
        except InputError as error:
            raise typer.BadParameter(str(error)) from None

    return read
