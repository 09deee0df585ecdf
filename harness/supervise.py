"""A parent process for every command (Linux): it outlives a crash, says what happened and gives it an exit code.

Python cannot catch the signals that end a process from below: SIGBUS when a mapped file is cut short, SIGABRT from a
library, SIGKILL when memory runs out. Nor can it catch a library that calls exit. So the work is done by a child, and
the parent waits. It passes signals on and ends as the child ends, but a crash becomes a message and exit code 3. Exit
codes 0 and 1 are results: they count only when the child said that it came to one (`conclude`).

The parent is forked before anything is imported: that takes 1 ms, and nothing can hang in it. Both processes stay in
one process group, so what a terminal sends (Ctrl-C, Ctrl-Z) reaches both. The child dies with its parent.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_CANNOT_RUN = 3  # as in harness.errors; nothing is imported here
_INTERRUPTED = 130
_FEW_THREADS = 1000  # jaxlib and OpenBLAS start some for each core
_RESULTS = (0, 1)
_BY_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends them to the child too
_FORWARDED = {*_BY_TERMINAL, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
_SOMEBODY = {*_FORWARDED, signal.SIGPIPE, signal.SIGALRM}  # ended by one of these, it was meant to end
_SHARD = re.compile(r"^(.*)-\d{5}-of-(\d{5})\.gguf$")
_PR_SET_PDEATHSIG = 1
_channel = -1


def start() -> None:
    """Fork: returns in the child, which does the work. The parent never returns; it ends when the child has ended.

    On other systems, and where no process can be made, this one goes on alone.
    """
    global _channel
    if sys.platform != "linux":
        return
    models, kills = _sizes(_named_models(sys.argv[1:])), _memory_kills()
    try:
        reading, writing = _pipe()
    except OSError:
        return
    watched = {*_FORWARDED, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody hears how a child ended
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        child = -1
        if not _threads():  # nothing that computes would start
            _say([f"no process can be started: {error.strerror}", *limits()])
            os._exit(_CANNOT_RUN)
    if child > 0:
        os.close(writing)
        status, interrupted = _watch(child, watched)
        _end(status, interrupted, _concluded(reading), models, _memory_kills() > kills)
    os.close(reading)
    if child == 0:
        die_with(parent)
        _channel = writing
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def conclude(code: int) -> int:
    """Tell the parent that this command has come to its end and means `code`. Gives the code back."""
    if _channel >= 0:
        with suppress(OSError):
            os.write(_channel, bytes([code]))
    return code


def die_with(parent: int) -> None:
    """Let the kernel kill this process when the process `parent`, which started it, ends. Linux only."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(128 + signal.SIGKILL)


def _pipe() -> tuple[int, int]:
    """A pipe apart from descriptors 0 to 2, which may be closed: what is printed there must not come into it."""
    import fcntl

    low = os.pipe()
    try:
        reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in low)
    finally:
        for end in low:
            os.close(end)
    return reading, writing


def _watch(child: int, watched: set[signal.Signals]) -> tuple[int, bool]:
    """Pass signals on to the child until it ends; its wait status, and whether somebody interrupted it."""
    interrupted = False
    while True:
        came = signal.sigwaitinfo(watched)
        interrupted |= came.si_signo == signal.SIGINT
        if came.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status, interrupted
        elif came.si_signo not in _BY_TERMINAL or came.si_code <= 0:  # above 0: the kernel sent it, to the whole group
            os.kill(child, came.si_signo)


def _concluded(reading: int) -> int | None:
    """The exit code that the child meant, which stands even where its last moments went wrong."""
    os.set_blocking(reading, False)
    with suppress(BlockingIOError):
        return next(iter(os.read(reading, 1)), None)
    return None


def _end(status: int, interrupted: bool, concluded: int | None, models: dict[str, int], memory: bool) -> NoReturn:
    """End as the child did; what no result and nobody's signal ended is named, with exit code 3."""
    if concluded is not None:
        os._exit(concluded)
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        if number in _SOMEBODY:
            _die_by(number)
        _say(_crash(number, models, memory))
        os._exit(_CANNOT_RUN)
    code = os.WEXITSTATUS(status)
    if code in _RESULTS:
        _say([f"a library ended the process with {code} before there was a result; {_PRINTED}", *limits()])
        os._exit(_CANNOT_RUN)
    if code == _INTERRUPTED and not interrupted:
        _say([f"nobody interrupted it but a library, as OpenBLAS does without threads; {_PRINTED}", *limits()])
        os._exit(_CANNOT_RUN)
    os._exit(code)


def _die_by(number: signal.Signals) -> NoReturn:
    """The same signal again, without a second core dump; the first process of a container does not die by it."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _crash(number: signal.Signals, models: dict[str, int], memory: bool) -> list[str]:
    """What happened and what to do, by the signal and by what the named models are now."""
    changed = [
        f"{path}: has {_bytes(now)} now, had {_bytes(models[path])} at the start: it was changed while it was being "
        "read: let nothing write to it meanwhile, and compare its size with the publisher's"
        for path, now in _sizes(models).items()
        if now != models[path]
    ]
    found = f"ended by {number.name} ({signal.strsignal(number)})"
    if number == signal.SIGBUS:
        where = [f"{path}: has its {_bytes(size)} as at the start" for path, size in models.items()]
        return [f"{found}: a page of a mapped file could not be read", *(changed or [*where, _BUS])]
    if number == signal.SIGKILL:
        return [f"{found}: {_MEMORY if memory else _KILLED}", *limits(), *changed]
    return [f"{found}: a library gave up or failed; {_PRINTED}", *limits(), *changed]


_PRINTED = "what it printed is above"
_BUS = "the disk may have failed (see `dmesg`), or a file that no argument names was cut short; run it again"
_MEMORY = "the kernel ended it because memory ran out: use a smaller --context, --chunk or model, or a larger limit"
_KILLED = "somebody or the system ended it, as a container's limit does; see `dmesg`"


def limits() -> list[str]:
    """What was set from outside and makes libraries fail, each with what to do; empty where nothing was."""
    import resource

    found = [] if _threads() else ["no thread can be started: raise `ulimit -u`, or the limit of the container"]
    threads = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if 0 <= threads < _FEW_THREADS:
        found.append(f"its user may have {threads:,} processes and threads (`ulimit -u`): raise the limit")
    for name, option in (("AS", "v"), ("DATA", "d")):
        limit = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
        if limit != resource.RLIM_INFINITY:
            found.append(f"its memory is limited to {limit >> 20:,} MiB (`ulimit -{option}`): raise or lift the limit")
    if flags := os.environ.get("XLA_FLAGS"):
        found.append(f"XLA_FLAGS is {flags!r}: an unknown or wrong flag ends the process; run it without")
    return found


def _threads() -> bool:
    """Whether a thread can be started."""
    import _thread

    try:
        _thread.start_new_thread(int, ())
    except RuntimeError:
        return False
    return True


def _named_models(arguments: list[str]) -> list[str]:
    """The GGUF files that the command line names, as FILE, mode@FILE or --option=FILE, with all shards of a split."""
    found = []
    for argument in arguments:
        for text in (argument, *argument.split("=")[1:], argument.partition("@")[2]):
            with suppress(OSError, ValueError):
                if not os.path.isfile(text):  # noqa: PTH113  pathlib takes 10 ms to import
                    continue
                with open(text, "rb") as file:  # noqa: PTH123
                    if text.endswith(".shards"):
                        names = map(os.fsdecode, file.read(1 << 20).split(b"\n"))
                        found += [os.path.join(os.path.dirname(text), name) for name in names if name]  # noqa: PTH118, PTH120
                    elif file.read(4) == b"GGUF":
                        found += _shards(text)
    return found


def _shards(path: str) -> list[str]:
    match = _SHARD.match(path)
    if match is None:
        return [path]
    return [f"{match[1]}-{number:05d}-of-{match[2]}.gguf" for number in range(1, min(int(match[2]), 999) + 1)]


def _sizes(paths: list[str] | dict[str, int]) -> dict[str, int]:
    """Bytes of each file, -1 where it is not there."""
    sizes = {}
    for path in paths:
        try:
            sizes[path] = os.stat(path).st_size  # noqa: PTH116
        except OSError:
            sizes[path] = -1
    return sizes


def _bytes(size: int) -> str:
    return f"{size:,} bytes" if size >= 0 else "no file"


def _memory_kills() -> int:
    """How many processes the kernel has ended for want of memory, over all; 0 where it does not say."""
    with suppress(OSError, ValueError), open("/proc/vmstat", "rb") as lines:  # noqa: PTH123
        return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)
    return 0


def _say(lines: list[str]) -> None:
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\r\x1b[K\x1b[?25h")  # the cursor, which a progress bar hides
        for line in lines:
            os.write(2, f"plegate: cannot run: {line}\n".encode(errors="backslashreplace"))
