"""The gate: every mode reads the same rows, byte for byte, and leads to the same tokens, id for id.

For each mode, twice (the second run is the control: a mode that does not agree with itself cannot be judged):
1. rows: all rows of all prompts through the mode, packed and dequantized as the fast path does it, against what plain
   positional reads and the `gguf` package's dequantizer give;
2. tokens: the greedy continuation of every prompt with the engine fed by that mode, against the first mode's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader, RowSettings, Table, locate_table, open_rows
from harness import compare
from harness.cases import ModeSource, TokenPrompt
from harness.engine import Engine, make_engine
from harness.prompts import check_ids
from reference.config import ModelConfig, config_from
from reference.errors import InputError
from reference.gguf_file import GgufFile, open_gguf
from reference.tensors import take_inventory

Tell = Callable[[str], None]
EQUAL, DIFFERENT, UNSTEADY, NOT_RUN = "equal", "different", "unsteady", "not run"


@dataclass
class ModeVerdict:
    """What the gate found of one mode. `effective` is the mode that really ran."""

    name: str
    effective: str = ""
    fallback_reason: str | None = None
    rows_compared: int = 0
    tokens_compared: int = 0
    row_difference: compare.RowDifference | None = None
    token_difference: compare.TokenDifference | None = None
    control: list[str] = field(default_factory=list)
    not_run: str | None = None
    counters: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """equal, different, unsteady (its control failed) or not run (it fell back, or could not be opened)."""
        if self.control:
            return UNSTEADY
        if self.row_difference or self.token_difference:
            return DIFFERENT
        return NOT_RUN if self.not_run else EQUAL


@dataclass
class GateResult:
    """All verdicts of a run, and what was run."""

    model: str
    engine: str
    prompts: list[TokenPrompt]
    generate: int
    modes: list[ModeVerdict]

    @property
    def exit_code(self) -> int:
        """0 all equal, 1 a difference or an unsteady mode, 3 a mode that was asked for did not run."""
        verdicts = {mode.verdict for mode in self.modes}
        if verdicts & {DIFFERENT, UNSTEADY}:
            return 1
        return 3 if NOT_RUN in verdicts else 0


@dataclass(frozen=True)
class _Expected:
    """What every mode is compared with, for one prompt."""

    prompt: TokenPrompt
    ids: npt.NDArray[np.uint64]
    packed: compare.Packed
    f32: compare.Float32


def run_gate(
    path: Path,
    prompts: Sequence[TokenPrompt],
    modes: Sequence[ModeSource],
    generate: int,
    engine: str,
    tell: Tell,
    settings: RowSettings | None = None,
) -> GateResult:
    """Judge every mode on a model. Reads the model, writes nothing.

    Raises: InputError for a model, table or prompt that cannot be used.
    """
    with open_gguf(path) as model:
        config = config_from(model)
        take_inventory(model, config)
        for prompt in prompts:
            check_ids(prompt.ids, config.vocab, prompt.name)
        table = locate_table(model)
        tell("reading what the file holds, row by row")
        expected = [_expect(table, config, prompt) for prompt in prompts]
        result = GateResult(str(path), engine, list(prompts), generate, [])
        run_tokens = _TokenRuns(model, config, engine, prompts, generate, tell) if generate else None
        for source in modes:
            result.modes.append(_judge(source, table, config, expected, run_tokens, settings, tell))
        return result


def _expect(table: Table, config: ModelConfig, prompt: TokenPrompt) -> _Expected:
    constants = config.ple.hash
    ids = constants.row_ids(prompt.ids, constants.fresh_history()).reshape(-1)
    packed = compare.expected_packed(table, ids)
    return _Expected(prompt, ids, packed, compare.expected_f32(packed, table))


def _judge(
    source: ModeSource,
    table: Table,
    config: ModelConfig,
    expected: Sequence[_Expected],
    run_tokens: _TokenRuns | None,
    settings: RowSettings | None,
    tell: Tell,
) -> ModeVerdict:
    verdict = ModeVerdict(source.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fallback is told in the verdict
        with open_rows(_table_of(source, table), source.mode, settings) as reader:
            tell(f"{source.name}: rows")
            for wanted in expected:
                _compare_rows(verdict, reader, wanted, table, config.ple.heads)
            if run_tokens is not None:
                run_tokens.compare(verdict, reader)
            verdict.effective, verdict.fallback_reason = reader.effective_mode, reader.fallback_reason
            verdict.counters = reader.totals.as_dict()
    if verdict.effective != source.mode:
        verdict.not_run = f"ran as {verdict.effective}: {verdict.fallback_reason}"
    return verdict


def _table_of(source: ModeSource, own: Table) -> Table:
    if source.path is None:
        return own
    with open_gguf(source.path) as other:
        table = locate_table(other)
    if (table.type, table.rows, table.row_width) != (own.type, own.rows, own.row_width):
        raise InputError(
            f"{source.path}: found a table of {table.rows} rows of {table.row_width} values in {table.type.name}, expected "
            f"{own.rows} of {own.row_width} in {own.type.name}, as in the model: --mode MODE@FILE takes a copy of the table"
        )
    return table


def _compare_rows(verdict: ModeVerdict, reader: RowReader, expected: _Expected, table: Table, heads: int) -> None:
    """Gather a prompt's rows twice; compare the first with the file, and the second with the first."""
    import jax

    from fast.rows.dequantize import dequantize_jax

    packed = reader.gather(expected.ids)
    again = reader.gather(expected.ids)
    values = np.asarray(jax.jit(dequantize_jax, static_argnums=1)(packed, table.type))
    verdict.rows_compared += len(packed)
    if packed.tobytes() != again.tobytes():
        verdict.control.append(f"two gathers of the rows of prompt {expected.prompt.name} differ")
    for level, found, right in (("packed", packed, expected.packed), ("f32", values, expected.f32)):
        if verdict.row_difference is None:
            verdict.row_difference = compare.first_row_difference(
                level, found, right, expected.ids, table, expected.prompt.name, heads
            )


class _TokenRuns:
    """Greedy runs of all prompts, mode after mode; the first mode's first run is what the others are compared with."""

    def __init__(
        self,
        model: GgufFile,
        config: ModelConfig,
        engine: str,
        prompts: Sequence[TokenPrompt],
        generate: int,
        tell: Tell,
    ) -> None:
        self.model, self.config, self.name, self.tell = model, config, engine, tell
        self.prompts, self.generate = prompts, generate
        self.engine: Engine | None = None
        self.expected: list[list[tuple[int, float]]] | None = None

    def run(self, reader: RowReader) -> list[list[tuple[int, float]]]:
        """Token and margin of every step, for every prompt."""
        room = max(len(prompt.ids) for prompt in self.prompts) + self.generate
        if self.engine is None:
            self.tell("loading weights")
            self.engine = make_engine(self.name, self.model, reader, room)
        self.engine.reader = reader
        runs = []
        for prompt in self.prompts:
            sequence = self.engine.new_sequence()
            sequence.feed(list(prompt.ids))
            runs.append(list(sequence.generate(self.generate)))
        return runs

    def compare(self, verdict: ModeVerdict, reader: RowReader) -> None:
        """Run twice; compare the first with the expected run, the second with the first."""
        self.tell(f"{verdict.name}: tokens")
        runs = self.run(reader)
        if self.expected is None:
            self.expected = runs
        self.tell(f"{verdict.name}: tokens again, as control")
        again = self.run(reader)
        for prompt, steps, control, expected in zip(self.prompts, runs, again, self.expected, strict=True):
            verdict.tokens_compared += len(steps)
            found, margins = [token for token, _ in steps], [margin for _, margin in expected]
            if found != [token for token, _ in control]:
                verdict.control.append(f"two runs of prompt {prompt.name} give different tokens")
            if verdict.token_difference is None:
                right = [token for token, _ in expected]
                verdict.token_difference = compare.first_token_difference(found, right, margins, prompt.name)
