"""What the command line turns into exit codes, beside `model_file.errors.InputError` (2)."""

from __future__ import annotations

EXIT_EQUAL = 0
EXIT_DIFFERENT = 1
EXIT_BAD_INPUT = 2
EXIT_CANNOT_RUN = 3
EXIT_INTERRUPTED = 130  # and 128 + N by signal N: 129 SIGHUP, 143 SIGTERM
EXIT_PIPE = 141  # as a shell calls the end by SIGPIPE


class CannotRun(RuntimeError):
    """Something that was asked for could not be run here: a mode, an engine, a protocol step. Exit code 3.

    The message is complete: what was asked for, what stopped it and what to do instead.
    """
