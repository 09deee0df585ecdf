"""What is run: prompts as token ids, how far they are continued, through which modes, and how they are judged.

One `Case` drives the gate, the goldens, the tests and the reports, so that what is reported is what was tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fast.rows import MODES, canonical_mode
from model_file.errors import InputError

ROWS, PLE, LOGITS, TOKENS = "rows", "PLE layer", "logits", "tokens"
LEVELS = (ROWS, PLE, LOGITS, TOKENS)
"""What a verdict can be about, from the table up to the output; a fault shows first at the level it was made on."""


QUICK_PROMPTS = 2  # programs for more sequences at once take longer to compile than to run


@dataclass(frozen=True)
class TokenPrompt:
    """A prompt as ids, with the name that reports use for it."""

    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A thing to be run and how it is judged.

    Units: counts of tokens. modes: the modes that run its tokens, None for all; rows are compared in every mode.
    generate: greedy tokens of each prompt. repeats: requests in one process, each of which must equal the first.
    varied: which variations its prompts are run in beside: "all", "batch", or none. chunk: tokens of a recorded digest.
    quick: greedy tokens of its first two prompts with `--quick`, 0 where the case is left out. metric, bound, reason:
    how logits and intermediates are compared; rows are compared as bytes and tokens as ids, always.
    """

    id: str
    about: str
    model: str
    prompts: tuple[TokenPrompt, ...]
    generate: int
    metric: str
    bound: float
    reason: str
    levels: tuple[str, ...] = LEVELS
    modes: tuple[str, ...] | None = None
    chunk: int = 64
    repeats: int = 2
    quick: int = 0
    varied: str = ""

    def shortened(self) -> Case:
        """Its form for `--quick`: the start of the answers of its first prompts; itself where it has none."""
        if not self.quick:
            return self
        return replace(self, prompts=self.prompts[:QUICK_PROMPTS], generate=min(self.quick, self.generate))

    @property
    def tokens(self) -> int:
        """Positions that its longest prompt takes."""
        return max(len(prompt.ids) for prompt in self.prompts) + self.generate

    def runs_in(self, mode: str) -> bool:
        """Whether the tokens of this case are run in that mode."""
        return self.modes is None or mode in self.modes


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
        mode, at, path = text.partition("@")
        if at and not path.strip():
            raise InputError(f"--mode {text}: found no file behind the @, expected MODE@FILE: is a variable empty?")
        sources.append(ModeSource(canonical_mode(mode), Path(path) if path else None))
    if len({source.name for source in sources}) != len(sources):
        raise InputError(
            f"--mode: {', '.join(texts)}: a mode is named twice, expected each once: every mode is run twice anyway"
        )
    return sources
