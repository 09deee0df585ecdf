"""The strict-cold protocol on a real file: what cannot be proven is invalid, by name, and never gets another name."""

from __future__ import annotations

import errno
import json
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import Result

from fast.rows import FallbackNotice, Table, locate_table, residency
from fast.rows.counters import count_pages
from harness.measure.caveats import caveats
from harness.measure.cells import Cell, Workload
from harness.measure.statistics import summarise
from harness.measure.stream import Tokens
from harness.measure.worker import proof as protocol
from harness.measure.worker.benches import GatherBench
from harness.measure.worker.session import REOPENED, Session
from model_file.gguf_file import open_gguf
from tests.harness.measure.conftest import made_up, plan, steady

Run = Callable[..., Result]
BENCH = ("--arm", "prefetch", "--arm", "mmap", "--workload", "gather:64", "--depth", 0, "--repeats", 1, "--blocks", 1)


def measured(
    path: Path, mode: str = "mmap-random", state: str = "cold", kernel: protocol.Kernel | None = None, **changes: Any
) -> dict[str, Any]:
    """The result of one block that gathers the rows of 64 tokens, measured in this process."""
    cell = Cell(mode, state, 0, Workload("gather", 64), 0)
    order = Tokens(0, (), 16).order(cell, 512) | {"drop_caches": changes.pop("drop_caches", False)}
    spec = {"model": str(path), "mode": mode, "row_settings": {}, "needs_model": False, "hashed": False}
    with Session(spec | changes, kernel) as session:
        return session.measure(order)


@contextmanager
def held_in_memory(path: Path) -> Iterator[None]:
    """Another mapping with every page touched: the kernel then keeps the pages whatever is asked of it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert sum(view[:: mmap.PAGESIZE]) >= 0
        yield


@pytest.mark.parametrize("mode", ["mmap", "mmap-random", "prefetch", "direct", "uring", "uring-uncached"])
@pytest.mark.filterwarnings("default::fast.rows.FallbackNotice")
def test_cold_cell_is_proven_twice(table_file: Path, mode: str) -> None:
    result = measured(table_file, mode)
    fell_back = [reason for reason in result["reasons"] if reason.startswith("fell-back")]
    assert result["reasons"] == fell_back  # a machine without io_uring says so, and nothing else
    assert result["residency"]["before"] <= 0.01
    assert not result["residency"]["reopened"]  # the mapping gave its pages up, the reader that was warmed up stayed
    assert REOPENED not in result["notes"]
    pages = result["rows"]["pages"]
    if mode.endswith("uncached"):
        assert result["used"]["disk_bytes"] >= result["rows"]["unique"] * result["rows"]["row_bytes"]
    else:
        assert result["used"]["disk_bytes"] >= 0.9 * pages * 4096
        assert result["residency"]["after"] * result["rows"]["table_pages"] >= 0.9 * pages


@pytest.mark.parametrize("mode", ["mmap-random", "prefetch", "direct"])
def test_warm_cell_reads_nothing_from_the_device(table_file: Path, mode: str) -> None:
    result = measured(table_file, mode, "warm")
    assert result["valid"], result["reasons"]
    assert result["residency"]["rows_before"] == result["residency"]["rows_after"] == 1.0
    assert result["used"]["disk_bytes"] == 0


def test_failed_eviction_is_invalid_by_name(table_file: Path) -> None:
    with held_in_memory(table_file):
        result = measured(table_file)
    assert not result["valid"]
    assert result["reasons"][0].startswith("eviction-failed")
    assert result["residency"]["before"] > 0.9
    assert result["residency"]["reopened"]


def test_failed_eviction_makes_no_headline_and_exits_3(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    out, summary = tmp_path / "run", tmp_path / "summary.json"
    with held_in_memory(table_file):
        result = run_command(
            "bench", table_file, *BENCH, "--out", out, "--json", summary, "--cache-dir", tmp_path / "cache",
        )  # fmt: skip
    assert result.exit_code == 3, result.output
    assert "eviction-failed" in result.output
    assert "No difference is claimed." in result.output
    content = json.loads(summary.read_text())
    assert [group["state"] for group in content["groups"]] == ["warm"]
    cold = [json.loads(path.read_text()) for path in (out / "cells").glob("cold.*.json")]
    assert len(cold) == 3
    assert not any(cell["valid"] for cell in cold)


def test_cell_with_a_reader_opened_anew_says_so(table_file: Path) -> None:
    """The first eviction fails, the one after closing the reader works: a cold cell, of a reader without warm-up."""
    answers = [residency.Eviction(0.5, "pretended", 3)]

    def second_time(table: Table, drop_caches: bool) -> residency.Eviction:
        return answers.pop() if answers else residency.make_cold(table, drop_caches)

    result = measured(table_file, kernel=replace(protocol.Kernel(), make_cold=second_time))
    assert result["valid"], result["reasons"]
    assert result["residency"]["reopened"]
    assert result["notes"] == [REOPENED]
    results = made_up(plan(), steady(0.01), notes=result["notes"])
    texts = [caveat.text for caveat in caveats(results, summarise(results)) if caveat.name == "note"]
    assert texts == [f"{len(results.valid)} cells: {REOPENED}"]


@pytest.mark.parametrize("drop_caches", [False, True])
def test_caches_of_the_machine_are_dropped_only_when_asked_for(table_file: Path, drop_caches: bool) -> None:
    asked = []

    def failing(_: Table, drop: bool) -> residency.Eviction:
        asked.append(drop)
        return residency.Eviction(0.5, "pretended", 3)

    measured(table_file, drop_caches=drop_caches, kernel=replace(protocol.Kernel(), make_cold=failing))
    assert asked == [False, drop_caches]


@pytest.mark.parametrize("limit", [None, {"kind": "cgroup2", "size_bytes": 1 << 30}])
def test_warm_cell_under_a_limit_brings_its_rows_in_itself(table_file: Path, limit: dict[str, Any] | None) -> None:
    """A limit does not count pages that were in memory before: they are evicted first, and that is proven too."""
    evicted = []

    def failing(table: Table, _: bool) -> residency.Eviction:
        evicted.append(table.rows)
        return residency.Eviction(0.5, "pretended", 3)

    result = measured(table_file, "direct", "warm", limit=limit)
    assert result["valid"], result["reasons"]
    kernel = replace(protocol.Kernel(), make_cold=failing)
    result = measured(table_file, "direct", "warm", limit=limit, kernel=kernel)
    assert bool(evicted) == (limit is not None)
    assert result["valid"] == (limit is None)
    assert all(reason.startswith("limit: eviction-failed") for reason in result["reasons"])


def test_faked_residency_is_found_out_by_the_device(table_file: Path) -> None:
    """Residency says cold although nothing was evicted: the device read nothing, so the rows came from memory."""
    with open_gguf(table_file) as model:
        table = locate_table(model)
        protocol.read_rows(table, np.arange(table.rows))
    lying = protocol.Kernel(
        make_cold=lambda *_: residency.Eviction(0.0, "pretended", 1), resident_fraction=lambda _: 0.0
    )
    result = measured(table_file, "direct", kernel=lying)
    assert not result["valid"]
    assert [reason.partition(":")[0] for reason in result["reasons"]] == ["warm-leak"]


@pytest.mark.parametrize("answer", [float("nan"), 0.011, 1.0])
def test_residency_above_the_bound_or_unknown_is_not_cold(table_file: Path, answer: float) -> None:
    kernel = replace(protocol.Kernel(), resident_fraction=lambda _: answer)
    result = measured(table_file, kernel=kernel)
    assert "eviction-failed" in result["reasons"][0]


def test_machine_that_cannot_tell_residency_is_invalid(table_file: Path) -> None:
    def refuse(_: Any) -> float:
        raise OSError(38, "Function not implemented")

    for state in ("cold", "warm"):
        kernel = replace(protocol.Kernel(), resident_fraction=refuse)
        result = measured(table_file, state=state, kernel=kernel)
        assert not result["valid"]
        assert result["reasons"][0].startswith("not-verified")


def test_rows_that_do_not_stay_are_not_warm(table_file: Path) -> None:
    absent = replace(protocol.Kernel(), rows_resident=lambda _, ids: np.zeros(ids.size, np.bool_))
    result = measured(table_file, state="warm", kernel=absent)
    assert {reason.partition(":")[0] for reason in result["reasons"]} == {"not-warm"}


def test_missing_device_counter_is_invalid() -> None:
    proof = protocol.Proof("cold", before=0.0)
    protocol._check_cold(proof, 10, None, "direct")
    assert proof.reasons[0].startswith("not-verified")


def test_mode_that_falls_back_is_invalid_under_its_name(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fast.rows.reader import ModeUnavailable
    from fast.rows.uring import UringReader

    def refuse(_: UringReader) -> None:
        raise ModeUnavailable("a test forbids it")

    monkeypatch.setattr(UringReader, "_open", refuse)
    with pytest.warns(FallbackNotice):
        result = measured(table_file, "uring")
    assert not result["valid"]
    assert result["reasons"][0].startswith("fell-back")


def test_repeated_token_prompt_gets_no_headline(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    prompt = tmp_path / "repeated.json"
    prompt.write_text(json.dumps([7] * 64))
    result = run_command(
        "bench", table_file, *BENCH,
        "--tokens", prompt, "--state", "warm", "--out", tmp_path / "run", "--cache-dir", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "repeated-rows" in result.output
    assert "No difference is claimed." in result.output


def test_single_repeat_gets_no_headline(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    result = run_command(
        "bench", table_file, *BENCH, "--out", tmp_path / "run", "--cache-dir", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "too-few-repeats" in result.output
    assert "No difference is claimed." in result.output


@pytest.mark.parametrize(
    ("mode", "disk_share", "found"),
    [
        ("direct", 0.95, []),
        ("direct", 0.5, ["warm-leak"]),  # more than the rows' own bytes: only the pages' bound sees it
        ("direct-uncached", 0.5, []),  # past the page cache no whole pages need to be read
        ("uring-uncached", 0.015, ["warm-leak"]),  # the rows alone are 0.022 of the pages
        ("resident", 0.0, []),
    ],
)
def test_cold_bound_is_in_pages_except_past_the_page_cache(
    table_file: Path, mode: str, disk_share: float, found: list[str]
) -> None:
    """One row on each page: its 90 bytes are a 45th of what a mode that fills the page cache must read."""
    with open_gguf(table_file) as model:
        table = locate_table(model)
        ids = np.arange(0, table.rows, 4096 // table.row_bytes + 1)[:200]
        pages = count_pages(table, ids)
        assert pages >= 200
        proof = protocol.Proof("cold", before=0.0)
        disk_bytes = int(disk_share * pages * protocol.PAGE_BYTES)
        protocol.check_afterwards(proof, table, ids, pages, disk_bytes, mode, protocol.Kernel())
    assert [reason.partition(":")[0] for reason in proof.reasons] == found


def test_rows_that_left_memory_meanwhile_were_not_warm(table_file: Path) -> None:
    """Every row is there before the measurement; afterwards the kernel says that one in ten is not."""
    asked: list[int] = []

    def leaving(_: Table, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        asked.append(ids.size)
        there = np.ones(ids.size, np.bool_)
        there[::10] = len(asked) < 3  # asked twice before, once afterwards
        return there

    kernel = replace(protocol.Kernel(), rows_resident=leaving)
    result = measured(table_file, state="warm", kernel=kernel)
    assert len(asked) == 3
    assert not result["valid"]
    assert len(result["reasons"]) == 1
    assert result["reasons"][0].startswith("not-warm")
    assert "left memory during the measurement" in result["reasons"][0]


def test_rows_that_the_rehearsal_did_not_leave_are_read(table_file: Path) -> None:
    """As after a rehearsal past the page cache: none of the rows is in memory, so all are read before the cell."""
    with open_gguf(table_file) as model:
        table = locate_table(model)
        assert residency.make_cold(table).cold
        proof = protocol.make_warm(table, np.arange(0, 4000, 40), protocol.Kernel())
    assert proof.reasons == []
    assert proof.rows_before == 1.0
    assert proof.method == "rehearsal, then pread"


def test_compiling_in_the_measurement_is_invalid(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = GatherBench.run
    monkeypatch.setattr(GatherBench, "run", lambda *given: replace(run(*given), compile_s=0.25))
    result = measured(table_file)
    assert not result["valid"]
    assert result["reasons"] == ["compiled: 0.25 s of compiling fell into the measurement"]


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_counters_are_of_the_measurement_alone(table_file: Path, state: str) -> None:
    """Warm-up and rehearsal gather as many rows again: none of theirs may be counted."""
    result = measured(table_file, "direct", state)
    assert result["valid"], result["reasons"]
    gather, rows = result["gather"], result["rows"]
    assert gather["batches"] == 1
    assert gather["rows_requested"] == rows["total"]
    assert gather["bytes_useful"] == rows["total"] * rows["row_bytes"]


def test_reader_keeps_no_page_of_the_table_mapped_between_blocks(table_file: Path) -> None:
    """Another arm's eviction would fail: a touched mapping keeps its pages, even those of an idle process."""
    order = Tokens(0, (), 16).order(Cell("mmap", "warm", 0, Workload("gather", 64), 0), 512) | {"drop_caches": False}
    spec = {"model": str(table_file), "mode": "mmap", "row_settings": {}, "needs_model": False, "hashed": False}
    with Session(spec) as session:
        assert session.measure(order)["valid"]
        assert residency.resident_fraction(session.table) > 0
        assert residency.make_cold(session.table).cold


def test_cell_of_a_table_with_holes_says_so(table_file: Path, tmp_path: Path) -> None:
    """Space that was only allocated needs no device: a cold figure of it would praise any reader."""
    path = tmp_path / "unfinished.gguf"
    with open_gguf(table_file) as model:
        segment = locate_table(model).segments[0]
        head = table_file.read_bytes()[: segment.offset_bytes]
    with path.open("wb") as file:
        file.write(head)
        file.truncate(table_file.stat().st_size)
    result = measured(path, "direct")
    assert not result["valid"]
    assert result["residency"]["holes"] > 0.9
    found = [reason for reason in result["reasons"] if reason.startswith("holes")]
    assert len(found) == 1
    assert "never written" in found[0]
    assert not any("came from memory" in reason for reason in result["reasons"])


def test_file_system_that_tells_no_holes_has_none(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    with open_gguf(table_file) as model:
        assert protocol.hole_share(locate_table(model)) == 0.0
        monkeypatch.setattr(protocol.os, "lseek", refuse)
        assert protocol.hole_share(locate_table(model)) == 0.0


def test_few_holes_are_a_caveat() -> None:
    results = made_up(plan(), steady(0.01), residency={"holes": 0.02})
    texts = {caveat.name: caveat.text for caveat in caveats(results, summarise(results))}
    assert "2.0% of the table was never written" in texts["holes"]
