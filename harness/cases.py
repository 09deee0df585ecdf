"""What is run: prompts as token ids, how far they are continued, and through which modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fast.rows import MODES, canonical_mode
from reference.errors import InputError


@dataclass(frozen=True)
class TokenPrompt:
    """A prompt as ids, with the name that reports use for it."""

    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class ModeSource:
    """A mode, and the file it reads the table from; `path` None is the model's own."""

    mode: str
    path: Path | None = None

    @property
    def name(self) -> str:
        """How reports spell it."""
        return self.mode if self.path is None else f"{self.mode}@{self.path.name}"


def parse_modes(texts: Sequence[str]) -> list[ModeSource]:
    """`MODE` or `MODE@FILE`, each; none given means every registered mode.

    Raises: InputError for an unknown mode, naming those there are.
    """
    if not texts:
        return [ModeSource(mode) for mode in MODES]
    sources = []
    for text in texts:
        mode, _, path = text.partition("@")
        sources.append(ModeSource(canonical_mode(mode), Path(path) if path else None))
    if len({source.name for source in sources}) != len(sources):
        raise InputError(
            f"--mode: {', '.join(texts)}: a mode is named twice, expected each once: every mode is run twice anyway"
        )
    return sources
