"""Cells, their order, and how long they will take."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.rows import RowSettings
from harness.measure.cells import (
    TWIN,
    Arm,
    Cell,
    Workload,
    cell_as_dict,
    cell_from,
    parse_arm,
    parse_arms,
    parse_workload,
)
from harness.measure.plan import Matrix, order
from harness.measure.predict import Estimate, TimeLeft, calibration_cells, preparation_cells
from harness.measure.stream import Tokens, check_given, row_ids
from model_file.errors import InputError
from model_file.hash_constants import HashConstants
from tests.harness.measure.conftest import matrix


@given(
    arms=st.integers(1, 4),
    states=st.sampled_from([("cold",), ("cold", "warm")]),
    depths=st.integers(1, 3),
    repeats=st.integers(1, 4),
)
def test_order_has_every_cell_once_and_turns_every_block(
    arms: int, states: tuple[str, ...], depths: int, repeats: int
) -> None:
    made = Matrix(
        tuple(Arm(f"arm{i}", "mmap") for i in range(arms)),
        states,
        tuple(range(depths)),
        (Workload("prefill", 8), Workload("decode", 4)),
        repeats,
    )
    cells = order(made)
    assert len(set(cells)) == len(cells) == (arms + 1) * len(states) * depths * 2 * repeats
    width = arms + 1
    blocks = [cells[start : start + width] for start in range(0, len(cells), width)]
    for block in blocks:
        assert len({(cell.group, cell.repeat) for cell in block}) == 1
        assert {block[0].arm, block[-1].arm} == {"arm0", "arm0" + TWIN}
    directions = [block[0].arm == "arm0" for block in blocks]
    per_repeat = len(blocks) // repeats
    for repeat in range(1, repeats):
        before = directions[(repeat - 1) * per_repeat : repeat * per_repeat]
        now = directions[repeat * per_repeat : (repeat + 1) * per_repeat]
        assert all(one != other for one, other in zip(before, now, strict=True))


def test_cell_survives_json() -> None:
    cell = Cell("uring", "cold", 4096, Workload("decode", 128), 3)
    assert cell_from(cell_as_dict(cell)) == cell
    assert cell.id == "cold.d4096.decode128.uring.r3"


def test_ids_of_cells_are_all_different() -> None:
    names = Counter(cell.id for cell in order(matrix()))
    assert max(names.values()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uring", Arm("uring", "uring")),
        ("on", Arm("prefetch", "prefetch")),
        ("few=uring,queue_depth=32", Arm("few", "uring", (("queue_depth", "32"),))),
        ("old=commit:HEAD~3", Arm("old", "auto", (), "HEAD~3")),
        ("old=direct,commit:v1,chunk=256", Arm("old", "direct", (("chunk", "256"),), "v1")),
    ],
)
def test_arm_is_read_from_its_text(text: str, expected: Arm) -> None:
    assert parse_arm(text) == expected


@pytest.mark.parametrize(
    "text",
    ["no-such-mode", "x=", "x=uring,queue_depth=many", "x=what=1", "a/b=uring", "x=commit:", "x=direct,workers=0"],
)
def test_arm_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        parse_arm(text)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(RowSettings) if f.type == "int"])
def test_every_row_setting_can_be_an_arm(name: str) -> None:
    value = getattr(RowSettings(), name) + 1
    arm = parse_arm(f"x=direct,{name}={value}")
    assert getattr(RowSettings(**arm.row_settings()), name) == value


def test_arms_are_refused_twice_and_baseline_goes_first() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_arms(["mmap", "mmap"], None)
    with pytest.raises(InputError, match="no arm of this run"):
        parse_arms(["mmap"], "uring")
    assert [arm.name for arm in parse_arms(["mmap", "uring"], "uring")] == ["uring", "mmap"]


@pytest.mark.parametrize("text", ["prefill", "prefill:0", "prefill:-1", "sleep:3", "decode:x"])
def test_workload_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected prefill:N"):
        parse_workload(text)


def test_tokens_are_the_same_for_all_arms_of_a_block_and_others_in_every_block() -> None:
    """Also at another depth, in the other state, and at the beginning of a longer workload."""
    tokens, work = Tokens(4096, (1,)), Workload("prefill", 256)
    cell = Cell("one", "cold", 0, work, 0)
    first = tokens.measured(cell)
    assert tokens.measured(replace(cell, arm="two")) == first
    changes: list[dict[str, Any]] = [{"repeat": 1}, {"depth": 4096}, {"state": "warm"}]
    changes.append({"workload": Workload("prefill", 512)})
    for change in changes:
        assert tokens.measured(replace(cell, **change))[:256] != first, change
    assert 1 not in first + tokens.context(300) + tokens.warm_up(work, 512)


def test_calibration_has_tokens_of_its_own() -> None:
    """Rows that a calibration has read would be known to a disk's cache when the first cells read them."""
    made = matrix(repeats=3)
    others = {cell.repeat for cell in preparation_cells(made) + calibration_cells(made)}
    assert not others & {cell.repeat for cell in order(made)}


def test_given_prompt_is_never_repeated_to_fill_it_up() -> None:
    with pytest.raises(InputError, match="nothing is repeated"):
        check_given([5] * 100, [Workload("prefill", 512)], 4096, "prompt.json")


def test_row_ids_continue_the_context_before() -> None:
    constants = HashConstants((3, 5, 7), (101, 103), (0, 101), 1, 99)
    whole = row_ids(constants, [7, 9, 11], [])
    assert whole.tolist() == [1, 124, 56, 136, 12, 162]  # the specification's vector
    assert row_ids(constants, [9, 11], [7]).tolist() == [56, 136, 12, 162]
    assert row_ids(constants, [11], [3, 3, 7, 9]).tolist() == [12, 162]


def _seconds(cell: Cell) -> float:
    own = {"prefetch": 3.0, "prefetch" + TWIN: 3.0, "uring": 3.5}[cell.arm]
    return own + cell.depth / 2048 + (1.0 if cell.state == "warm" else 0.0) + cell.workload.tokens / 512


def test_prediction_from_few_cells_is_close() -> None:
    made = matrix(depths=(0, 4096, 16384, 32768), workloads=(Workload("prefill", 512), Workload("decode", 128)))
    cells = order(made)
    few = calibration_cells(made)
    assert len(few) < len(cells) / 10
    estimate = Estimate(made, [(cell, _seconds(cell)) for cell in few])
    actual = sum(map(_seconds, cells))
    assert abs(estimate.total(cells) / actual - 1) <= 0.05


def test_time_left_follows_what_was_measured() -> None:
    made = matrix()
    cells = order(made)
    estimate = Estimate(made, [(cell, _seconds(cell)) for cell in calibration_cells(made)])
    left = TimeLeft(estimate)
    for cell in cells[:60]:
        left.finished(cell, 2 * _seconds(cell))
    rest = cells[60:]
    assert 1.5 <= left.left(rest) / estimate.total(rest) <= 2.0


def test_preparation_reaches_every_depth_and_kind() -> None:
    made = matrix(workloads=(Workload("prefill", 512), Workload("decode", 8), Workload("gather", 8)))
    cells = preparation_cells(made)
    assert {cell.depth for cell in cells} == set(made.depths)
    assert {cell.workload.kind for cell in cells} == {"prefill", "decode"}
