"""What is claimed, and what is not: made-up times with a known truth."""

from __future__ import annotations

import random

import pytest

from harness.engines.arms import TWIN, Arm
from harness.measure.caveats import caveats
from harness.measure.cells import Cell
from harness.measure.statistics import (
    CONFIDENCE,
    FASTER,
    NO_CLAIM,
    NO_DIFFERENCE,
    SLOWER,
    Comparison,
    spread,
    summarise,
)
from harness.measure.store import Results
from harness.measure.summary import claims, print_summary
from tests.harness.measure.conftest import made_up, plan, steady

NOTHING = ["No difference is claimed."]


def _names(results: Results) -> set[str]:
    return {caveat.name for caveat in caveats(results, summarise(results))}


def _comparisons(results: Results) -> list[Comparison]:
    return [comparison for summary in summarise(results) for comparison in summary.comparisons]


def test_large_difference_is_claimed_in_both_directions() -> None:
    for factor, verdict in ((0.5, FASTER), (2.0, SLOWER)):
        results = made_up(plan(), steady(0.01, uring=factor))
        found = _comparisons(results)
        assert [c.verdict for c in found] == [verdict] * 6
        assert all(c.ratio is not None and abs(c.ratio.median * factor - 1) <= 0.02 for c in found)
        assert _names(results) == set()


def test_claim_names_state_depth_spread_and_pairs() -> None:
    line = claims(summarise(made_up(plan(), steady(0.01, uring=0.5))))[0]
    for part in ("cold", "depth 0", "prefill of 512", "uring", "prefetch", "interval", "6 repeats"):
        assert part in line


def test_equal_arms_are_not_told_apart() -> None:
    assert {c.verdict for c in _comparisons(made_up(plan(repeats=10), steady(0.05)))} <= {NO_DIFFERENCE}


@pytest.mark.parametrize("repeats", [6, 11])
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_equal_arms_are_claimed_by_chance_as_rarely_as_the_page_says(repeats: int, noise: float) -> None:
    """400 comparisons with a baseline that is quieter than the arms, or as noisy."""
    arms = tuple(Arm(name, "uring") for name in ("prefetch", "one", "two"))
    made = plan(arms=arms, depths=tuple(range(100)), repeats=repeats)
    quiet, noisy = steady(noise), steady(0.3)
    found = _comparisons(made_up(made, lambda cell: (quiet if cell.arm.startswith("prefetch") else noisy)(cell)))
    assert len(found) == 400
    assert sum(c.claims for c in found) <= (1 - CONFIDENCE) * len(found)
    assert any(c.ratio is not None and c.ratio.excludes_one for c in found)


@pytest.mark.parametrize("repeats", [1, 2, 3, 5])
def test_few_repeats_claim_nothing_however_large_the_difference(repeats: int) -> None:
    results = made_up(plan(repeats=repeats), steady(0.001, uring=0.1))
    assert {c.verdict for c in _comparisons(results)} == {NO_CLAIM}
    assert claims(summarise(results)) == NOTHING
    assert ("too-few-repeats" if repeats < 3 else "no-intervals") in _names(results)


def test_control_that_differs_from_itself_takes_the_claim_away() -> None:
    """The baseline's second run differs by 40%: a gain of 25%, steady as it is, is not claimed."""
    results = made_up(plan(), steady(0.001, uring=0.8, **{"prefetch" + TWIN: 1.4}))
    assert {c.verdict for c in _comparisons(results)} == {NO_DIFFERENCE}
    assert all("differs from itself" in c.why for c in _comparisons(results))
    assert claims(summarise(results)) == NOTHING
    assert {"noisy-control", "biased-control"} <= _names(results)


def test_noise_of_the_control_that_points_no_way_takes_no_claim_away() -> None:
    """The twin scatters by 40% around 1, the gain is steady: more repeats would find the same."""
    generator = random.Random(3)

    def seconds(cell: Cell) -> float:
        if cell.arm.endswith(TWIN):
            return generator.uniform(0.7, 1.4)
        return 0.6 if cell.arm == "uring" else 1.0

    assert {c.verdict for c in _comparisons(made_up(plan(repeats=12), seconds))} == {FASTER}


def test_control_that_leans_to_one_side_is_named() -> None:
    results = made_up(plan(), steady(0.01, **{"prefetch" + TWIN: 0.9}))
    assert "biased-control" in _names(results)


def test_no_control_claims_nothing() -> None:
    results = made_up(plan(twin=False), steady(0.01, uring=0.5))
    assert claims(summarise(results)) == NOTHING
    assert "no-noise-pair" in _names(results)


def test_repeated_rows_claim_nothing() -> None:
    results = made_up(plan(), steady(0.01, uring=0.5), rows={"unique": 16, "unique_ratio": 16 / 2048})
    assert claims(summarise(results)) == NOTHING
    assert "repeated-rows" in _names(results)
    assert all("different ones" in c.why for c in _comparisons(results))


def test_invalid_cells_count_for_nothing_and_are_named() -> None:
    results = made_up(plan(), steady(0.01, uring=0.5))
    for cell in results.planned():
        if cell.arm == "uring" and cell.state == "cold":
            results.cells[cell.id] |= {"valid": False, "reasons": ["eviction-failed: 40% stayed"]}
    assert {s.group.state for s in summarise(results) if s.comparisons} == {"warm"}
    assert "eviction-failed" in _names(results)
    assert not any(line.startswith("cold") for line in claims(summarise(results)))


def test_only_pairs_of_valid_cells_are_compared() -> None:
    results = made_up(plan(), steady(0.01, uring=0.5))
    for cell in results.planned():
        if (cell.arm, cell.repeat) in {("uring", 0), ("prefetch", 1)}:
            results.cells[cell.id]["valid"] = False
            results.cells[cell.id]["reasons"] = ["killed: by a test"]
    assert {c.ratio.count for c in _comparisons(results) if c.ratio} == {4}
    assert claims(summarise(results)) == NOTHING


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"used": {"disk_bytes": 10**7}}, "warm-reads"),
        ({"process": {"other_cpu": 1.2}}, "busy-machine"),
        ({"rows": {"table_pages": 5000}}, "small-table"),
        ({"limit": {"problem": "no cgroup", "kind": "rlimit"}}, "limit-not-applied"),
        ({"notes": ["direct: continued with pread"]}, "note"),
    ],
)
def test_data_raises_its_caveat(change: dict[str, object], name: str) -> None:
    assert name in _names(made_up(plan(), steady(0.01), **change))


def test_few_depths_and_uncommitted_code_are_named() -> None:
    made = plan(depths=(0, 4096))
    made.machine["dirty"] = True
    assert {"few-depths", "uncommitted"} <= _names(made_up(made, steady(0.01)))


def test_code_that_changed_meanwhile_is_named() -> None:
    results = made_up(plan(), steady(0.01), code="1")
    assert "mixed-code" not in _names(results)
    results.cells[results.planned()[0].id]["code"] = "2"
    assert "mixed-code" in _names(results)


def test_busy_machine_is_seen_in_short_cells_too() -> None:
    results = made_up(plan(), lambda _: 0.002, process={"other_cpu": 1.2})
    assert "busy-machine" in _names(results)


def test_blocks_of_two_sessions_are_named() -> None:
    results = made_up(plan(), steady(0.01))
    next(iter(results.cells.values()))["session"] = 1
    assert "split-blocks" in _names(results)


def test_nothing_cold_is_claimed_of_a_mode_with_the_table_in_its_memory() -> None:
    made = plan(arms=(Arm("prefetch", "prefetch"), Arm("all", "resident")))
    found = _comparisons(made_up(made, steady(0.01, all=0.1)))
    assert {(c.group.state, c.verdict) for c in found} == {("cold", NO_CLAIM), ("warm", FASTER)}
    assert all("never cold" in c.why for c in found if c.group.state == "cold")


def test_unfinished_run_is_named() -> None:
    results = made_up(plan(), steady(0.01))
    del results.cells[results.planned()[-1].id]
    assert "unfinished" in _names(results)


@pytest.mark.parametrize("count", [6, 9, 20])
def test_interval_holds_the_truth_as_often_as_it_says(count: int) -> None:
    """Skewed noise with median 1, drawn 600 times: the interval must hold it in 90% (less 3% by chance)."""
    generator = random.Random(count)
    held = 0
    for _ in range(600):
        found = spread([generator.lognormvariate(0, 0.3) for _ in range(count)])
        assert found.low is not None and found.high is not None
        held += found.low <= 1 <= found.high
    assert held >= 0.87 * 600


@pytest.mark.parametrize(("count", "outside"), [(6, 0), (10, 0), (11, 1), (20, 3), (100, 34)])
def test_interval_leaves_out_what_the_bet_allows(count: int, outside: int) -> None:
    """Worked out with exact fractions from the docstring's formula, with k values above."""
    values = [float(value) for value in range(count)]
    found = spread(values)
    assert (found.low, found.high) == (values[outside], values[-1 - outside])


def test_five_repeats_give_no_interval() -> None:
    assert spread([1.0] * 5).low is None


def test_a_repeat_is_one_value_however_many_blocks_it_has() -> None:
    """A process that is slow from its start makes all its blocks slow: they are no independent values."""
    generator = random.Random(5)
    slow: dict[tuple[str, int], float] = {}

    def seconds(cell: Cell) -> float:
        own = slow.setdefault((cell.arm, cell.repeat), generator.lognormvariate(0, 0.2))
        return own * generator.uniform(0.999, 1.001)

    made = plan(depths=tuple(range(40)), states=("warm",), blocks=8)
    results = made_up(made, seconds)
    assert {c.ratio.count for c in _comparisons(results) if c.ratio} == {6}


def test_other_baseline_can_be_chosen_but_nothing_is_claimed_against_it() -> None:
    """Only the plan's baseline ran twice: its noise is not that of the chosen one."""
    results = made_up(plan(), steady(0.01, uring=0.5))
    summaries = summarise(results, "uring")
    found = [c for s in summaries for c in s.comparisons]
    assert {(c.arm, c.baseline, c.verdict, c.noise) for c in found} == {("prefetch", "uring", NO_CLAIM, None)}
    assert all(c.ratio is not None and abs(c.ratio.median - 0.5) <= 0.02 for c in found)
    assert all("only prefetch ran twice, so the noise of uring is not known" in c.why for c in found)
    assert claims(summaries) == NOTHING
    named = {caveat.name: caveat.text for caveat in caveats(results, summaries)}
    assert set(named) == {"no-noise-pair"}
    assert "uring" in named["no-noise-pair"]


def test_plans_own_baseline_named_again_changes_nothing() -> None:
    results = made_up(plan(), steady(0.01, uring=0.5))
    assert summarise(results, "prefetch") == summarise(results)


def test_control_with_too_few_valid_runs_claims_nothing() -> None:
    results = made_up(plan(), steady(0.01, uring=0.5))
    for cell in results.planned():
        if cell.arm.endswith(TWIN) and cell.repeat < 1:
            results.cells[cell.id] |= {"valid": False, "reasons": ["killed: by a test"]}
    assert {c.verdict for c in _comparisons(results)} == {NO_CLAIM}
    assert all("fewer than 6 repeats with prefetch" in c.why for c in _comparisons(results))


@pytest.mark.parametrize(("chosen", "said"), [(None, True), ("uring", False)])
def test_summary_says_within_what_only_of_the_baseline_that_ran_twice(
    capsys: pytest.CaptureFixture[str], chosen: str | None, said: bool
) -> None:
    results = made_up(plan(), steady(0.01, uring=0.5))
    summaries = summarise(results, chosen)
    print_summary(results, summaries, caveats(results, summaries))
    assert ("itself within" in capsys.readouterr().out) == said
