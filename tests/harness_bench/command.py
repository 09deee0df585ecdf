"""The commands of the benchmarks with the exit codes of `plegate`, for tests that run them as processes."""

from __future__ import annotations

import typer

from harness.bench_command import bench
from harness.cli import _ExitCodes
from harness.report_command import report
from harness.trend_command import trend

app = typer.Typer(cls=_ExitCodes, add_completion=False, pretty_exceptions_enable=False)
for _command in (bench, report, trend):
    app.command()(_command)

if __name__ == "__main__":
    app()
