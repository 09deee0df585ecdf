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
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens", metavar="FILE", help="Token ids: a JSON list (or list of lists), or ids with white space between."
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
