"""Options that several commands share, so that they are spelled and explained alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A GGUF file, or any shard of a split one. Opened read-only, always.", show_default=False
    ),
]
DefaultModel = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, or any shard of a split one. Left out: the small model `nano`, made on first use and kept.",
        show_default=False,
    ),
]
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
    list[Path] | None, typer.Option("--prompt-file", metavar="FILE", help="A file that is one prompt, as UTF-8 text.")
]
TokenFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="Prompts as token ids: a JSON list (or list of lists), or ids with white space between.",
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        envvar="PLEGATE_CACHE_DIR",
        help="Where made models and compiled code are kept. Default: plegate/ in the user's cache folder.",
    ),
]
