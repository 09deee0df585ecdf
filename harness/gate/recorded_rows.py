"""Goldens against the file: there is one, it is of this very file, and the file's rows are the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.answers.produce import missing_probe
from harness.answers.record import Golden
from harness.answers.store import how_to_make
from harness.cases.case import LOGITS, PLE
from harness.cases.models import model_digest
from harness.gate.checks import Finding
from harness.gate.rows import ExpectedRows
from harness.gate.tokens import CaseRun
from harness.oracle import packed_digests
from model_file.config import ModelConfig


def check_goldens(
    path: Path,
    runs: Sequence[CaseRun],
    expected: Sequence[ExpectedRows],
    config: ModelConfig,
    goldens: Mapping[str, Golden | None],
) -> tuple[str, list[Finding]]:
    """The model's SHA-256, and what is wrong with the goldens of these cases. expected: rows of every prompt."""
    digest, findings = model_digest(path), []
    for run in runs:
        message = _problem(run, digest, config, goldens)
        if message is not None:
            findings.append(Finding("golden file", run.case.id, "", message, {}))
        elif run.golden is not None:
            mine = [one for one in expected if one.case == run.case.id]
            findings += _other_rows(run, run.golden, mine)
    return digest, findings


def _problem(run: CaseRun, digest: str, config: ModelConfig, goldens: Mapping[str, Golden | None]) -> str | None:
    if goldens.get(run.case.id) is None:
        return f"case {run.case.id} has no golden: {how_to_make(run.case.id)}"
    if run.golden is None:
        return f"case {run.case.id}: the golden's prompts are not the case's: {how_to_make(run.case.id)}"
    if run.golden.model["sha256"] != digest:
        return (
            f"case {run.case.id}: the golden is of a file with SHA-256 {run.golden.model['sha256']}, found "
            f"{digest}: the model was changed, or the golden is stale; {how_to_make(run.case.id)}"
        )
    missing = missing_probe(run.case, run.golden, config)
    if missing is not None:
        prompt, name, position = missing
        return (
            f"case {run.case.id}, prompt {prompt}: the golden has no {name} at position {position}, needed "
            f"to judge {PLE} and {LOGITS}; {how_to_make(run.case.id)}"
        )
    return None


def _other_rows(run: CaseRun, golden: Golden, expected: Sequence[ExpectedRows]) -> list[Finding]:
    """The first prompt whose rows are not the recorded ones, chunk by chunk; a shortened case has the first chunks."""
    for prompt, one in zip(golden.prompts, expected, strict=True):
        rows = golden.chunk * one.heads
        whole = len(one.ids) == (len(prompt.ids) + len(prompt.generated) - 1) * one.heads
        found = packed_digests(one.packed, rows)
        found = found if whole else found[: len(one.ids) // rows]  # the last piece of a shortened answer is a part
        right = prompt.row_digests if whole else prompt.row_digests[: len(found)]
        if found == right:
            continue
        chunk = next((i for i, pair in enumerate(zip(found, right, strict=False)) if pair[0] != pair[1]), 0)
        message = (
            f"case {run.case.id}, prompt {prompt.name}: the rows of tokens {chunk * golden.chunk} to "
            f"{(chunk + 1) * golden.chunk - 1} have another SHA-256 than recorded: the table's bytes, the hash "
            f"constants or the golden were changed"
        )
        return [Finding("row digests", run.case.id, prompt.name, message, {})]
    return []
