"""The command line: `plegate COMMAND`. Every command is a module of its own; this file names them and maps errors.

Exit codes: 0 good, 1 a difference was found, 2 bad input, 3 something that was asked for could not be run, 130 Ctrl-C,
129 and 143 SIGHUP and SIGTERM. 1 is a command's own word (`typer.Exit(1)`): nothing else that ends a program with 1 (a
library, a thread, an error) comes out as 1.
Command modules import jax, matplotlib and tokenizers where they use them, so that `--help` and `inspect` are quick.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from harness import environment, supervise
from harness.commands.advise import advise
from harness.commands.bench import bench
from harness.commands.gate import gate
from harness.commands.golden import golden_app
from harness.commands.inspect import inspect
from harness.commands.logits import logits
from harness.commands.options import strict
from harness.commands.report import report
from harness.commands.rows import rows
from harness.commands.run import run
from harness.commands.slice import slice_
from harness.commands.synth import synth
from harness.commands.trend import trend
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_CANNOT_RUN,
    EXIT_DIFFERENT,
    EXIT_EQUAL,
    EXIT_INTERRUPTED,
    EXIT_PIPE,
    CannotRun,
)
from harness.pages.tables import NARROWEST, columns_of, printable
from model_file.errors import InputError

_INTERRUPTED = "stopped; results are written whole or not at all"
_DEFECT = "this is a defect of plegate; PLEGATE_TRACEBACK=1 shows where"
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_INTERRUPT_S = 0.4  # faster than a person types Ctrl-C twice
_interrupted_at = -_ONE_INTERRUPT_S
_ended_by = signal.SIGINT
_failed_threads: list[str] = []
_LOADED_WHOLE = ("jax", "jaxlib")  # nothing is half written while these are loaded
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "failed to map segment", "bad_alloc", "Cannot allocate memory")
_PATH_IS_WRONG = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


class _ExitCodes(TyperGroup):
    """Turns errors into a message and an exit code; 1 is kept for differences, so none ends as Python's own 1.

    The environment variable PLEGATE_TRACEBACK shows where each was raised.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            code = getattr(error, "exit_code", EXIT_BAD_INPUT)  # a mode that cannot run here is one too
            raise _stop("error" if code == EXIT_BAD_INPUT else "cannot run", str(error), code) from None
        except CannotRun as error:
            raise _stop("cannot run", str(error), EXIT_CANNOT_RUN) from None
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error  # typer does the same while it parses, so `main` says it
        except SystemExit as stop:  # a command ends by typer.Exit
            if isinstance(stop.__context__, BrokenPipeError):  # rich's way
                raise typer.Exit(EXIT_PIPE) from None
            raise _stop("failed", f"a library called exit({stop.code!r}): {_DEFECT}", EXIT_CANNOT_RUN) from None
        except MemoryError as error:
            raise _stop_for_memory(error) from None
        except OSError as error:
            raise _stop_for_system(error) from None
        except Exception as error:
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):  # typer's own
                raise
            if any(words in str(error) for words in _OUT_OF_MEMORY):
                raise _stop_for_memory(error) from None
            if (platform := environment.platform_problem()) is not None:
                raise _stop("cannot run", platform, EXIT_CANNOT_RUN) from None
            raise _stop("failed", ": ".join([_shown(error), *supervise.limits(), _DEFECT]), EXIT_CANNOT_RUN) from None


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _stop_for_memory(error: Exception) -> typer.Exit:
    found = f"this machine has too little free memory: {' '.join(str(error).split())}".rstrip(": ")
    return _stop("cannot run", "\n".join([found, *supervise.limits()]), EXIT_CANNOT_RUN)


def _stop_for_system(error: OSError) -> typer.Exit:
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        return typer.Exit(EXIT_PIPE)
    found = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return _stop("cannot run", f"the system refused: {found}; PLEGATE_TRACEBACK=1 shows where", EXIT_CANNOT_RUN)
    if isinstance(error, _PATH_IS_WRONG):
        advice = "check that the path is right and that you may use it"
        return _stop("error", f"{os.fsdecode(error.filename)}: {found}: {advice}", EXIT_BAD_INPUT)
    limited = error.errno in (errno.EMFILE, errno.ENFILE)
    advice = f"{'raise `ulimit -n`' if limited else 'check the disk'}; PLEGATE_TRACEBACK=1 shows where"
    return _stop("cannot run", f"{error.filename}: {found}: {advice}", EXIT_CANNOT_RUN)


def _stop(kind: str, message: str, code: int) -> typer.Exit:
    with suppress(OSError):  # nobody reads it
        if os.environ.get("PLEGATE_TRACEBACK"):
            traceback.print_exc()
        for line in message.split("\n"):
            print(f"plegate: {kind}: {printable(line)}", file=sys.stderr)
    return typer.Exit(code)


def _reader_is_gone() -> bool:
    """Whether what reads standard output, as `head` in `plegate rows M | head -1`, has ended."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


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


def _print_version(asked: bool) -> None:
    if asked:
        print(f"plegate {version('plegate')}")
        raise typer.Exit


@app.callback()
def _options(
    asked: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What stands before a command."""


if columns_of(sys.stdout) < NARROWEST or os.environ.get("COLUMNS") == "0":
    os.environ.setdefault("TERMINAL_WIDTH", "80")  # typer's: its frames would leave a letter a line, or nothing

for _command in (gate, rows, advise, inspect, run, logits, synth, bench, report, trend):
    app.command()(strict(_command))
app.command("slice")(strict(slice_))
app.add_typer(golden_app, name="golden")


def main() -> None:
    """The `plegate` command in a process of its own."""
    sys.unraisablehook = _unraisable
    threading.excepthook = _thread_failed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal or a path's bytes cannot show stops nothing
            stream.reconfigure(errors="backslashreplace")
    for number in _ENDS:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # not where it is ignored
            signal.signal(number, _interrupt)
    for name in environment.set_aside():
        print(f"plegate: note: {name} is not used: plegate sets what its engines need", file=sys.stderr)
    try:
        app()
    except SystemExit as stop:
        _end(_meant(stop))
    except KeyboardInterrupt:  # before there was a command
        _end(EXIT_INTERRUPTED)


def _meant(stop: SystemExit) -> int:
    """The exit code of a command that has ended. Its verdict comes as typer.Exit, which typer makes this of."""
    if isinstance(stop.__context__, BrokenPipeError):
        return EXIT_PIPE  # rich and typer both end with 1 when nobody reads what they print
    if not isinstance(stop.code, int):
        return EXIT_CANNOT_RUN if stop.code else 0
    return stop.code if stop.code != EXIT_DIFFERENT or isinstance(stop.__context__, typer.Exit) else EXIT_CANNOT_RUN


def _interrupt(number: int, frame: Any) -> None:
    """Ctrl-C, SIGTERM, SIGHUP: KeyboardInterrupt, but not while jaxlib is loaded, which takes that badly (SIGSEGV).

    Sent to the process group, it comes again from the parent (`supervise`), which must not stop the clean-up.
    """
    global _interrupted_at, _ended_by
    before, _interrupted_at = _interrupted_at, time.monotonic()
    if _interrupted_at - before < _ONE_INTERRUPT_S:
        return
    _ended_by = signal.Signals(number)
    if any(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False) for name in _LOADED_WHOLE):
        _end(EXIT_INTERRUPTED)
    signal.default_int_handler(number, frame)


def _thread_failed(failed: Any) -> None:
    """An error that nobody catches in a thread: without it, Python goes on and ends as if all were well."""
    if failed.exc_type is not SystemExit:
        _failed_threads.append(f"{failed.thread.name if failed.thread else 'a thread'}: {_shown(failed.exc_value)}")
        if os.environ.get("PLEGATE_TRACEBACK"):
            threading.__excepthook__(failed)


def _unraisable(unraisable: Any) -> None:
    """A Ctrl-C that hits a callback of the garbage collector (JAX has one) is dropped by Python: it comes once more."""
    global _interrupted_at
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _interrupted_at = -_ONE_INTERRUPT_S
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _end(code: int) -> NoReturn:
    """End the process; at once where Python's own way out would fail, or would take down what XLA's threads still use.

    Everything that must be cleaned up was, by its `with`.
    """
    at_once = code in (EXIT_INTERRUPTED, EXIT_PIPE)
    if code == EXIT_INTERRUPTED:
        code = 128 + _ended_by
        _stop("interrupted", _INTERRUPTED if code == EXIT_INTERRUPTED else f"by {_ended_by.name}: {_INTERRUPTED}", code)
    elif code in (EXIT_EQUAL, EXIT_DIFFERENT) and _failed_threads:
        message = f"{'; '.join(_failed_threads)}: nothing that was printed is a result: {_DEFECT}"
        code = _stop("failed", message, EXIT_CANNOT_RUN).exit_code
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        at_once = True
        code = _stop_for_system(error).exit_code
    if at_once:
        with suppress(OSError, AttributeError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(supervise.conclude(code))


if __name__ == "__main__":
    main()
