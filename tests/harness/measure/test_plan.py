"""Cells, their order and their tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.arms import TWIN, Arm, parse_arm
from harness.measure.cells import Cell, Workload, cell_as_dict, cell_from, parse_workload
from harness.measure.plan import LEAD_IN, Matrix, blocks_for
from harness.measure.stream import Tokens, check_given
from model_file.errors import InputError
from tests.harness.measure.conftest import matrix


@given(
    arms=st.integers(1, 4),
    states=st.sampled_from([("cold",), ("cold", "warm")]),
    depths=st.integers(1, 3),
    repeats=st.integers(1, 4),
    blocks=st.integers(1, 4),
)
def test_order_has_every_cell_once_and_turns_every_block(
    arms: int, states: tuple[str, ...], depths: int, repeats: int, blocks: int
) -> None:
    made = Matrix(
        tuple(Arm(f"arm{i}", "mmap") for i in range(arms)),
        states,
        tuple(range(depths)),
        (Workload("prefill", 8), Workload("decode", 4)),
        repeats,
        blocks,
    )
    cells = [cell for repeat in range(repeats) for cell in made.cells_of(repeat)]
    assert len(set(cells)) == len(cells) == (arms + 1) * len(states) * depths * 2 * repeats * blocks
    width = arms + 1
    found = [cells[start : start + width] for start in range(0, len(cells), width)]
    forwards: dict[Any, list[bool]] = {}
    for block in found:
        assert len({(cell.group, cell.repeat, cell.block) for cell in block}) == 1
        assert {block[0].arm, block[-1].arm} == {"arm0", "arm0" + TWIN}
        forwards.setdefault(block[0].group, []).append(block[0].arm == "arm0")
    for each in forwards.values():
        in_repeat = [each[start : start + blocks] for start in range(0, len(each), blocks)]
        assert all(one != other for own in in_repeat for one, other in pairwise(own))
        assert all(one[0] != other[0] for one, other in pairwise(in_repeat))


def test_few_groups_get_more_blocks_always_an_even_number() -> None:
    assert [blocks_for(groups) for groups in (1, 2, 3, 4, 8, 24)] == [8, 4, 4, 2, 2, 2]


def test_cell_survives_json() -> None:
    cell = Cell("uring", "cold", 4096, Workload("decode", 128), 3, 1)
    assert cell_from(cell_as_dict(cell)) == cell
    assert cell.id == "cold.d4096.decode128.uring.r3.b1"


def test_ids_of_cells_are_all_different() -> None:
    names = Counter(cell.id for repeat in range(3) for cell in matrix(blocks=2).cells_of(repeat))
    assert max(names.values()) == 1


@pytest.mark.parametrize("text", ["prefill", "prefill:0", "prefill:-1", "sleep:3", "decode:x", "gather:\u0663"])
def test_workload_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected prefill:N"):
        parse_workload(text)


def test_device_and_outside_engines_are_measured_in_what_they_have() -> None:
    gather, prefill = Workload("gather", 8), Workload("prefill", 8)
    with pytest.raises(InputError, match="the device reads rows and nothing else"):
        matrix(arms=(parse_arm("device"),), workloads=(prefill,))
    with pytest.raises(InputError, match="only a server that is started here is measured cold"):
        matrix(arms=(parse_arm("a=http://localhost:1"),), states=("cold",))
    with pytest.raises(InputError, match="an outside engine is measured with prefill:N and decode:N"):
        matrix(arms=(parse_arm("llama-server"),), states=("warm",), workloads=(gather,))
    cells = matrix(arms=(Arm("auto", "auto"), parse_arm("device")), workloads=(gather,)).cells_of(0)
    assert {cell.state for cell in cells if cell.arm == "device"} == {"cold"}


def test_tokens_are_the_same_for_all_arms_of_a_block_and_others_in_every_block() -> None:
    """Also at another depth, in the other state, and at the beginning of a longer workload."""
    tokens, work = Tokens(4096, (1,), 4), Workload("prefill", 256)
    cell = Cell("one", "cold", 0, work, 0)
    first = tokens.order(cell, 512)["fed"]
    assert tokens.order(replace(cell, arm="two"), 512)["fed"] == first
    changes: list[dict[str, Any]] = [{"repeat": 1}, {"block": 1}, {"depth": 300}, {"state": "warm"}]
    changes.append({"workload": Workload("prefill", 512)})
    for change in changes:
        order = tokens.order(replace(cell, **change), 512)
        assert order["fed"][:256] != first, change
        assert 1 not in order["fed"] + order["context"] + order["warm_up"]


def test_order_tells_what_was_fed_before() -> None:
    """The hash of the first rows reaches back: into the context, and before a decode into what it continues."""
    tokens = Tokens(4096, (1,), 4)
    prefill = tokens.order(Cell("a", "cold", 100, Workload("prefill", 8), 0), 512)
    assert prefill["before"] == prefill["context"][-LEAD_IN:]
    decode = tokens.order(Cell("a", "cold", 100, Workload("decode", 8), 0), 512)
    assert decode["before"] == decode["context"][-LEAD_IN:] + decode["fed"]
    assert tokens.order(Cell("a", "cold", 100, Workload("gather", 8), 0), 512)["before"] == []


def test_table_without_a_hash_gets_rows_that_are_drawn() -> None:
    order = Tokens(0, (), 4).order(Cell("a", "cold", 0, Workload("gather", 8), 0), 512)
    assert order["fed"]["rows"] == order["rows"] == 32


def test_given_prompt_is_never_repeated_to_fill_it_up() -> None:
    with pytest.raises(InputError, match="nothing is repeated"):
        check_given([5] * 100, [Workload("prefill", 512)], 4096, "prompt.json")
