"""`plegate bench`: is it really faster? Cold and warm, at every depth, arms in turns, each in processes of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import DEFAULT_RESULTS, ArmsFile, CacheDir, Common, DefaultModel, JsonFile

if TYPE_CHECKING:
    from harness.engines.arms import Arm
    from harness.measure.plan import Matrix
    from harness.measure.store import Results, RunPlan

SAME_MACHINE = ("cpu", "cores", "kernel", "file_system", "disk", "python", "versions", "code")
"""What must be as it was for a run to be taken up again."""
DEFAULT_BUDGET_S = 600.0


def bench(
    context: typer.Context,
    model: DefaultModel = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="MODE|NAME=...",
            help="What to compare; several times, the first is the baseline. A mode, `device` (what the disk allows), "
            "`transformers`; NAME= and parts with commas between: one of these, `commit:REV` (another commit's code), "
            "`setting=value` (queue_depth, cache, ...); or a server: NAME='PROGRAM ARGUMENT...', NAME=http://...",
        ),
    ] = None,
    arms_file: ArmsFile = None,
    common: Common = "",
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="The arm that all are compared with.")] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is measured where nothing is said: `modes`; `speed`, our engine beside "
            "llama.cpp's, warm; `v0.7.2`, `twice` and `long`, of llama-server with its table lazy and not.",
        ),
    ] = "modes",
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="cold|warm", help="Cache states. Default: both.")
    ] = None,
    depth: Annotated[
        list[int] | None,
        typer.Option(
            "--depth", metavar="TOKENS", help="Tokens before the workload. Default: 0, 4096, 16384 and 32768."
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            metavar="KIND:TOKENS",
            help="prefill:N, decode:N, or rows alone, without the model: gather:N (all at once), steps:N (a token at a "
            "time). Default: prefill:512, prefill:2048, decode:128.",
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(metavar="N", help="Repeats, each with new processes; fewer than 6 allow no claim. Default: 8."),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measurements of every cell in a repeat. Default: 2, more for few cells."),
    ] = None,
    resolve: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Repeat until every interval is this narrow around its middle, such as 5%."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Repeat for this long at most, such as 10min. With --resolve: 10min."),
    ] = None,
    twin: Annotated[
        bool,
        typer.Option(
            "--twin/--no-twin", help="Run the baseline twice, at both ends of every block: that is the noise."
        ),
    ] = True,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            readable=False,
            help="Measure this prompt (ids); left out: varied ids, other ones in each block.",
        ),
    ] = None,
    least_unique: Annotated[
        float,
        typer.Option("--least-unique", min=0, max=1, help="Share of different rows below which nothing is claimed."),
    ] = 0.5,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit", metavar="SIZE", help="Run every arm in this much memory, page cache included: 4GiB."
        ),
    ] = None,
    drop_caches: Annotated[
        bool,
        typer.Option("--drop-caches", help="As root: drop all caches of the machine where evicting the table fails."),
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go.")] = DEFAULT_RESULTS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in DIR, with the options it was started with.")
    ] = False,
    json_file: JsonFile = None,
    cache_dir: CacheDir = None,
) -> None:
    """Measure how fast modes, settings, commits or engines are: cold and warm, at every depth, against the noise.

    A cold cell is cold by proof or it is invalid. Ctrl-C keeps what is finished; `--resume` goes on. `plegate report
    DIR` makes the page.

    Examples:

        plegate bench model.gguf --arm prefetch --arm uring --resolve 5% --budget 10min

        plegate bench --preset speed

        plegate bench model.gguf --arm new=auto --arm old=auto,commit:HEAD~1

    Exit codes: 0 every cell is valid, 2 bad input, 3 a cell is invalid (the reason is named) or the model changed
    meanwhile, 130 Ctrl-C.
    """
    from harness.atomic import write_json
    from harness.commands.outputs import check_outputs
    from harness.commands.progress import stages
    from harness.errors import EXIT_CANNOT_RUN
    from harness.inputs import byte_count
    from harness.measure.caveats import caveats
    from harness.measure.runner import Runner
    from harness.measure.statistics import summarise
    from harness.measure.store import Store
    from harness.measure.summary import print_summary
    from harness.pages.tables import print_line
    from harness.synth import cache_folder, ensure_model

    store = Store(out)
    check_outputs({"--json": json_file}, [model, tokens, *store.kept], made=out)
    named = arms_named(preset, arm, arms_file, common, baseline if arm or not resume else None)
    matrix = _matrix(preset, named, state, depth, workload, blocks, twin)
    limits = _limits(repeats, resolve, budget)
    asked: dict[str, Any] = {"memory_limit_bytes": memory_limit and byte_count(memory_limit, "--memory-limit")}
    asked |= {"drop_caches": drop_caches, "least_unique": least_unique, "tokens": _prompt(tokens), **limits}
    with stages() as progress:
        path = model or ensure_model("nano", cache_dir, progress)
        if resume:
            plan = _checked_plan(store.read(), path)
            _check_same(context, matrix, baseline, asked, plan)
        else:
            plan = _plan(path, matrix, asked, str(tokens))
            store.create(plan)
        folder = cache_folder(cache_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with store.alone():
            results = Runner(store, plan, path, folder, progress).run()
    summaries = summarise(results)
    found = caveats(results, summaries)
    print_summary(results, summaries, found)
    _print_timing(results)
    if json_file is not None:
        from harness.measure.export import as_json

        write_json(json_file, as_json(results, summaries, found))
    if results.changed:
        print_line(f"changed: {results.changed}")
    raise typer.Exit(EXIT_CANNOT_RUN if results.invalid or results.changed else 0)


def _limits(repeats: int | None, resolve: str | None, budget: str | None) -> dict[str, Any]:
    """How long the run goes on, as the plan's fields. Raises: InputError."""
    from harness.inputs import duration_s
    from harness.measure.plan import MOST_REPEATS, REPEATS
    from model_file.errors import InputError

    share = seconds = None
    if resolve is not None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", resolve, re.ASCII)
        share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
        if not 0.001 <= share <= 1:
            raise InputError(f"--resolve {resolve}: expected a share from 0.1% to 100%, such as 5%")
    if budget is not None or resolve is not None:
        seconds = duration_s(budget or "10min", "--budget")
    open_end = MOST_REPEATS if seconds is not None else REPEATS
    return {"resolve": share, "budget_s": seconds, "repeats": open_end if repeats is None else repeats}


def _prompt(tokens: Path | None) -> list[int] | None:
    from harness.cases.prompts import read_one_prompt

    return None if tokens is None else read_one_prompt(tokens)


def arms_named(
    preset: str, arms: list[str] | None, file: Path | None, common: str, baseline: str | None
) -> tuple[Arm, ...]:
    """The arms of the command line and the file, else the preset's, with commits resolved. Raises: InputError."""
    from harness.engines.arms import parse_arms
    from harness.measure.commits import resolve
    from harness.measure.plan import PRESETS
    from model_file.errors import InputError

    if preset not in PRESETS:
        raise InputError(f"--preset {preset}: expected one of {', '.join(PRESETS)}")
    texts = arms or ([] if file else PRESETS[preset]["arms"])
    return tuple(resolve(arm) for arm in parse_arms(texts, baseline, file, common))


def _matrix(
    preset: str,
    arms: tuple[Arm, ...],
    states: list[str] | None,
    depths: list[int] | None,
    workloads: list[str] | None,
    blocks: int | None,
    twin: bool,
) -> Matrix:
    """The matrix that the options describe. Raises: InputError."""
    from harness.measure.cells import STATES, parse_workload
    from harness.measure.plan import PRESETS, Matrix, blocks_for
    from model_file.errors import InputError

    wrong = next((state for state in states or () if state not in STATES), None)
    if wrong is not None:
        raise InputError(f"--state {wrong}: expected cold or warm")
    base = PRESETS[preset]
    works = tuple(parse_workload(text) for text in workloads) if workloads else base["workloads"]
    chosen_states, chosen_depths = tuple(states or base["states"]), tuple(depths or base["depths"])
    return Matrix(
        arms=arms,
        states=chosen_states,
        depths=chosen_depths,
        workloads=works,
        blocks=blocks_for(len(works) * len(chosen_states) * len(chosen_depths)) if blocks is None else blocks,
        twin=twin,
    )


def _plan(model: Path, matrix: Matrix, asked: dict[str, Any], prompt_name: str) -> RunPlan:
    """The run: everything is looked at before anything is measured. Raises: InputError."""
    from dataclasses import replace

    from harness.measure.machine import machine_facts, model_facts
    from harness.measure.store import RunPlan
    from harness.measure.stream import check_given
    from model_file.errors import InputError

    matrix = replace(matrix, repeats=asked["repeats"])
    facts = model_facts(model, any(work.needs_model for work in matrix.workloads))
    if matrix.context > facts["context"]:
        raise InputError(
            f"{model}: has a context of {facts['context']} tokens, expected at least the {matrix.context} that the "
            "deepest cell needs: use a smaller --depth"
        )
    if asked["tokens"] is not None:
        check_given(asked["tokens"], matrix.workloads, facts["vocab"], prompt_name)
    fields = {name: value for name, value in asked.items() if name != "repeats"}
    return RunPlan(matrix, facts, machine_facts(model), **fields)


def _check_same(
    context: typer.Context, matrix: Matrix, baseline: str | None, asked: Mapping[str, Any], plan: RunPlan
) -> None:
    """Raises: InputError for an option given with --resume that is not what the run was started with."""
    from model_file.errors import InputError

    of_matrix = {"arm": "arms", "state": "states", "depth": "depths", "workload": "workloads"}
    pairs = {name: (getattr(matrix, of), getattr(plan.matrix, of)) for name, of in of_matrix.items()}
    pairs |= {name: (getattr(matrix, name), getattr(plan.matrix, name)) for name in ("blocks", "twin")}
    pairs |= {"baseline": (baseline, plan.matrix.baseline.name), "repeats": (asked["repeats"], plan.matrix.repeats)}
    of_plan = {"memory_limit": "memory_limit_bytes", "budget": "budget_s"}
    for name in ("memory_limit", "drop_caches", "least_unique", "tokens", "resolve", "budget"):
        of = of_plan.get(name, name)
        pairs[name] = asked[of], getattr(plan, of)
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in pairs and source is not None and source.name == "COMMANDLINE":
            given, started = pairs[option.name]
            if given != started and option.name != "budget":  # a run may be given more time
                raise InputError(
                    f"--resume: {option.opts[0]} is another than the run was started with, which goes on unchanged: "
                    "leave the option out, or start another run with --out"
                )


def _checked_plan(results: Results, model: Path) -> RunPlan:
    """The plan of a run that is taken up again. Raises: InputError when the model or the code is another one."""
    from harness.measure.machine import machine_facts, model_facts
    from model_file.errors import InputError

    facts = model_facts(model, any(work.needs_model for work in results.plan.matrix.workloads))
    here = machine_facts(model)
    for name, found, expected in (
        *((name, facts[name], results.plan.model[name]) for name in facts),
        *((name, here.get(name), results.plan.machine.get(name)) for name in SAME_MACHINE),
    ):
        if found != expected:
            raise InputError(
                f"--resume: {name} is {found!r}, the run was started with {expected!r}: half a run of each compares "
                "nothing; start another one with --out"
            )
    return results.plan


def _print_timing(results: Results) -> None:
    from harness.measure.summary import timing_text
    from harness.pages.tables import print_line

    for session in results.timing.get("sessions", []):
        print_line(timing_text(session))
