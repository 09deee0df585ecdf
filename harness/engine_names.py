"""The engines by name, apart from their code so that `--help` needs none of it."""

from __future__ import annotations

from enum import Enum


class EngineName(str, Enum):
    """The two engines of this project."""

    reference = "reference"
    fast = "fast"
