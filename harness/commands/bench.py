"""`plegate bench`: is it really faster? Cold and warm, at every depth, arms interleaved, one process per cell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import DEFAULT_RESULTS, CacheDir, JsonFile, Model

SAME_MACHINE = ("cpu", "cores", "kernel", "file_system", "disk", "python", "versions", "code")
"""What must be as it was for a run to be taken up again."""

if TYPE_CHECKING:
    from harness.measure.plan import Matrix
    from harness.measure.store import Results, RunPlan


def bench(
    context: typer.Context,
    model: Model,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="MODE|NAME=PARTS",
            help="What to compare; several times. A mode, or NAME= and parts with commas between: a mode, `commit:REV` "
            "(another commit's code), `setting=value` (queue_depth, workers, chunk, ...). The first one is the "
            "baseline.",
        ),
    ] = None,
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="The arm that all are compared with.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="cold|warm", help="Cache states. Left out: both.")
    ] = None,
    depth: Annotated[
        list[int] | None,
        typer.Option(
            "--depth", metavar="TOKENS", help="Tokens before the workload. Left out: 0, 4096, 16384 and 32768."
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            metavar="KIND:TOKENS",
            help=(
                "prefill:N, decode:N, or gather:N (the rows alone, no model). Left out: prefill:512, "
                "prefill:2048, decode:128."
            ),
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Repeats of every cell; fewer than 5 allow no claim.")] = 5,
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
            help="Measure this prompt (ids); left out: varied ids, other ones in each repeat.",
        ),
    ] = None,
    least_unique: Annotated[
        float,
        typer.Option("--least-unique", min=0, max=1, help="Share of different rows below which nothing is claimed."),
    ] = 0.5,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit", metavar="SIZE", help="Run every cell in this much memory, page cache included: 4GiB."
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
    """Measure how fast modes, settings or commits are: cold and warm, at every depth, against the noise.

    A cold cell is cold by proof or it is invalid. Ctrl-C keeps what is finished; `--resume` goes on. `plegate report
    DIR` makes the page.

    Exit codes: 0 every cell is valid, 2 bad input, 3 a cell is invalid (the reason is named), 130 Ctrl-C.
    """
    from harness.atomic import write_json
    from harness.cases.prompts import read_one_prompt
    from harness.commands.outputs import check_outputs
    from harness.errors import EXIT_CANNOT_RUN
    from harness.inputs import byte_count
    from harness.measure.caveats import caveats
    from harness.measure.progress import showing
    from harness.measure.runner import Runner
    from harness.measure.statistics import summarise
    from harness.measure.store import Store
    from harness.measure.summary import print_summary
    from harness.synth import cache_folder

    store = Store(out)
    check_outputs({"--json": json_file}, [model, tokens, *store.kept], made=out)
    matrix = _matrix(arm, baseline if arm or not resume else None, state, depth, workload, repeats, twin)
    if resume:
        plan = _checked_plan(store.read(), model)
        of_matrix = {"arm": "arms", "state": "states", "depth": "depths", "workload": "workloads"}
        of_matrix |= {"repeats": "repeats", "twin": "twin"}
        asked = {name: (getattr(matrix, of), getattr(plan.matrix, of)) for name, of in of_matrix.items()}
        asked["baseline"] = baseline, plan.matrix.baseline.name
        asked["tokens"] = tokens and read_one_prompt(tokens), plan.tokens
        asked["memory_limit"] = memory_limit and byte_count(memory_limit, "--memory-limit"), plan.memory_limit_bytes
        asked |= {"least_unique": (least_unique, plan.least_unique), "drop_caches": (drop_caches, plan.drop_caches)}
        _check_same(context, asked)
    else:
        plan = _plan(model, matrix, tokens, least_unique, memory_limit, drop_caches)
        store.create(plan)
    folder = cache_folder(cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with store.alone(), showing() as tell:
        results = Runner(store, plan, model, folder, tell).run()
    summaries = summarise(results)
    found = caveats(results, summaries)
    print_summary(results, summaries, found)
    _print_timing(results)
    if json_file is not None:
        from harness.measure.export import as_json

        write_json(json_file, as_json(results, summaries, found))
    raise typer.Exit(EXIT_CANNOT_RUN if results.invalid else 0)


def _check_same(context: typer.Context, asked: Mapping[str, tuple[Any, Any]]) -> None:
    """Raises: InputError for an option given with --resume that is not what the run was started with.

    asked: by parameter, what the options say and what the run has.
    """
    from model_file.errors import InputError

    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in asked and source is not None and source.name == "COMMANDLINE":
            given, started = asked[option.name]
            if given != started:
                raise InputError(
                    f"--resume: {option.opts[0]} is another than the run was started with, which goes on unchanged: "
                    "leave the option out, or start another run with --out"
                )


def _matrix(
    arms: list[str] | None,
    baseline: str | None,
    states: list[str] | None,
    depths: list[int] | None,
    workloads: list[str] | None,
    repeats: int,
    twin: bool,
) -> Matrix:
    """The matrix that the options describe. Raises: InputError."""
    from harness.measure.cells import STATES, parse_arms, parse_workload
    from harness.measure.commits import resolve
    from harness.measure.plan import ARMS, DEPTHS, WORKLOADS, Matrix
    from model_file.errors import InputError

    wrong = next((state for state in states or () if state not in STATES), None)
    if wrong is not None:
        raise InputError(f"--state {wrong}: expected cold or warm")
    return Matrix(
        arms=tuple(resolve(arm) for arm in parse_arms(arms or ARMS, baseline)),
        states=tuple(states or STATES),
        depths=tuple(depths or DEPTHS),
        workloads=tuple(parse_workload(text) for text in workloads) if workloads else WORKLOADS,
        repeats=repeats,
        twin=twin,
    )


def _plan(
    model: Path, matrix: Matrix, tokens: Path | None, least_unique: float, memory_limit: str | None, drop_caches: bool
) -> RunPlan:
    """The run: everything is looked at before anything is measured. Raises: InputError."""
    from harness.cases.prompts import read_one_prompt
    from harness.inputs import byte_count
    from harness.measure.machine import machine_facts
    from harness.measure.store import RunPlan
    from harness.measure.stream import check_given
    from harness.measure.workbench import model_facts
    from model_file.errors import InputError

    facts = model_facts(model, [work.kind != "gather" for work in matrix.workloads])
    if matrix.context > facts["context"]:
        raise InputError(
            f"{model}: has a context of {facts['context']} tokens, expected at least the {matrix.context} that the "
            "deepest cell needs: use a smaller --depth"
        )
    given = None
    if tokens is not None:
        given = read_one_prompt(tokens)
        check_given(given, matrix.workloads, facts["vocab"], str(tokens))
    limit = None if memory_limit is None else byte_count(memory_limit, "--memory-limit")
    return RunPlan(matrix, facts, machine_facts(model), least_unique, limit, drop_caches, given)


def _checked_plan(results: Results, model: Path) -> RunPlan:
    """The plan of a run that is taken up again. Raises: InputError when the model or the code is another one."""
    from harness.measure.machine import machine_facts
    from harness.measure.workbench import model_facts
    from model_file.errors import InputError

    facts = model_facts(model, [work.kind != "gather" for work in results.plan.matrix.workloads])
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

    for session in results.timing.get("sessions", []):
        typer.echo(timing_text(session))
