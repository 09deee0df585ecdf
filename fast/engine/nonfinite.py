"""Logits that are not finite: a step marks them by a margin that is NaN, and here the place where they began is found.

A mark is seen after a whole chunk, and the matrix forms of a chunk carry NaN back to earlier tokens (0 times NaN). So
the tokens are fed anew with every intermediate recorded, and one by one from the chunk on in which something is wrong.
"""

from __future__ import annotations

import gguf
import numpy as np

from fast.engine.chunks import Chunk, ChunkMaker
from fast.engine.programs import copied
from fast.engine.step import DeviceStep
from fast.model.state import SequenceState
from fast.rows.dequantize import dequantize_numpy
from model_file.errors import InputError
from model_file.tensors import TABLE

_STAGES = ("ple", "mixer", "experts", "streams")  # of a layer, as they are computed


def not_finite(step: DeviceStep, chunks: ChunkMaker, tokens: list[int]) -> InputError:
    """The error to be raised when the logits after some of these tokens are not finite."""
    state, fed, size = SequenceState.fresh(step.plan), 0, chunks.settings.chunk
    while fed < len(tokens):
        piece = tokens[fed : fed + size]
        chunk = chunks.make(next(chunks.cut([tokens[:fed]], [piece])))
        before = copied(state)
        outcome, _, (state,), named = step.advance_recorded((state,), chunk)
        arrays = {name: np.asarray(value)[: len(piece)] for name, value in named.items()}
        wrong = sorted((name for name, value in arrays.items() if not np.isfinite(value).all()), key=_order)
        if not wrong and np.isfinite(np.asarray(outcome.logits)).all():
            fed += len(piece)
        elif size > 1:
            state, size = before, 1
        else:
            return InputError(_message(step, fed, tokens[fed], wrong[0] if wrong else "the logits", chunk))
    return InputError(
        f"{step.name}: logits up to position {len(tokens) - 1} are not finite, but are when the same tokens are fed "
        "anew: was a state restored that is not of them? start a new sequence"
    )


def _order(name: str) -> tuple[int, int]:
    """Of `blk.N.stage`: when it is computed."""
    _, layer, stage = name.split(".")
    return int(layer), _STAGES.index(stage)


def _message(step: DeviceStep, position: int, token: int, tensor: str, chunk: Chunk) -> str:
    found = f"{step.name}: position {position}, token {token}: {tensor} is the first tensor that is not finite"
    rows = dequantize_numpy(chunk.packed, gguf.GGMLQuantizationType(step.plan.table_type))
    heads = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if heads.size:
        cause = f"row {int(chunk.ids[heads[0]])} of {TABLE} holds NaN or infinity"
    elif not np.isfinite(step.embedding_of(token)).all():
        cause = f"row {token} of token_embd.weight holds NaN or infinity"
    else:
        cause = "its layer's weights hold NaN or infinity, or its numbers became too large"
    return f"{found}: {cause}: is the file damaged? compare it with its publisher's"
