"""A golden that cannot judge its case is a difference, whatever the rows are."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable

import pytest

from fast.rows import RowSettings, syscalls
from harness.answers.record import Golden, Probe
from harness.answers.store import read_golden
from harness.cases.case import ROWS, TOKENS, parse_modes
from harness.cases.registry import case_by_id
from harness.gate import choice, rows
from harness.gate import run as gate
from harness.gate.golden_check import GoldenCheck
from harness.gate.verdicts import GateResult
from harness.pages.gate_text import print_check
from tests.conftest import FIXTURES

TINY = FIXTURES / "tiny.gguf"


def _judged(golden: Golden | None, **changes: object) -> GateResult:
    """`tiny` at the level of rows, with a golden of one's own."""
    case = dataclasses.replace(case_by_id("tiny"), generate=0, **changes)
    return gate.run_gate(TINY, [case], parse_modes(["resident"]), gate.GateOptions(goldens={"tiny": golden}))


def _recorded() -> Golden:
    golden = read_golden("tiny")
    assert golden is not None
    return golden


def _with_probes(golden: Golden, number: int, keep: Callable[[Probe], bool]) -> Golden:
    prompts = list(golden.prompts)
    prompts[number] = dataclasses.replace(prompts[number], probes=tuple(filter(keep, prompts[number].probes)))
    return dataclasses.replace(golden, prompts=tuple(prompts))


@pytest.mark.parametrize(
    ("keep", "missing"),
    [
        (lambda _: False, "blk.1.ple at position"),
        (lambda probe: not probe.name.endswith(".ple"), "blk.1.ple at position"),
        (lambda probe: probe.name != "logits", "logits at position"),
        (lambda probe: probe.position != 63, "blk.1.ple at position 63"),
    ],
)
def test_gate_fails_on_a_golden_without_intermediates(keep: Callable[[Probe], bool], missing: str) -> None:
    """What the case's levels are judged by must be there: a golden that lacks it would pass everything."""
    golden = _recorded()
    number = max(range(3), key=lambda n: len(golden.prompts[n].ids))
    result = _judged(_with_probes(golden, number, keep))
    assert result.exit_code == 1
    assert [finding.check for finding in result.findings] == ["golden file"]
    assert missing in result.findings[0].message
    assert _judged(golden).findings == []
    assert _judged(_with_probes(golden, number, keep), levels=(ROWS, TOKENS)).findings == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_gate_fails_on_a_golden_of_fewer_or_more_prompts(count: int) -> None:
    golden = _recorded()
    prompts = (*golden.prompts, dataclasses.replace(golden.prompts[0], name="more"))[:count]
    result = _judged(dataclasses.replace(golden, prompts=prompts))
    assert result.exit_code == 1
    assert "the golden's prompts are not the case's" in result.findings[0].message
    assert result.modes[0].verdict == "equal"


@pytest.mark.parametrize("quick", [False, True])
def test_golden_is_cut_to_the_case_for_the_short_form_only(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    golden = _recorded()
    more = dataclasses.replace(golden, prompts=(*golden.prompts, golden.prompts[0]))
    monkeypatch.setattr(choice, "read_golden", lambda _: more)
    asked = gate.GateOptions()
    ((_, cases),), options = choice.choose(
        TINY, ["tiny"], ([], [], []), None, quick, None, False, asked, lambda _: None
    )
    assert options.goldens is not None
    chosen = options.goldens["tiny"]
    assert chosen is not None
    assert len(chosen.prompts) == (len(cases[0].prompts) if quick else len(more.prompts))


def test_golden_check_says_that_a_mode_did_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right tokens of another mode are no answer of the one that was asked for."""
    refusing = RowSettings(
        syscall=lambda name, *rest: -errno.ENOSYS if name == "io_uring_setup" else syscalls.call(name, *rest)
    )
    real = rows.open_rows
    monkeypatch.setattr(rows, "open_rows", lambda table, mode, _: real(table, mode, refusing))
    result = gate.run_gate(
        TINY, [dataclasses.replace(case_by_id("tiny"), generate=0)], parse_modes(["uring"]), gate.GateOptions()
    )
    check = GoldenCheck(result.cases, result)
    print_check(check)
    shown = " ".join(capsys.readouterr().out.split())
    assert check.exit_code == 3
    assert "tiny tiny not run" in shown
    assert "uring: ran as direct" in shown
    assert "verdict: 0 of 1 cases answer as recorded." in shown


def test_golden_check_says_that_a_case_is_different(capsys: pytest.CaptureFixture[str]) -> None:
    result = _judged(dataclasses.replace(_recorded(), model={**_recorded().model, "sha256": "0" * 64}))
    print_check(GoldenCheck(result.cases, result))
    assert "tiny tiny different" in " ".join(capsys.readouterr().out.split())
    print_check(GoldenCheck(result.cases, _judged(_recorded())))
    assert "tiny tiny equal" in " ".join(capsys.readouterr().out.split())
