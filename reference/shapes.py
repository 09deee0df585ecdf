"""The one list of shape letters. Every annotation in `reference` and `fast` uses these.

t  tokens of a chunk                 p  positions a cache holds
d  model width (n_embd)              s  residual streams (hyper-connection count)
r  low rank of a hyper-connection    v  vocabulary
h  query heads                       g  key/value heads
k  head width                        o  rotated dims of a head
i  indexer query heads               j  indexer width
y  blocks of an indexer              z  tokens of a block (compress ratio)
a  key heads of a delta net          b  value heads of a delta net
w  head width of a delta net         c  channels of its convolution, 2*a*w + b*w
n  PLE heads                         e  PLE row width; n*e = d
x  experts                           f  expert width
m  width of the shared expert        l  layers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int, UInt8

__all__ = ["Array", "Bool", "Float", "Int", "Record", "UInt8", "ignore"]

Record = Callable[[str, jax.Array], Any]
"""Receives named intermediates; a model function calls it with a GGUF-like name such as `blk.1.ple`."""


def ignore(name: str, value: jax.Array) -> None:
    """The Record that keeps nothing."""
    del name, value
