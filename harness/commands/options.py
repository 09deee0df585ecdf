"""Options that several commands share, so that they are spelled and explained alike."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from harness.inputs import LARGEST, decimal_number, whole_number
from model_file.errors import InputError

# readable=False: asked by typer, a file without permission would be refused without a word on what to do.
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        readable=False,
        help="A GGUF file, or any shard of a split one. Opened read-only, always.",
        show_default=False,
    ),
]
DefaultModel = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        readable=False,
        help="A GGUF file, or any shard of a split one. Left out: the small model `nano`, made on first use and kept.",
        show_default=False,
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
        help="A mode to judge; give it several times. Left out: all of them. `MODE@FILE` reads that mode's rows "
        "from FILE, a copy of the table. llama.cpp's off, on, auto and on-direct are understood.",
    ),
]
Texts = Annotated[
    list[str] | None, typer.Option("--prompt", metavar="TEXT", help="A prompt as text; may be given several times.")
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
    def read(given: Any) -> Any:
        if not isinstance(given, str):
            return given  # a default
        try:
            if kind is int:
                return whole_number(
                    given, "", int(-LARGEST if least is None else least), int(LARGEST if most is None else most)
                )
            return decimal_number(given, "", -inf if least is None else least, inf if most is None else most)
        except InputError as error:
            raise typer.BadParameter(str(error)) from None

    return read
