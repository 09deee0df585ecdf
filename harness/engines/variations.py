"""Ways of running a prompt that must not matter: each gives the tokens and the state that feeding it whole gives.

Adding one is a function here and a line in `VARIATIONS`. It is run on the cases that have `varied` set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fast.rows import RowCache, RowReader
from harness.engines.protocol import run_of
from harness.synth import Head, make_model, make_recipe

if TYPE_CHECKING:
    from harness.engines.protocol import Engine, EngineSequence, Run

Ids = Sequence[int]
GARBAGE = 7  # tokens that are fed and taken back again
PAST_BUCKETS = (2, 17, 65, 257)  # each one more than a compiled length holds: the padding is longer than the tokens
PIECED = 130  # tokens that are fed in pieces, at least
CACHE_ROWS = 256
PLENTY = 1 << 30  # of memory, for a small model
BATCH, PIECE = 2, 64  # sequences run together, always so many and so long: every other shape would be a program more


@dataclass(frozen=True)
class Bench:
    """What a variation works with: the engine as people run it, the mode's reader, and another engine by settings.

    fed: to be told which tokens a batch was fed since the last time, so that the rows it asked for can be judged.
    """

    engine: Engine
    reader: RowReader
    other: Callable[..., Engine]
    fed: Callable[[Sequence[Ids]], None]


@dataclass(frozen=True)
class Variation:
    """One way. feed: a sequence that all these ids were fed to. together: answers to all prompts of a case, instead.

    needs: what the engine must be able to do, by the protocol's names. traced: whether the rows it asks for are those
    of the prompt alone, in order.
    """

    name: str
    about: str
    feed: Callable[[Bench, Ids], EngineSequence] | None = None
    together: Callable[[Bench, Sequence[Ids], int], list[Run]] | None = None
    needs: frozenset[str] = frozenset()
    traced: bool = True


def _in_pieces(sizes: Sequence[int], bench: Bench, ids: Ids) -> EngineSequence:
    """Pieces of these sizes in turn; after a while of it the rest at once."""
    sequence, at, turn = bench.engine.new_sequence(), 0, 0
    while at < len(ids):
        piece = ids[at : at + sizes[turn % len(sizes)]] if at < PIECED else ids[at:]
        sequence.feed(piece)
        at, turn = at + len(piece), turn + 1
    return sequence


def _rolled_back(bench: Bench, ids: Ids) -> EngineSequence:
    """Twice: from an answer and other tokens back to the end, and from there back to the middle."""
    sequence = bench.engine.new_sequence()
    sequence.feed(ids)
    for _ in sequence.generate(GARBAGE):
        pass
    sequence.feed([2 + token for token in range(GARBAGE)])
    sequence.truncate(len(ids))
    middle = len(ids) // 2
    sequence.truncate(middle)
    sequence.feed(ids[middle:])
    return sequence


def _restored(bench: Bench, ids: Ids) -> EngineSequence:
    """Saved in the middle, restored into a sequence that was fed something else."""
    first, other, middle = bench.engine.new_sequence(), bench.engine.new_sequence(), len(ids) // 2
    if middle:
        first.feed(ids[:middle])
    saved = first.save()
    first.feed(ids[middle:] or ids)
    other.feed([2 + token for token in range(GARBAGE)])
    other.restore(saved)
    if ids[middle:]:
        other.feed(ids[middle:])
    return other


def _other_settings(changes: dict[str, Any], bench: Bench, ids: Ids) -> EngineSequence:
    sequence = bench.other(**changes).new_sequence()
    if ids:
        sequence.feed(ids)
    return sequence


def _drafting(bench: Bench, ids: Ids) -> EngineSequence:
    """With guesses of a random head, made for the model whose cases are varied; the head is read when it is loaded."""
    with TemporaryDirectory() as folder:
        make_model(make_recipe("pico", head=Head.alone), Path(folder) / "head.gguf")
        return _other_settings({"draft": 3, "mtp": str(Path(folder) / "head.gguf")}, bench, ids)


def _lazy(bench: Bench, ids: Ids) -> EngineSequence:
    """Experts read when they are chosen, an eighth of them kept: each is read again and again."""
    plenty: Any = bench.other(memory_bytes=PLENTY)
    memory = plenty.memory()
    return _other_settings({"memory_bytes": memory["total"] - memory["experts"] * 7 // 8}, bench, ids)


def _cached(bench: Bench, ids: Ids) -> EngineSequence:
    """Rows through a cache that is smaller than the prompt needs, asked twice."""
    traced = bench.engine.reader
    bench.engine.reader = RowCache(traced, CACHE_ROWS * (bench.reader.table.row_bytes + 8))
    for _ in range(2):
        sequence = bench.engine.new_sequence()
        if ids:
            sequence.feed(ids)
    return sequence


def small_settings(prompts: Sequence[Ids]) -> dict[str, Any]:
    """The engine in which batches are run, by what differs."""
    return {"context": max(map(len, prompts)), "chunk": PIECE, "buckets": (PIECE,), "checkpoints": 1}


def _batched(bench: Bench, prompts: Sequence[Ids], count: int) -> list[Run]:
    """Two at a time in a small engine: the shorter one waits, padded, while the other is fed.

    It has room for every answer but that to the longest prompt, which fills it: that one stands full while others go
    on, and answers in the engine where it is restored.
    """
    longest = max(range(len(prompts)), key=lambda number: len(prompts[number]))
    small = bench.other(**small_settings(prompts))
    others = [number for number in range(len(prompts)) if number != longest]
    answers: dict[int, Run] = {}
    for start in range(0, len(others), BATCH):
        group = others[start : start + BATCH]
        group += [number for number in others if number not in group][: BATCH - len(group)]
        sequences = [small.new_sequence() for _ in group]
        small.feed_batch([(one, prompts[number]) for one, number in zip(sequences, group, strict=True)])
        found = small.greedy_batch(sequences, count)
        bench.fed([[*prompts[number], *run.tokens] for number, run in zip(group, found, strict=True)])
        answers |= dict(zip(group, found, strict=True))
    answers[longest] = run_of(_full_among_others(bench, small, prompts[longest]).generate(count))
    return [answers[number] for number in range(len(prompts))]


def _full_among_others(bench: Bench, small: Engine, ids: Ids) -> EngineSequence:
    """A sequence that fills the engine in the first chunk of a batch whose others have more of them."""
    full, *others = (small.new_sequence() for _ in range(BATCH))
    small.feed_batch([(full, ids[:-GARBAGE]), *((other, ids[:GARBAGE]) for other in others)])
    small.feed_batch([(full, ids[-GARBAGE:]), *((other, ids[: 3 * PIECE]) for other in others)])
    restored = bench.engine.new_sequence()
    restored.restore(full.save())
    return restored


VARIATIONS: tuple[Variation, ...] = (
    *(
        Variation(f"pieces of {size}", f"fed {size} at a time", partial(_in_pieces, (size,)))
        for size in (1, 2, 3, 7, 64)
    ),
    Variation(
        "padded pieces", "every compiled length, each with more padding than tokens", partial(_in_pieces, PAST_BUCKETS)
    ),
    Variation("batch", "two at once, unequal, one full", together=_batched, needs=frozenset({"batch", "save"})),
    Variation(
        "rolled back", "back to the end and to the middle, and on", _rolled_back, None, frozenset({"rollback"}), False
    ),
    Variation("restored", "saved, and restored into another sequence", _restored, None, frozenset({"save"}), False),
    Variation("no overlap", "decode as one program", partial(_other_settings, {"overlap": False})),
    Variation("drafts", "guesses of an MTP head, checked", _drafting, needs=frozenset({"rollback"}), traced=False),
    Variation("lazy experts", "experts read when they are chosen", _lazy, needs=frozenset({"memory"})),
    Variation("row cache", "rows through a row cache", _cached, traced=False),
)
