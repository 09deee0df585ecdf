"""The parent of every command: it names a crash, ends as its child does, and leaves job control as it was."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hostile, pytest.mark.skipif(sys.platform != "linux", reason="there is no parent elsewhere")]

ROOT = Path(__file__).parents[2]
START = "import os, signal, sys, time\nfrom harness import supervise\nsupervise.start()\n"


def supervised(body: str, *arguments: str | Path) -> list[str]:
    """A command whose child runs `body`."""
    return [sys.executable, "-c", START + body, *map(str, arguments)]


def run(body: str, *arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and errors of a command whose child runs `body`."""
    command = supervised(body, *arguments)
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | (env or {})
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, check=False)
    return done.returncode, done.stderr


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130, 141])
def test_an_exit_code_that_is_meant_stands(code: int) -> None:
    assert run(f"sys.exit(supervise.conclude({code}))") == (code, "")


@pytest.mark.parametrize("code", [2, 3, 141])
def test_an_exit_code_that_is_no_result_needs_no_word(code: int) -> None:
    assert run(f"os._exit({code})") == (code, "")


@pytest.mark.parametrize("code", [0, 1])
def test_a_library_that_calls_exit_gives_no_result(code: int) -> None:
    found, errors = run(f"os._exit({code})", env={"XLA_FLAGS": "--xla_none"})
    assert found == 3
    assert f"a library ended the process with {code} before there was a result" in errors
    assert "XLA_FLAGS is '--xla_none'" in errors


def test_an_interrupt_by_a_library_is_nobodys() -> None:
    """OpenBLAS raises SIGINT in its own process where it cannot start a thread."""
    code, errors = run("os._exit(130)")
    assert (code, "nobody interrupted it but a library" in errors) == (3, True), errors
    code, errors = run(
        "signal.signal(signal.SIGINT, lambda *_: os._exit(130)); os.kill(os.getppid(), 2); time.sleep(9)"
    )
    assert (code, errors) == (130, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_to_closed_output_is_no_result(closed: str) -> None:
    """A pipe would take the place of what is closed."""
    body = "for descriptor in (0, 1, 2):\n    try: os.write(descriptor, b'0')\n    except OSError: pass\nos._exit(1)"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *supervised(body)]
    assert subprocess.run(command, capture_output=True, cwd=ROOT, check=False).returncode == 3


@pytest.mark.parametrize("name", ["SIGBUS", "SIGSEGV", "SIGABRT", "SIGKILL", "SIGFPE", "SIGILL"])
def test_a_crash_is_named_and_no_difference(name: str) -> None:
    code, errors = run(f"os.kill(os.getpid(), signal.{name})")
    assert (code, f"plegate: cannot run: ended by {name} (" in errors) == (3, True), errors
    assert "Traceback" not in errors


def test_a_crash_after_the_result_takes_nothing_back() -> None:
    for code in (0, 1):
        assert run(f"supervise.conclude({code}); os.kill(os.getpid(), signal.SIGSEGV)") == (code, "")


@pytest.mark.parametrize("form", ["{}", "mmap@{}", "--mode=mmap@{}", "--against={}"])
def test_a_model_cut_while_it_is_read_is_named_with_both_sizes(tiny: Path, tmp_path: Path, form: str) -> None:
    model = tmp_path / "copy.gguf"
    shutil.copy(tiny, model)
    size = model.stat().st_size
    body = (
        "import mmap\n"
        f"with open({str(model)!r}, 'r+b') as file:\n"
        "    data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "    file.truncate(10_000)\n"
        "data[len(data) - 1]\n"
    )
    code, errors = run(body, form.format(model))
    assert code == 3
    assert "ended by SIGBUS (Bus error): a page of a mapped file could not be read" in errors
    assert f"{model}: has 10,000 bytes now, had {size:,} bytes at the start" in errors


def test_a_bus_error_without_a_changed_model_does_not_blame_it(tiny: Path) -> None:
    code, errors = run("os.kill(os.getpid(), signal.SIGBUS)", tiny)
    assert code == 3
    assert f"{tiny}: has its {tiny.stat().st_size:,} bytes as at the start" in errors
    assert "the disk may have failed" in errors


def test_every_shard_of_a_split_is_watched(tiny: Path, tmp_path: Path) -> None:
    shards = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for shard in shards:
        shutil.copy(tiny, shard)
    code, errors = run(f"os.truncate({str(shards[1])!r}, 5); os.kill(os.getpid(), signal.SIGBUS)", shards[0])
    assert (code, f"{shards[1]}: has 5 bytes now" in errors) == (3, True), errors


@pytest.mark.parametrize("command", [("run", "--tokens", "IDS"), ("logits", "--tokens", "IDS", "--out", "OUT")])
def test_commands_name_a_model_that_is_cut_while_it_loads(tiny: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Through the command line: the file loses its end between the header and the weights."""
    model, ids = tmp_path / "copy.gguf", tmp_path / "ids"
    shutil.copy(tiny, model)
    ids.write_text("1 2 3")
    names = {"IDS": str(ids), "OUT": str(tmp_path / "out.npz")}
    cutting = (
        "import os, sys\n"
        "import model_file.gguf_file as file\n"
        "packed = file.GgufFile.packed\n"
        "def cut(self, name):\n"
        f"    os.truncate({str(model)!r}, 8192)\n"
        "    return packed(self, name)\n"
        "file.GgufFile.packed = cut\n"
        "from harness.__main__ import main\n"
        "main()\n"
    )
    words = [command[0], str(model), *(names.get(word, word) for word in command[1:])]
    done = subprocess.run(
        [sys.executable, "-c", cutting, *words], capture_output=True, text=True, cwd=ROOT, timeout=100, check=False
    )
    assert done.returncode == 3, done.stderr
    assert f"{model}: has 8,192 bytes now" in done.stderr or "truncated" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"])
def test_a_signal_to_the_parent_reaches_the_child(name: str) -> None:
    """And who sent it sees the end that it asked for."""
    number = getattr(signal, name)
    with subprocess.Popen(
        supervised("print(os.getpid(), flush=True)\ntime.sleep(60)"), stdout=subprocess.PIPE, text=True, cwd=ROOT,
        stderr=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert child != parent.pid
        parent.send_signal(number)
        # Python's own KeyboardInterrupt ends in the signal again.
        assert parent.wait(30) == -number
    assert wait_until_gone(child)


def test_the_child_dies_with_its_parent() -> None:
    with subprocess.Popen(
        supervised("print(os.getpid(), flush=True)\ntime.sleep(60)"), stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    assert wait_until_gone(child)


def test_a_process_that_cannot_fork_goes_on_alone() -> None:
    """As where the number of processes is limited."""
    body = "import errno, os, sys\ndef refuse():\n    raise OSError(errno.EAGAIN, 'no')\nos.fork = refuse\n"
    body += START + "print('alone')\nsys.exit(supervise.conclude(1))"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "alone\n", "")


class Terminal:
    """A shell with job control on a terminal of its own."""

    def __init__(self, script: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execvp("bash", ["bash", "--norc", "-m", "-c", script])
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read until `text` has come."""
        end = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 4096).decode()
                except OSError:
                    break
        assert text in self.seen, self.seen

    def type(self, key: bytes) -> None:
        os.write(self.fd, key)

    def close(self) -> None:
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_terminal_stops_continues_and_interrupts_both_once() -> None:
    """Ctrl-Z, fg and Ctrl-C. The child counts the signals it gets: the parent must not add its own."""
    body = (
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "print('ready', flush=True)\n"
        "while not count: time.sleep(0.02)\n"
        "time.sleep(0.5)\n"
        "print('got', len(count), flush=True)\n"
        "sys.exit(supervise.conclude(1))\n"
    )
    code = (START + body).replace("'", "'\\''")
    script = f"{sys.executable} -c '{code}'; echo stopped $?; fg >/dev/null; echo ended $?; sleep 60"
    terminal = Terminal(script)
    try:
        terminal.wait_for("ready")
        terminal.type(b"\x1a")
        terminal.wait_for(f"stopped {128 + signal.SIGTSTP}")
        time.sleep(0.3)
        terminal.type(b"\x03")
        terminal.wait_for("ended 1")
        assert "got 1\r" in terminal.seen
    finally:
        terminal.close()


def test_a_command_interrupted_on_a_terminal_ends_with_130(tiny: Path) -> None:
    script = f"{sys.executable} -m harness rows {tiny} --rows 2000 --cold; echo ended $?; sleep 60"
    terminal = Terminal(script)
    try:
        time.sleep(1.5)
        terminal.type(b"\x03")
        terminal.wait_for("ended ")
        assert "ended 130" in terminal.seen, terminal.seen
        assert terminal.seen.count("plegate: interrupted") == 1
    finally:
        terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "mib"), [("v", 60), ("v", 120), ("v", 250), ("v", 700), ("d", 60), ("d", 120)])
def test_too_little_memory_is_named_wherever_it_runs_out(tiny: Path, limit: str, mib: int) -> None:
    """In NumPy's start, in jaxlib's, in a thread of its: an exception, an exit or an abort, and never a defect."""
    command = ["sh", "-c", f'ulimit -{limit} {mib << 10}; exec "$@"', "sh", sys.executable, "-m", "harness"]
    command += ["rows", str(tiny), "--mode", "mmap", "--no-cold", "--rows", "10"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 3, done.stderr
    assert f"its memory is limited to {mib} MiB (`ulimit -{limit}`): raise or lift the limit" in done.stderr
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_flag_of_xla_is_no_difference(tiny: Path) -> None:
    command = [sys.executable, "-m", "harness", "rows", str(tiny), "--mode", "mmap", "--no-cold"]
    environment = os.environ | {"XLA_FLAGS": "--xla_none_of_this=1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=100, check=False)
    assert done.returncode == 3, done.stderr
    assert "XLA_FLAGS is '--xla_none_of_this=1'" in done.stderr or "xla_none_of_this" in done.stderr


def test_an_interrupt_of_the_process_group_comes_once() -> None:
    """`kill -INT -PGID`: to parent and child, and then from the parent too; the command's handler takes it as one."""
    body = (
        "import harness.cli as cli\n"
        "signal.signal(signal.SIGINT, cli._interrupt)\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.3)\n"
        "    os._exit(130)\n"
    )
    with subprocess.Popen(
        supervised(body), stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(30) == 130
