"""The gate without tokens, for any file with a table: what `plegate rows` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fast.rows import RowSettings, Table, locate_table
from harness.cases.case import ModeSource
from harness.gate.batches import RowBatch
from harness.gate.checks import Finding
from harness.gate.far_rows import far_rows
from harness.gate.rows import RowJudge, expect_rows
from harness.gate.scan import Scan, never_written, scan_table
from harness.gate.unpacking import judge_unpacking
from harness.gate.verdicts import DIFFERENT, NOT_RUN, UNSTEADY, ModeVerdict, blame_no_mode
from harness.gate.whole_table import WholeTable, compare_whole
from harness.identity import Changed, Identity
from harness.oracle import TABLE_TYPES, copy_of_table
from model_file.gguf_file import open_gguf

Report = Callable[[str], None]


@dataclass
class RowsResult:
    """Everything the command reports. findings: of unpacking, whatever the mode. whole: compared with another file.

    changed: which file was another one before all was judged; None: none was.
    """

    model: str
    against: str | None
    architecture: str
    table: Table
    batches: list[RowBatch]
    seed: int = 0
    modes: list[ModeVerdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: WholeTable | None = None
    changed: str | None = None
    scan: Scan | None = None

    @property
    def rows_sampled(self) -> int:
        """Different rows that the modes gathered."""
        return int(np.unique(np.concatenate([batch.ids for batch in self.batches])).size)

    @property
    def coverage(self) -> str:
        """How many of the table's rows the verdict speaks of."""
        if self.whole is None:
            return f"{self.rows_sampled:,} of {self.table.rows:,} rows compared"
        return f"{self.rows_sampled:,} rows through the modes; {self.whole.message()}"

    @property
    def exit_code(self) -> int:
        """3 after a change; 1 for a difference; 2 where a scan found something; 3 for what was not run; or 0."""
        if self.changed:
            return 3
        differs = any(mode.verdict in (DIFFERENT, UNSTEADY) for mode in self.modes)
        if differs or self.findings or (self.whole and self.whole.different):
            return 1
        if self.scan is not None and not self.scan.sound:
            return 2
        missing = any(mode.verdict == NOT_RUN or (mode.not_cold and mode.cold_required) for mode in self.modes)
        return 3 if missing else 0


def judge_rows(
    path: Path,
    batches: list[RowBatch],
    sources: Sequence[ModeSource],
    settings: RowSettings,
    against: Path | None,
    cold: bool | None,
    report: Report,
    scan: bool = False,
) -> RowsResult:
    """Every mode, every batch: cold, then warm. Opens the model's files read-only.

    `cold` None: tried, and only a note where it fails on a small table; True: required; False: left out. scan: look
    at every row of the table.

    Raises: InputError for a file that cannot be used.
    """
    identity = Identity([path, *([against] if against else []), *(one.path for one in sources if one.path)])
    with open_gguf(path) as model:
        table, architecture = locate_table(model), model.architecture
    holes = never_written(table) if scan else []
    truth = table if against is None else copy_of_table(against, table)
    result = RowsResult(str(path), str(against) if against else None, architecture, table, batches)
    result.modes = [ModeVerdict(source.name) for source in sources]
    if table.type not in TABLE_TYPES:
        result.notes.append(f"rows of {table.type.name} are compared as bytes alone: nothing here unpacks that type")
    try:
        with ExitStack() as stack:
            stack.enter_context(identity.watched())
            report("reading what the file holds, row by row")
            expected = [expect_rows(truth, batch.ids, batch.name, batch.heads) for batch in batches]
            for one in expected:
                judge_unpacking(result.findings, one, truth, ())
            try:
                far = stack.enter_context(far_rows(None))
            except OSError as error:
                far = None
                result.notes.append(f"rows beyond 2^32 were not tried: no sparse file here: {error.strerror}")
            judge = RowJudge(expected, settings, (), report, cold, far)
            for source, verdict in zip(sources, result.modes, strict=True):
                with identity.watched():
                    judge.judge(verdict, source, table if source.path is None else copy_of_table(source.path, table))
                verdict.judged = True
            if against is not None:  # last: it leaves both files in the page cache
                result.whole = compare_whole(table, truth, report)
            if scan:
                result.scan = scan_table(table, holes, report)
    except Changed as change:
        result.changed, result.whole, result.scan = str(change), None, None
        blame_no_mode(result.modes, result.findings)
    return result
