"""Small goldens and results made by hand: nothing is computed for them."""

from __future__ import annotations

from dataclasses import replace

from harness.answers.record import Closest, Golden, GoldenPrompt, Probe
from harness.cases.case import Case, TokenPrompt
from harness.gate.checks import Finding
from harness.gate.verdicts import GateResult, MarginLine, ModeVerdict


def golden(case: str = "tiny", margin: float = 0.02) -> Golden:
    """A golden of one prompt with three steps, the smallest margin at step 1."""
    probe = Probe("blk.1.ple", 1, 4, 2.0, (0, 1, 2, 3), (1.0, 1.0, -1.0, 1.0), (1.0, 0.0, -1.0, 0.0))
    prompt = GoldenPrompt(
        name="only",
        ids=(5, 6),
        generated=(7, 8, 9),
        margins=(0.5, margin, 0.25),
        row_digests=("ab" * 32,),
        probes=(probe,),
        closest=(Closest("block_gap", 1e-3, 1, 3),),
    )
    return Golden(
        case=case,
        model={"name": "tiny", "made": "by hand", "size_bytes": 9, "sha256": "cd" * 32},
        producer={"engine": "reference", "versions": {"jax": "0"}},
        confirmed_by=("fast",),
        numeric_error={"logits": 1e-4, "measured": 7e-5, "how": "stated"},
        chunk=64,
        reason="made by hand",
        prompts=(prompt,),
    )


def with_answer(old: Golden, generated: tuple[int, ...]) -> Golden:
    """The same golden with another answer."""
    return replace(old, prompts=(replace(old.prompts[0], generated=generated),))


def result(*findings: Finding, not_run: str | None = None, about_file: tuple[Finding, ...] = ()) -> GateResult:
    """A run of two modes: `resident` is equal, `uring` has the findings."""
    case = Case("tiny", "by hand", "tiny", (TokenPrompt("only", (5, 6)),), 3, "difference", 1e-3, "made by hand")
    counters = {"rows_requested": 8, "wall_s": 1e-5, "read_calls": 2, "batches": 1, "bytes_device": None}
    good = ModeVerdict("resident", "resident", None, 8, 3, 1, 2, counters=counters, evidence=None, wall_s=0.5)
    bad = ModeVerdict("uring", "uring", None, 8, 3, 1, 2, list(findings), not_run, counters, None, 0.25)
    margins = [MarginLine("tiny", "only", (0.5, 0.02, 0.25), 1e-3)]
    return GateResult(
        "a <model>.gguf", "cd" * 32, "fast", [case], {"tiny": True}, [good, bad], list(about_file), margins
    )


ROW = Finding("packed rows", "tiny", "only", "first difference in packed rows: row 3 & <more>", {"row": 3})
TOKEN = Finding("tokens", "tiny", "only", "first difference in tokens", {"step": 1})
UNSTEADY = Finding("control rows", "tiny", "only", "two gathers differ", {})
STALE = Finding("golden file", "tiny", "", "case tiny has no golden", {})
