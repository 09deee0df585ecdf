"""`plegate trend`: the newest run of the benchmarks against the earlier ones of the same machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import JsonFile


def trend(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where runs are kept, a folder per machine.")] = Path(
        "ci/baselines"
    ),
    add: Annotated[
        Path | None,
        typer.Option(
            "--add",
            metavar="FILE",
            help="First keep this run there: a file of pytest-benchmark, or a folder of `plegate bench`.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Compare with this run alone, not with those in DIR."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The machine's folder. Default: that of the newest run.")
    ] = None,
    keep_only: Annotated[bool, typer.Option("--keep-only", help="With --add: keep it, compare nothing.")] = False,
    busy_too: Annotated[
        bool,
        typer.Option("--busy-too", help="Compare also runs during which the machine was busy with something else."),
    ] = False,
    accept_reason: Annotated[
        str | None,
        typer.Option(
            "--accept",
            metavar="REASON",
            help="Say why the newest run may be slower: later runs are compared with it and those after it.",
        ),
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the report for a pull request.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the page with plots over the commits.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Report what became slower since the earlier runs of this machine: by factor and by interval.

    Runs of different machines (processor, memory, kernel, file system, device, jax) are never compared. A benchmark
    that is missing on one side is reported. What is slower stays slower in all later runs, until it is as fast as
    before or accepted.

    Examples:

        plegate trend

        plegate trend --add results/bench.json --markdown trend.md

        plegate trend --accept "rows are checked now"

    Exit codes: 0 nothing is slower, 1 something is, or is missing, 2 bad input, 3 there is nothing to compare with,
    or the machine was busy.
    """
    from harness.commands.outputs import outputs
    from harness.errors import EXIT_DIFFERENT, EXIT_EQUAL, CannotRun
    from harness.measure.trend.compare import BUSY_CORES, compare
    from harness.measure.trend.runs import accept, add_run, history, keys, read_run
    from harness.measure.trend.text import COLUMNS, as_json, headline, markdown, notes, rows
    from harness.pages.tables import print_line, print_table
    from harness.pages.trend_page import render
    from model_file.errors import InputError

    if keep_only and (add is None or accept_reason is not None):
        raise InputError("--keep-only compares nothing: expected --add with it, and no --accept")
    write = outputs({"--markdown": markdown_file, "--html": html_file, "--json": json_file}, [folder, add, against])
    if add is not None:
        kept = add_run(folder, add)
        print_line(f"kept as {kept}")
        key = kept.parent.name
        if keep_only:
            return
    key = key or _newest_key(folder)
    runs = history(folder, key)
    if not runs or (len(runs) == 1 and against is None):
        others = [name for name in keys(folder) if name != key]
        hint = f"; runs of other machines are never compared with: {', '.join(others)}" if others else ""
        raise CannotRun(
            f"{folder / key}: holds {len(runs)} run(s), expected two to compare: run `nox -s bench` first{hint}"
        )
    earlier = runs[:-1] if against is None else [read_run(against)]
    verdict = compare(runs[-1], earlier, busy_too)
    if accept_reason is not None:
        if runs[-1].other_cpu > BUSY_CORES:
            raise InputError(
                f"--accept: {runs[-1].path}: was made while other processes kept {runs[-1].other_cpu:.1f} cores busy, "
                f"expected at most {BUSY_CORES}: later runs would not be compared with it; make one on an idle machine"
            )
        verdict.new = runs[-1] = accept(runs[-1], accept_reason)
    print_line(headline(verdict))
    if verdict.slower:
        print_table(COLUMNS, rows(verdict.slower), title="slower")
    for line in (*(f"missing: {name}" for name in verdict.missing), *notes(verdict)):
        print_line(line)
    write(
        {
            "--markdown": lambda: markdown(verdict),
            "--html": lambda: render(verdict, runs),
            "--json": lambda: as_json(verdict),
        }
    )
    raise typer.Exit(EXIT_DIFFERENT if verdict.regressed else EXIT_EQUAL)


def _newest_key(folder: Path) -> str:
    """The machine whose newest run is the newest of all. Raises: CannotRun when there is no run."""
    from harness.errors import CannotRun
    from harness.measure.trend.runs import history, keys

    runs = [(found[-1].when, key) for key in keys(folder) if (found := history(folder, key))]
    if not runs:
        raise CannotRun(f"{folder}: holds no run, expected at least two of one machine: `nox -s bench` makes one")
    return max(runs)[1]
