"""Rounds of one cell in one process, for `tests/bench`: each has its cache state made and proven before it, and again
after it by what the device did meanwhile. Both lie outside what is timed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader, Table
from fast.rows.counters import count_pages
from harness.measure import protocol
from harness.measure.cells import COLD
from harness.measure.protocol import Kernel, Proof
from harness.measure.usage import Usage


class ProvenRounds:
    """What proves the rounds of one cell. ids: the rows that a round reads. name: the cell's, for messages."""

    def __init__(
        self,
        table: Table,
        ids: npt.NDArray[np.int64],
        *,
        state: str,
        mode: str,
        name: str,
        kernel: Kernel | None = None,
    ) -> None:
        self._table, self._ids, self._state, self._mode, self._name = table, np.unique(ids), state, mode, name
        self._pages = count_pages(table, self._ids)
        self._kernel = kernel or Kernel()
        self._started: Usage | None = None

    def prepare(self, readers: Iterable[RowReader]) -> None:
        """Make the state and prove it. readers: all that are open, a mapping of any of them keeps pages.

        Raises: AssertionError where the state cannot be made.
        """
        if self._state == COLD:
            for reader in readers:
                reader.trim(0)
            eviction = self._kernel.make_cold(self._table, False)
            assert eviction.cold, f"{eviction.resident:.1%} of the table stayed in memory: {self._name} is not cold"
        else:
            protocol.read_rows(self._table, self._ids)
            resident = self._kernel.rows_resident(self._table, self._ids).mean()
            assert resident >= protocol.WARM_SHARE, (
                f"{resident:.1%} of the rows are in memory: {self._name} is not warm"
            )
        self._started = Usage.now()

    def check(self) -> None:
        """Prove the round's state again, from what the device read since `prepare` and from what is in memory now.

        Raises: AssertionError where the round was not what its name says, and where `prepare` did not come before.
        """
        assert self._started is not None, f"{self._name}: a round is checked that nothing was prepared for"
        disk_bytes = self._started.until(Usage.now(), 0.0)["disk_bytes"]
        self._started = None
        proof = Proof(self._state)
        protocol.check_afterwards(proof, self._table, self._ids, self._pages, disk_bytes, self._mode, self._kernel)
        assert not proof.reasons, f"{self._name}: {'; '.join(proof.reasons)}"
