"""The engines by name, apart from their code so that `--help` needs none of it."""

from __future__ import annotations

from enum import StrEnum


class EngineName(StrEnum):
    """The two engines of this project."""

    reference = "reference"
    fast = "fast"
