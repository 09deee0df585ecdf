"""The command line: `plegate COMMAND`. Every command is a module of its own; this file names them and maps errors.

Exit codes: 0 good, 1 a difference was found, 2 bad input, 3 something that was asked for could not be run, 130 Ctrl-C.
Command modules import jax, matplotlib and tokenizers where they use them, so that `--help` and `inspect` are quick.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from harness.commands.advise import advise
from harness.commands.bench import bench
from harness.commands.gate import gate
from harness.commands.golden import golden_app
from harness.commands.inspect import inspect
from harness.commands.logits import logits
from harness.commands.report import report
from harness.commands.rows import rows
from harness.commands.run import run
from harness.commands.speed import speed
from harness.commands.synth import synth
from harness.commands.trend import trend
from harness.errors import EXIT_BAD_INPUT, EXIT_CANNOT_RUN, EXIT_INTERRUPTED, CannotRun
from reference.errors import InputError


class _ExitCodes(TyperGroup):
    """Turns the errors that a person can act on into a message and an exit code, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise _stop("error", str(error), EXIT_BAD_INPUT) from None
        except CannotRun as error:
            raise _stop("cannot run", str(error), EXIT_CANNOT_RUN) from None
        except KeyboardInterrupt:
            raise _stop("interrupted", "stopped; results are written whole or not at all", EXIT_INTERRUPTED) from None


def _stop(kind: str, message: str, code: int) -> typer.Exit:
    for line in message.splitlines():
        print(f"plegate: {kind}: {line}", file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(
    name="plegate",
    cls=_ExitCodes,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help=(
        "Is the output still exactly the same, and is it really faster?\n\n"
        "plegate checks and measures every way of reading the hashed n-gram (PLE) table of a qwen4exp GGUF model: "
        "rows are compared as bytes, tokens as ids, and speed cold and warm at every depth.\n\n"
        "Start with `plegate gate`: it needs no model and no option.\n\n"
        "Exit codes: 0 all equal, 1 a difference, 2 bad input, 3 something asked for could not be run, 130 interrupted."
    ),
)

for _command in (gate, rows, advise, inspect, run, logits, synth, bench, report, trend, speed):
    app.command()(_command)
app.add_typer(golden_app, name="golden")


def main() -> None:
    """Entry point of the `plegate` command."""
    app()


if __name__ == "__main__":
    main()
