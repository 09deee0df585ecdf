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


SHORT_PROMPTS = 2  # of the short form of a case


@dataclass(frozen=True)
class TokenPrompt:
    """A prompt as ids, with the name that reports use for it."""

    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A thing to be run and how it is judged.

    Units: counts of tokens. everywhere: its tokens are run in every mode; else whole in one mode (`main_mode`) and in
    its short form, where it has one, in the others: a mode changes how rows are read, and nothing above them. Rows are
    compared in every mode. generate: greedy tokens of each prompt. short: those of its first two prompts in its short
    form, which `--quick` runs too; 0 where there is none. repeats: requests in one process, each of which must equal
    the first. varied: which variations its prompts are run in beside: "alone", "together", or none. chunk: tokens of a
    recorded digest. metric, bound, reason: how logits and intermediates are compared; rows are compared as bytes and
    tokens as ids, always.
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
    everywhere: bool = True
    chunk: int = 64
    repeats: int = 2
    short: int = 0
    varied: str = ""

    def shortened(self) -> Case:
        """Its short form, run in every mode: the start of its first prompts' answers. Itself where it has none."""
        if not self.short:
            return self
        count = min(self.short, self.generate)
        return replace(self, prompts=self.prompts[:SHORT_PROMPTS], generate=count, everywhere=True, repeats=2)

    @property
    def tokens(self) -> int:
        """Positions that its longest prompt takes."""
        return max(len(prompt.ids) for prompt in self.prompts) + self.generate

    def form_beside(self) -> Case | None:
        """What of it is run in the modes beside the main one."""
        return self if self.everywhere else self.shortened() if self.short else None


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
