"""The stand-in server as a program that an arm can name, and looks at what is left running."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "stand_in.py"


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program; its answers are kept for the session."""
    folder = tmp_path_factory.mktemp("stand-in")
    program = write_program(folder)
    kept = folder / "answers"
    kept.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLEGATE_STAND_IN_CACHE", str(kept))
        yield program


def write_program(folder: Path) -> Path:
    """A program in the folder that is the stand-in server."""
    program = folder / "server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    program.chmod(0o755)
    return program


def processes_with(text: str) -> list[int]:
    """Processes whose command line holds the text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if text in line and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found
