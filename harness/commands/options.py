"""Options that several commands share, so that they are spelled and explained alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    from model_file.errors import InputError

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
