"""What a run of the gate is about: registered cases with their goldens, or a user's model and prompts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.answers.record import Golden
from harness.answers.store import read_golden
from harness.cases.case import ROWS, TOKENS, Case, TokenPrompt
from harness.cases.models import model_digest, model_path
from harness.cases.prompt_choice import choose_prompts
from harness.cases.registry import SMALL_MODELS, case_by_id, cases, cases_of
from harness.gate.rows import Report
from harness.gate.run import GateOptions, Job
from harness.synth import cache_folder
from model_file.errors import InputError

Given = tuple[Sequence[str], Sequence[Path], Sequence[Path]]
"""Prompts as texts, text files, and files of ids."""
DEFAULT_MODEL = "nano"
DEFAULT_GENERATE, QUICK_GENERATE = 32, 8


def choose(
    model: Path | None,
    named: Sequence[str],
    given: Given,
    generate: int | None,
    quick: bool,
    cache_dir: Path | None,
    copies: bool,
    options: GateOptions,
    report: Report,
) -> tuple[list[Job], GateOptions]:
    """The models' files with the cases to run on each, and how.

    Registered cases where some are named, or where neither prompts nor a number of tokens are given and the model is a
    made one or a file that goldens were recorded on; else one case of the given prompts (the built-in ones when none
    is). copies: modes read other files, which are copies of one model's table. Raises: InputError for an unknown case,
    and for cases and prompts mixed.
    """
    own_prompts = any(given) or generate is not None
    if named and own_prompts:
        raise InputError(
            "--case: found together with prompts or --generate, expected one or the other: a case has its own"
        )
    options = replace(options, program_cache=cache_folder(cache_dir) / "programs", repeat=repeated())
    chosen = [case_by_id(name) for name in named]
    names = list(dict.fromkeys(case.model for case in chosen))
    if len(names) > 1 and (model is not None or copies):
        models = ", ".join(f"{case.id} on {case.model}" for case in chosen)
        raise InputError(
            f"--case: found cases of different models ({models}), expected one model: run the gate once for each"
        )
    if not chosen and not own_prompts:
        if model is not None:
            chosen = _recorded_on(model, quick, report)
        else:
            wanted = (DEFAULT_MODEL,) if copies else SMALL_MODELS if quick else (*SMALL_MODELS, DEFAULT_MODEL)
            chosen = [case for name in wanted for case in cases_of(name, quick)]
        names = list(dict.fromkeys(case.model for case in chosen))
    if chosen:
        chosen = [case.shortened() for case in chosen] if quick else chosen
        goldens = {case.id: _golden_of(case, quick) for case in chosen}
        paths = {name: model if model is not None else model_path(name, cache_dir, report) for name in names}
        jobs: list[Job] = [(paths[name], [case for case in chosen if case.model == name]) for name in names]
        return jobs, replace(options, goldens=goldens)
    path = model if model is not None else model_path(DEFAULT_MODEL, cache_dir, report)
    count = generate if generate is not None else QUICK_GENERATE if quick else DEFAULT_GENERATE
    return [(path, [own_case(path, choose_prompts(path, *given), count)])], replace(options, goldens=None)


def _golden_of(case: Case, quick: bool) -> Golden | None:
    """The case's golden; for the short form, cut to as many prompts as the case has."""
    golden = read_golden(case.id)
    return golden if golden is None or not quick else replace(golden, prompts=golden.prompts[: len(case.prompts)])


def own_case(path: Path, prompts: Sequence[TokenPrompt], generate: int) -> Case:
    """A user's prompts as a case: rows against the file, tokens against the first mode; nothing is recorded of them."""
    return Case(
        id="prompts",
        about="prompts of this command",
        model=path.name,
        prompts=tuple(prompts),
        generate=generate,
        metric="equality of bytes and ids",
        bound=2e-3,
        reason="nothing is recorded for these prompts; the bound is used to find where a difference starts",
        levels=(ROWS, TOKENS) if generate else (ROWS,),
    )


def _recorded_on(path: Path, quick: bool, report: Report) -> list[Case]:
    """The cases whose goldens were recorded on this very file: found by its size, then by its SHA-256."""
    if not path.is_file():
        return []
    size = path.stat().st_size
    found: list[Case] = []
    digest = ""
    for case in cases().values():
        golden = read_golden(case.id)
        if (
            golden is None
            or golden.model["size_bytes"] != size
            or (quick and case.model == DEFAULT_MODEL and not case.short)
        ):
            continue
        if not digest:
            report("is this a file that goldens were recorded on?")
            digest = model_digest(path)
        if golden.model["sha256"] == digest:
            found.append(case)
    return found


def repeated() -> str:
    """This command again, as it was given."""
    return shlex.join(["plegate", *sys.argv[1:]]) if sys.argv[1:2] == ["gate"] else "plegate gate"
