"""The one list of axes. Every annotation in `reference` and `fast` uses these, and a test sees to it.

A term is a letter, a word, or a product of letters and digits: "sd" is s * d, "hk2" is h * k * 2. Terms joined by
"_and_" lie side by side on one axis: "r_and_s" has r + s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int, UInt8

__all__ = ["LETTERS", "WORDS", "Array", "Bool", "Float", "Int", "Record", "UInt8", "ignore"]

LETTERS = {
    "t": "tokens of a chunk",
    "p": "positions that a cache has room for",
    "v": "vocabulary",
    "d": "model width (n_embd)",
    "s": "residual streams (hyper-connection count)",
    "r": "low rank of a hyper-connection",
    "h": "query heads",
    "g": "key/value heads",
    "q": "query heads of one key/value head, h / g; of a convolution, the inputs before the chunk",
    "k": "head width",
    "o": "rotated dims of a head",
    "i": "indexer query heads",
    "j": "indexer width",
    "y": "blocks of an indexer",
    "z": "tokens of a block (compress ratio)",
    "a": "key heads of a delta net",
    "b": "value heads of a delta net",
    "w": "head width of a delta net",
    "c": "channels of its convolution, 2*a*w + b*w",
    "K": "taps of its convolution",
    "n": "PLE heads, the rows that a token reads",
    "e": "PLE row width; n*e = d",
    "P": "taps of the PLE convolution",
    "x": "experts",
    "u": "experts that a token uses",
    "f": "expert width",
    "m": "width of the shared expert",
    "l": "layers",
    "B": "tokens of a block of a triangular solve",
    "C": "tokens of a piece of the chunked delta net",
}
WORDS = {
    "width": "the last axis, whatever it is",
    "heads": "heads of whichever kind",
    "sequences": "sequences of a batch",
    "all": "tokens of all sequences of a batch, one sequence after the other",
    "rows": "packed rows of the PLE table or of a matrix",
    "row_bytes": "bytes of such a row",
    "joined": "outputs of matrices with one input, side by side",
    "blocks": "blocks on the diagonal of a triangular matrix, or of a packed row",
    "tile": "block keys that are scored together, or tokens of one expert",
    "tiles": "runs of tokens of one expert each",
    "count": "tiles of rows of a packed matrix",
    "floats": "small weights, one after the other",
    "o2": "pairs of rotated dims, o / 2",
    "z1": "raw keys of an unfinished block, at most z - 1",
    "ff": "gate rows and up rows of an expert, 2*f",
}

Record = Callable[[str, jax.Array], Any]
"""Receives named intermediates; a model function calls it with a GGUF-like name such as `blk.1.ple`."""


def ignore(name: str, value: jax.Array) -> None:
    """The Record that keeps nothing."""
    del name, value
