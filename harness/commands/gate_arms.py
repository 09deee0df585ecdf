"""`plegate gate --arm`: servers and modes of ours as arms, judged on the same ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from harness.commands.options import ArmChoice
from harness.gate.choice import Given
from model_file.errors import InputError

if TYPE_CHECKING:
    from harness.cases.case import Case
    from harness.gate.run import GateOptions


def gate_arms(
    model: Path | None,
    cases: Sequence[str],
    given: Given,
    generate: int | None,
    quick: bool,
    chosen: ArmChoice,
    limits: Mapping[str, str],
    files: Mapping[str, Path | None],
    cache_dir: Path | None,
) -> NoReturn:
    """Judge the arms, print and write what was found, and end with the exit code."""
    from harness.cases.prompt_choice import texts_of
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.diagnose.arms import diagnose_arms
    from harness.engines.arms import parse_arms
    from harness.gate.arms import ArmOptions, judge_arms
    from harness.gate.choice import DEFAULT_GENERATE, choose
    from harness.gate.run import GateOptions
    from harness.inputs import duration_s
    from harness.pages.arms_page import arms_as_html
    from harness.pages.arms_text import arms_as_json, arms_as_markdown, print_arms

    if files["--junit"] is not None:
        raise InputError("--junit: modes are written as JUnit, arms are not: use --json, --html or --markdown")
    arms = parse_arms(chosen.arms, None, chosen.file, chosen.common)
    found = {name: duration_s(text, f"--{name.removesuffix('_s').replace('_', '-')}") for name, text in limits.items()}
    write = outputs(files, [model, chosen.file, chosen.golden, *given[1], *given[2]])
    with stages() as report:
        if chosen.golden is not None:
            others = any(map(len, (cases, *given))) or generate is not None
            path, judged, options = _recorded(model, chosen.golden, others)
        else:
            if not cases and generate is None:
                generate = DEFAULT_GENERATE
            jobs, options = choose(model, cases, given, generate, quick, cache_dir, True, GateOptions(), report)
            (path, judged), *_ = jobs
        result = judge_arms(
            path,
            judged,
            arms,
            ArmOptions(
                close_calls=chosen.close_calls,
                restart=chosen.restart,
                states=chosen.states,
                texts={} if cases or chosen.golden else texts_of(*given),
                top=chosen.top,
                goldens=options.goldens,
                limits=found,
                program_cache=options.program_cache,
                repeat=options.repeat,
            ),
            report,
        )
        if budget_s := 0.0 if chosen.diagnose in ("0", "0s") else duration_s(chosen.diagnose, "--diagnose"):
            diagnose_arms(path, result, budget_s, report)
    print_arms(result)
    write(
        {
            "--json": lambda: arms_as_json(result),
            "--html": lambda: arms_as_html(result),
            "--markdown": lambda: arms_as_markdown(result),
        }
    )
    raise typer.Exit(result.exit_code)


def _recorded(model: Path | None, golden: Path, others: bool) -> tuple[Path, Sequence[Case], GateOptions]:
    """The model with the prompts of a golden of one's own. Raises: InputError."""
    from harness.answers.own import read_own
    from harness.cases.case import TokenPrompt
    from harness.gate.choice import own_case, repeated
    from harness.gate.run import GateOptions
    from harness.synth import cache_folder

    if model is None or others:
        raise InputError("--golden: has its own prompts and number of tokens, expected a MODEL beside it and no others")
    found = read_own(golden)
    prompts = [TokenPrompt(prompt.name, prompt.ids) for prompt in found.prompts]
    case = own_case(model, prompts, len(found.prompts[0].generated))
    options = GateOptions(goldens={case.id: found}, program_cache=cache_folder() / "programs", repeat=repeated())
    return model, [case], options


def record_arms(
    case: str | None,
    model: Path | None,
    prompts: Sequence[Path],
    generate: int,
    arms: Sequence[str],
    common: str,
    out: Path | None,
    reason: str,
    cache_dir: Path | None,
) -> NoReturn:
    """Record what the first arm answers, where it agrees with itself and the others with it."""
    from harness.answers.own import own_golden
    from harness.answers.record import dumps
    from harness.answers.store import check_not_golden
    from harness.cases.prompt_choice import choose_prompts
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.engines.arms import parse_arms
    from harness.gate.arms import ArmOptions, judge_arms
    from harness.gate.choice import own_case
    from harness.pages.arms_text import print_arms
    from harness.pages.tables import print_line
    from harness.synth import cache_folder
    from model_file.gguf_file import open_gguf

    write = outputs({"--out": out}, [model, *prompts])
    if case is not None or model is None or not prompts or not arms or out is None:
        raise InputError("give a CASE, or all of --model MODEL, --prompts FILE, --arm ARM and --out FILE")
    check_not_golden(out.parent)
    if out.exists() and not reason:
        raise InputError(f'--out {out}: is there already: say why its answers change with --reason "..."')
    texts, ids = [[path for path in prompts if (path.suffix == ".txt") == text] for text in (True, False)]
    with stages() as report:
        judged = own_case(model, choose_prompts(model, [], texts, ids), generate)
        options = ArmOptions(program_cache=cache_folder(cache_dir) / "programs")
        result = judge_arms(model, [judged], parse_arms(arms, None, None, common), options, report)
        print_arms(result)
        if result.exit_code:
            print_line(f"{out}: not written")
            raise typer.Exit(result.exit_code)
        first, *others = result.arms
        asked = {prompt.name: prompt.ids for prompt in judged.prompts}
        names = [f"{one.arm.name}: {one.command}" for one in others]
        with open_gguf(model) as opened:
            golden = own_golden(
                out.stem, opened, asked, result.answers, first.arm, first.facts, names, reason or "first recorded"
            )
    write({"--out": lambda: dumps(golden)})
    print_line(f"{out}: {len(golden.prompts)} prompts of {golden.model['file']}, answers of {first.arm.label}")
    raise typer.Exit(0)
