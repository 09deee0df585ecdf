"""A byte-level BPE vocabulary of our own, so that text goes in and out of a made model.

`merges.txt` was learned from a text that is original to this project; text and learning lie with the tests, one of
which repeats it. Tokens are written in GPT-2's byte alphabet, the one that `tokenizer.ggml.model = gpt2` means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain

PRE_TOKENIZER = "qwen35"  # as the published Flash-Next files say
NORMAL, CONTROL, UNUSED = 1, 3, 5  # values of tokenizer.ggml.token_type


@dataclass(frozen=True)
class Vocabulary:
    """What the metadata says of a vocabulary: one token and one type per id, and the merges by rank."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    @property
    def quiet(self) -> frozenset[int]:
        """Ids that no text produces: reserved and unused."""
        return frozenset(token for token, kind in enumerate(self.types) if kind != NORMAL)


@cache
def byte_alphabet() -> tuple[str, ...]:
    """The character that stands for each byte: itself where it is printable Latin-1, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


@cache
def learned_merges() -> tuple[str, ...]:
    """The merges of the package's data file, best rank first."""
    text = resources.files("harness.synth").joinpath("merges.txt").read_bytes().decode("utf-8")
    return tuple(line for line in text.split("\n") if line)


def paired_merges() -> Iterator[str]:
    """Merges of any two learned tokens, the more frequent first: enough for a vocabulary of any size."""
    learned = [merge.replace(" ", "") for merge in learned_merges()]
    for place, token in enumerate(learned):
        for other in learned[:place]:
            yield from (f"{other} {token}", f"{token} {other}")


def build_vocabulary(size: int, special: dict[int, str], full: bool = False) -> Vocabulary:
    """Bytes first, then merged tokens by rank, around the reserved ids; what is left over is marked unused.

    A vocabulary too small for all merges takes the best ranks that fit. full: a larger one takes pairs of merged
    tokens, so that none is unused.
    """
    room = size - len(special)
    ordinary = dict.fromkeys(byte_alphabet())
    merges = []
    for merge in chain(learned_merges(), paired_merges() if full else ()):
        if len(ordinary) == room:
            break
        if (joint := merge.replace(" ", "")) not in ordinary:
            ordinary[joint] = None
            merges.append(merge)
    following = iter(ordinary)
    tokens, types = [], []
    for token in range(size):
        if token in special:
            tokens.append(special[token])
            types.append(CONTROL)
        elif (token_text := next(following, None)) is not None:
            tokens.append(token_text)
            types.append(NORMAL)
        else:
            tokens.append(f"[unused{token}]")
            types.append(UNUSED)
    return Vocabulary(tokens, types, merges)
