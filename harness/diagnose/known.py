"""The faults that engines are known to have. A new report adds a line here, and a test holds that it can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.diagnose.hashes import (
    ITSELF,
    NOTHING,
    RIGHT,
    RowRule,
    read_at_32_bits,
    read_in_lexical_order,
    signed,
    unsigned,
)

Places = Callable[[int, int], set[int]]
"""Of a sequence of so many tokens, of which the first so many are the prompt: before which positions it happens."""

HISTORY = "the n-gram history"
PLE_PAST, MEMORY = "the past of the PLE convolution", "the memory of the delta nets"
DELTA_PAST, INDEX_PAST = "the past of the delta nets' convolutions", "the last keys of the indexer"
PARTS = (HISTORY, PLE_PAST, MEMORY, DELTA_PAST, INDEX_PAST)
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096)
ONCE_BEFORE_A_DIFFERENCE = 16  # positions before the first other token at which something may have been lost once

_ATTENTION, _EXPERTS, _PLE, _DELTA = (f"fast.model.{name}" for name in ("attention", "experts", "ple", "delta_net"))
Change = tuple[str, str, str, str]


@dataclass(frozen=True)
class Known:
    """A fault. name: goes on after "behaves as if". rows: how row ids are made. lost: a part of the state that is lost
    before the positions `at`. change: module, function, a piece of its text, and another one."""

    name: str
    rows: RowRule = RIGHT
    lost: str = ""
    at: Places | None = None
    change: Change | None = None


def _in_prompt(size: int, _: int, prompt: int) -> set[int]:
    return {*range(size, prompt, size)}


def _everywhere(size: int, total: int, prompt: int) -> set[int]:
    return _in_prompt(size, total, prompt) | {*range(prompt, total)}


def _once(position: int, *_: int) -> set[int]:
    return {position}


EVENTS: dict[str, Places] = {
    "between the prompt and the first generated token": lambda _, prompt: {prompt},
    "before each generated token": lambda total, prompt: {*range(prompt, total)},
    **{f"every {size} tokens of the prompt": partial(_in_prompt, size) for size in CHUNKS},
    **{
        f"every {size} tokens of the prompt, and before each generated one": partial(_everywhere, size)
        for size in CHUNKS
    },
}

ROW_FAULTS = {
    "the hash looked through EOS into the document before": RowRule(eos=NOTHING),
    "an EOS token hid its own past": RowRule(eos=ITSELF),
    "the multipliers had gone through float32": RowRule(multipliers=lambda m: [int(np.float32(v)) for v in m]),
    "the multipliers had gone through int32": RowRule(multipliers=lambda m: [signed(v, 32) for v in m]),
    "the multipliers were taken oldest token first": RowRule(multipliers=lambda m: m[::-1]),
    "the hash were computed in 32 bits": RowRule(fold=partial(unsigned, bits=32)),
    "the hash were divided as a signed number": RowRule(fold=signed),
    "the hash were divided as a signed number, and the sign dropped": RowRule(fold=signed, magnitude=True),
    "the offsets of the heads had gone through float32": RowRule(offsets=lambda o: [int(np.float32(v)) for v in o]),
    "all heads began at row 0": RowRule(offsets=lambda o: [0] * len(o)),
    "the heads of the orders took turns": RowRule(interleaved=True),
    "offsets of rows had 32 bits": RowRule(read=read_at_32_bits),
    "the shards were put together in lexical order": RowRule(read=read_in_lexical_order),
}

CHANGES: dict[str, Change] = {
    "the unfinished block were dropped, but for the token itself": (
        _ATTENTION,
        "_read_blocks",
        "+ jnp.arange(ratio) <= positions[:, None]",
        "+ jnp.arange(ratio) == positions[:, None]",
    ),
    "the key of a block stood at its last position": (
        _ATTENTION,
        "_extend_index",
        "turns = rotations((first + jnp.arange(touched)) * ratio, config)",
        "turns = rotations((first + jnp.arange(touched)) * ratio + ratio - 1, config)",
    ),
    "the scores of blocks were not rectified": (
        _ATTENTION,
        "_block_scores",
        "jax.nn.relu(flat @ keys)",
        "(flat @ keys)",
    ),
    "the gate of the attention layers were silu": (
        _ATTENTION,
        "attention",
        "jax.nn.sigmoid(both[..., width:])",
        "jax.nn.silu(both[..., width:])",
    ),
    "the shares of the experts were not brought back to sum 1": (
        _EXPERTS,
        "route",
        "best / jnp.sum(best, axis=-1, keepdims=True)",
        "best",
    ),
    "the shared expert had no gate": (_EXPERTS, "route", "opening * (gated", "(gated"),
    "the PLE gate lost the sign of the agreement": (_PLE, "ple_gated", "jnp.sign(agreement) * root", "root"),
    "the PLE gate had no square root": (_PLE, "ple_gated", "jnp.sign(agreement) * root", "agreement"),
    "the PLE convolution were not dilated": (
        "fast.model.streams",
        "convolve",
        "whole[:length] * taps[0]\n    for tap in range(1, kernel):\n"
        "        out += whole[tap * dilation : tap * dilation",
        "whole[past.shape[0] + 1 - kernel :][:length] * taps[0]\n    for tap in range(1, kernel):\n"
        "        out += whole[past.shape[0] + 1 - kernel + tap : past.shape[0] + 1 - kernel + tap",
    ),
    "the gate of the delta nets were silu": (
        _DELTA,
        "delta_net",
        "jax.nn.sigmoid(projected[:, channels : channels + inner])",
        "jax.nn.silu(projected[:, channels : channels + inner])",
    ),
}


def known_faults(first_difference: int | None = None) -> list[Known]:
    """All of them. first_difference: position of the first token that differs; before it things may be lost once."""
    found = [Known(name, rows=rule) for name, rule in ROW_FAULTS.items()]
    found += [Known(f"{part} were lost {when}", lost=part, at=at) for part in PARTS for when, at in EVENTS.items()]
    if first_difference is not None:
        places = range(max(1, first_difference - ONCE_BEFORE_A_DIFFERENCE), first_difference + 1)
        found += [
            Known(f"{part} were lost once, before position {place}", lost=part, at=partial(_once, place))
            for part in (HISTORY, PLE_PAST)
            for place in places
        ]
    return found + [Known(name, change=change) for name, change in CHANGES.items()]
