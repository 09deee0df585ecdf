"""Faults that both `plegate gate` and its short form must find: each sits where only some cases come by."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path

from harness.faults.fault import Trial, fault
from harness.faults.planting import rewrite


@fault("row ids", "position", case=None, mode="auto")
def eos_cuts_one_lag(_: Trial) -> None:
    """In decode EOS hides itself, and not what is older."""
    from fast.engine.hashing import TokenHash

    rewrite(TokenHash, "one", "cut = cut or lag", "cut = lag")


@fault("row ids", "position", case=None, mode="auto")
def first_history_on_the_wrong_side(_: Trial) -> None:
    """Fewer tokens before a chunk than an n-gram has are taken for the oldest of it, not for the newest."""
    from fast.engine.hashing import TokenHash

    rewrite(TokenHash, "many", "history[keep - len(last) :] = last", "history[: len(last)] = last")


@fault("row cache", "through a row cache", case=None, mode="mmap", rows_only=True)
def cache_tag_of_16_bits(_: Trial) -> None:
    """The row cache compares 16 bits of its tag."""
    from fast.rows.cache import RowCache

    rewrite(RowCache, "gather", "(self._tags[slots] == rows)", "(((self._tags[slots] ^ rows) & 0xFFFF) == 0)")
    rewrite(RowCache, "_read", "self._tags[slots] == ids", "((self._tags[slots] ^ ids) & 0xFFFF) == 0")


@fault("packed rows", "first difference in packed rows", case=None, mode="direct-uncached", rows_only=True)
def second_portion_not_copied(_: Trial) -> None:
    """Of a batch that does not fit the staging memory the first portion alone is copied."""
    from fast.rows.uncached import WindowReader

    rewrite(WindowReader, "read", "self._copy(plan,", "first == 0 and self._copy(plan,")


@fault(
    "", "first difference in packed rows", case=None, mode="auto", rows_only=True
)  # or its control: memory is reused
def row_skipped_after_the_first_chunk(_: Trial) -> None:
    """After its first chunk of a batch `auto` leaves one row out."""
    from fast.rows.auto import AutoReader

    rewrite(AutoReader, "_read_large", "at = min(at + size, ids.size)", "at = min(at + size + 1, ids.size)")


@fault("logits", "position", case=None, mode="auto")
def past_of_padding(_: Trial) -> None:
    """After a padded chunk the indexer remembers its padding, not its last tokens."""
    from fast.model import attention

    old = "kept = jax.lax.dynamic_slice_in_dim(raw, count, ratio - 1)"
    rewrite(attention, "_extend_index", old, old.replace("count", "length"))


@fault("logits", "position", case=None, mode="auto")
def blocks_beyond_the_first_width_unscored(_: Trial) -> None:
    """However deep a query is, its best blocks are chosen among the first 512."""
    from fast.model import attention

    rewrite(attention, "_read_blocks", "jax.lax.switch(level,", "jax.lax.switch(level * 0,")


BRANCHES: dict[str, tuple[str, str, str, str]] = json.loads(
    Path(__file__).with_name("branches.json").read_text(encoding="utf-8")
)
"""Branches inside compiled programs, which coverage cannot see: places where a `where`, a `switch` or a loop of the
arithmetic decides by values or by a count. By what goes wrong where it is flipped: module, function, text, other text.
That a flip is found proves that a case reaches the branch. A test holds the list against the code."""


def _flip(flip: tuple[str, str, str, str], _: Trial) -> None:
    module, function, old, new = flip
    rewrite(import_module(module), function, old, new)


for _name, _change in BRANCHES.items():
    _plant = partial(_flip, _change)
    _plant.__doc__ = f"In a compiled program: {_name}."
    fault("", "", case=None, mode="auto", name=f"branch: {_name}")(_plant)
