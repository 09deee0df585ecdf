"""A model opened for one arm, brought to a depth, and measured: used by cells and by `tests/bench`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Self

from fast.rows import RowReader, RowSettings, locate_table, open_rows
from harness.measure.cells import Arm, Cell, Workload
from harness.measure.plan import LEAD_IN
from harness.measure.stream import Tokens, row_ids
from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf

if TYPE_CHECKING:
    from fast.engine.engine import FastEngine


@dataclass
class Run:
    """One execution of a workload. Units: seconds. steps: one per chunk or token, [tokens, seconds, exposed wait].

    fed: the tokens whose rows were read. exposed_wait_s, compute_s: of a model; None for a gather.
    """

    seconds: float
    steps: list[tuple[int, float, float]]
    fed: list[int]
    exposed_wait_s: float | None = None
    compute_s: float | None = None
    compile_s: float = 0.0


class Bench(Protocol):
    """Something that runs a workload from a prepared position, as often as wanted."""

    def place(self) -> None:
        """Stand at the depth, ready to run. Not measured; it may read rows, so the cache state is made afterwards."""

    def warm_up(self, tokens: Sequence[int]) -> None:
        """Run everything once on other tokens: compile, start threads, fill pools."""

    def run(self, tokens: Sequence[int], count: int) -> Run:
        """Run `count` tokens of work from where `place` left off."""


class ReaderHandle:
    """The reader behind a handle, so that it can be closed and opened anew under an engine that holds on to it."""

    def __init__(self, reader: RowReader) -> None:
        self.reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)


class GatherBench:
    """The rows of a prompt alone, in one batch: no model, so that any table can be measured."""

    def __init__(self, handle: ReaderHandle) -> None:
        self._handle = handle
        self.heads: Any = None

    def place(self) -> None:
        """Nothing to do: a table has no depth."""

    def warm_up(self, tokens: Sequence[int]) -> None:
        """Gather other rows."""
        self.run(tokens, len(tokens))

    def run(self, tokens: Sequence[int], count: int) -> Run:
        """Gather the rows of `count` tokens."""
        ids = row_ids(self.heads, tokens[:count], [])
        started = perf_counter()
        self._handle.gather(ids)
        seconds = perf_counter() - started
        return Run(seconds, [(count, seconds, seconds)], list(tokens[:count]), seconds)


class ModelBench:
    """The fast engine, with the state of a depth restored before each run."""

    def __init__(self, engine: Any, workload: Workload, saved: Any, lead_in: Sequence[int]) -> None:
        self.engine, self._workload, self._saved, self._lead_in = engine, workload, saved, lead_in
        self._sequence: Any = None

    def place(self) -> None:
        """Restore the depth; before a decode, feed what it continues."""
        self._sequence = self.engine.new_sequence()
        if self._saved is not None:
            self._sequence.restore(self._saved)
        if self._workload.kind == "decode":
            self._sequence.feed(list(self._lead_in), last_only=True)

    def warm_up(self, tokens: Sequence[int]) -> None:
        """Feed other tokens at the depth, and generate a few behind them."""
        if self._workload.kind == "decode":
            self.engine.warm_up(with_logits=False)  # both ways of decoding, and how much of a gather each can hide
        self.place()
        self._sequence.feed(list(tokens), last_only=True)
        if self._workload.kind == "decode":
            self._sequence.greedy(LEAD_IN)

    def run(self, tokens: Sequence[int], count: int) -> Run:
        """Feed the tokens, or generate `count` greedily, until the result is on the host."""
        self.engine.timings.reset()
        if self._workload.kind == "decode":
            started = perf_counter()
            fed = list(self._sequence.greedy(count))
            seconds = perf_counter() - started
        else:
            fed = list(tokens[:count])
            started = perf_counter()
            self._sequence.feed(fed, last_only=True)
            seconds = perf_counter() - started
        timings = self.engine.timings
        steps = [(step.tokens, step.compute_s + step.exposed_wait_s, step.exposed_wait_s) for step in timings.steps]
        compute_s = timings.prefill_compute_s + timings.decode_compute_s
        return Run(seconds, steps, fed, timings.exposed_wait_s, compute_s, timings.compile_s)


class Workbench:
    """Everything that one cell needs, opened. Use as a context manager.

    Raises: InputError for a model or mode that cannot be used.
    """

    def __init__(self, model: Path, arm: Arm, workload: Workload, *, depth: int, context: int, cache_dir: Path) -> None:
        self.arm, self.workload, self.depth, self.context, self.cache_dir = arm, workload, depth, context, cache_dir
        self._stack = ExitStack()
        with ExitStack() as opening:
            self.file: GgufFile = opening.enter_context(open_gguf(model))
            self.config = config_of(self.file)
            self.table = locate_table(self.file)
            self.row_settings = RowSettings(**arm.row_settings())
            started = perf_counter()
            self.handle = ReaderHandle(self.open_reader())
            self.open_reader_s = perf_counter() - started
            opening.callback(lambda: self.handle.close())
            self._stack = opening.pop_all()
        self.chunk = 512
        self.bench: Bench = GatherBench(self.handle)

    def open_reader(self) -> RowReader:
        """A reader of the arm's mode."""
        return open_rows(self.table, self.arm.mode, self.row_settings)

    def reopen(self) -> RowReader:
        """A new reader in place of a closed one."""
        self.handle.reader = self.open_reader()
        return self.handle.reader

    def tokens(self, given: Sequence[int] | None = None) -> Tokens:
        """The cell's tokens; EOS is never drawn, it would cut the context of its successors."""
        avoid = tuple(sorted({self.config.ple.hash.eos} & set(range(self.config.vocab))))
        return Tokens(self.config.vocab, avoid, tuple(given) if given is not None else None)

    def load(self, tokens: Tokens, cell: Cell) -> None:
        """Load the model where the workload needs one, and the state of the depth."""
        if self.workload.kind == "gather":
            bench = GatherBench(self.handle)
            bench.heads = self.config.ple.hash
            self.bench = bench
            return
        from harness.measure.depths import depth_state, make_engine

        def make(decode: bool = False) -> FastEngine:
            return make_engine(self.file, self.handle, self.context, self.arm, self.cache_dir, decode=decode)

        engine = make(self.workload.kind == "decode")
        self._stack.callback(engine.close)
        self.chunk = engine.settings.chunk
        saved = depth_state(engine, self.file, tokens.context(self.depth), self.cache_dir, make)
        self.bench = ModelBench(engine, self.workload, saved, tokens.measured(cell))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def config_of(file: GgufFile) -> ModelConfig:
    """The architecture of the file. Raises: InputError."""
    from model_file.config import config_from

    return config_from(file)


def model_facts(model: Path, needs_model: Sequence[bool]) -> dict[str, Any]:
    """What identifies the file, without its folder. Raises: InputError when it cannot serve the workloads."""
    with open_gguf(model) as file:
        config = config_of(file)
        table = locate_table(file)
        if any(needs_model):
            from model_file.inventory import take_inventory

            if len(file.tensors) == 1:
                raise InputError(f"{model}: holds nothing but the table, expected a model: measure --workload gather:N")
            take_inventory(file, config)
        return {
            "file": file.paths[0].name,
            "size_bytes": file.size_bytes,
            "changed_ns": [path.stat().st_mtime_ns for path in file.paths],
            "layers": config.layers,
            "width": config.width,
            "vocab": config.vocab,
            "context": config.context,
            "table_type": table.type.name,
            "table_rows": table.rows,
            "table_bytes": table.size_bytes,
            "row_bytes": table.row_bytes,
            "rows_per_token": config.ple.heads,
        }
