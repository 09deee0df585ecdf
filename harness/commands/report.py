"""`plegate report`: a folder of benchmark results as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import DEFAULT_RESULTS, JsonFile


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that `plegate bench --out DIR` made.")
    ] = DEFAULT_RESULTS,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes. Default: DIR/report.html.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="Compare with another arm than the run's own baseline.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the summary for a pull request too.")
    ] = None,
    pytest_benchmark: Annotated[
        Path | None,
        typer.Option("--pytest-benchmark", metavar="FILE", help="Write the times as pytest-benchmark does, for CI."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Make the page of a benchmark: speed over depth, waiting, read amplification, ratios with intervals, caveats.

    One HTML file with everything in it, written whole or not at all. An unfinished run gives a page of what there is.

    Examples:

        plegate report

        plegate report results/bench --markdown summary.md

    Exit codes: 0 written, 2 bad input.
    """
    from harness.commands.outputs import outputs
    from harness.measure.caveats import caveats
    from harness.measure.export import as_json
    from harness.measure.statistics import summarise
    from harness.measure.store import Store
    from harness.measure.summary import markdown
    from harness.measure.trend.runs import as_pytest_benchmark
    from harness.pages.bench_page import machine_rows, render
    from harness.pages.tables import print_line
    from model_file.errors import InputError

    store, page = Store(folder), out or folder / "report.html"
    files = {"--out": page, "--markdown": markdown_file, "--json": json_file, "--pytest-benchmark": pytest_benchmark}
    write = outputs(files, store.kept, made=folder)
    results = store.read()
    names = [arm.name for arm in results.plan.matrix.arms]
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline}: is no arm of {folder}, expected one of {', '.join(names)}")
    if not results.cells:
        raise InputError(f"{folder}: no cell is finished yet, expected at least one: `plegate bench --resume`")
    summaries = summarise(results, baseline)
    found = caveats(results, summaries)
    machine = "; ".join(f"{name}: {value}" for name, value in machine_rows(results))
    write(
        {
            "--out": lambda: render(results, summaries, found),
            "--markdown": lambda: markdown(results, summaries, found, machine),
            "--json": lambda: as_json(results, summaries, found),
            "--pytest-benchmark": lambda: as_pytest_benchmark(results),
        }
    )
    print_line(f"{page}: {len(results.valid)} valid cells, {len(results.invalid)} invalid, {len(found)} caveats")
