"""Servers as arms: looked at, started, asked, and nothing of them left, whatever happens to them or to plegate."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.engines.arms import Arm, parse_arm
from harness.engines.llama_server import by_step
from harness.engines.program import inspect_program
from harness.engines.serving import Adapter, Room, connect
from harness.errors import CannotRun
from model_file.errors import InputError
from tests.conftest import FIXTURES
from tests.servers import processes_with
from tests.servers import stand_in as stand_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
TINY = FIXTURES / "tiny.gguf"
IDS = [5, 6, 7, 8, 9, 10, 11]


def started(program: Path, *arguments: str, answer_limit_s: float = 600) -> Adapter:
    return connect(Arm("a", "llama-server", words=(str(program), *arguments)), Room(TINY, 256, 1, 60, answer_limit_s))


def is_gone(process_id: int) -> bool:
    return not Path(f"/proc/{process_id}").exists()


def test_both_protocols_give_the_same_ids_and_logprobs(stand_in: Path) -> None:
    native = started(stand_in, "-lzm", "on")
    with native.server as server:
        mine = native.complete(IDS, 6, 3)
        assert len(mine.tokens) == len(mine.top) == len(mine.margins) == 6
        assert (mine.prompt_tokens, mine.cached_tokens) == (len(IDS), 0)
        assert mine.margins[0] == pytest.approx(mine.top[0][mine.tokens[0]] - sorted(mine.top[0].values())[-2])
        again = native.complete([*IDS, *mine.tokens], 2, 0, remember=True)
        assert again.cached_tokens > 0
        assert again.prompt_tokens + again.cached_tokens == len(IDS) + 6
        other = connect(parse_arm(f"b=openai:{server.address}"), Room(TINY, 256))
        assert other.server.process_id == server.process_id  # found by its port
        with other.server:
            theirs = other.complete(IDS, 6, 3)
        assert (theirs.tokens, theirs.top, theirs.text) == (mine.tokens, mine.top, mine.text)
        assert not is_gone(server.process_id or 0)  # an address is not ours to stop
        assert other.tokenize("ab") == native.tokenize("ab") == [3 + 97 % 50, 3 + 98 % 50]
    assert is_gone(server.process_id or 0)


def test_answers_without_ids_are_text(stand_in: Path) -> None:
    with started(stand_in, "--lazy-fault", "text").server as server:
        other = connect(parse_arm(f"b=openai:{server.address}"), Room(TINY, 256))
        done = other.complete(IDS, 3)
        other.server.close()
    assert (done.tokens, done.written) == ([], 3)
    assert re.fullmatch(r"( t\d+){3}", done.text)


def test_logprobs_stand_at_their_steps_where_characters_are_split() -> None:
    """As llama-server b11434 tells four tokens of which the first ends inside a character: three entries."""
    told = [
        {"id": 80, "bytes": [237, 78], "top_logprobs": [{"id": 80, "bytes": [78], "logprob": -1.0}]},
        {"id": 80, "bytes": [78], "top_logprobs": [{"id": 80, "bytes": [78], "logprob": -2.0}]},
        {"id": 9, "bytes": [65], "top_logprobs": [{"id": 9, "bytes": [65], "logprob": -3.0}]},
    ]
    assert by_step([80, 80, 80, 9], told) == [{}, {80: -1.0}, {80: -2.0}, {9: -3.0}]
    assert by_step([1, 2], []) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lazy-fault", "die=1"), r"a: its process was ended by SIGKILL while it was asked\n(.*\n)*.*about to die"),
        (("--lazy-fault", "hang=1"), r"a: no answer within 8 s \(--answer-limit\)\n(.*\n)*.*listening"),
        (("-lzm", "never"), r"a: its process ended with 2 while it started\n(.*\n)*.*invalid choice"),
    ],
)
def test_a_server_that_fails_is_named_with_its_last_lines(
    stand_in: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CannotRun, match=message):  # noqa: SIM117  starting may fail, or asking
        with (adapter := started(stand_in, *arguments, answer_limit_s=8)).server:
            adapter.complete(IDS, 2)
    assert not processes_with(str(stand_in.parent))


def test_a_start_that_takes_too_long_ends(stand_in: Path) -> None:
    said: list[str] = []
    arm = Arm("a", "llama-server", words=(str(stand_in), "--slow-start", "60"))
    with pytest.raises(CannotRun, match=r"a: was not ready after 8 s \(--start-limit\)\n(.*\n)*.*loading"):
        connect(arm, Room(TINY, 256, start_limit_s=8, tell=said.append))
    assert any(line.startswith("a: starting, ") and line.endswith("stand-in: loading") for line in said)


def test_unknown_arguments_are_named_with_the_nearest(stand_in: Path) -> None:
    arm = parse_arm(f"a={stand_in} --lasy-mode on")
    with pytest.raises(InputError, match=r"--lasy-mode is no argument of .*, the nearest that it has is --lazy-mode"):
        inspect_program(arm)
    with pytest.raises(InputError, match="--port is chosen by plegate"):
        started(stand_in, "--port", "1")
    with pytest.raises(CannotRun, match="absent is no program"):
        inspect_program(parse_arm("a=/absent -c 1"))


def test_facts_of_a_program(stand_in: Path) -> None:
    facts = inspect_program(parse_arm(f"a={stand_in} -c 64"))
    assert facts.version == "version: stand-in 7 (build 42)"
    assert facts.sha256 == subprocess.check_output(["sha256sum", stand_in]).split()[0].decode()
    (library := stand_in.parent / "libx.so").write_bytes(b"1")
    first = inspect_program(parse_arm(f"a={stand_in}")).libraries
    library.write_bytes(b"2")
    assert first != inspect_program(parse_arm(f"a={stand_in}")).libraries
    library.unlink()


def test_what_a_server_leaves_behind_is_ended_and_its_port_is_free(stand_in: Path) -> None:
    with started(stand_in, "--lazy-fault", "leak").server as server:
        leaked = int(re.findall(r"leaked (\d+)", server.log())[0])
        assert not is_gone(leaked)
        port = int(server.address.rpartition(":")[2])
    assert is_gone(leaked)
    assert not server.folder.exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))  # refused only where something still listens
    assert "leaked" in server.log()  # kept


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_and_its_children_end_with_plegate(stand_in: Path, number: signal.Signals) -> None:
    body = (
        "from tests.harness.engines.test_serving import *\n"
        f"with started(Path({str(stand_in)!r}), '--lazy-fault', 'leak').server as server:\n"
        "    print(server.process_id, server.folder, server.log().split('leaked ')[1].split()[0], flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    with child:
        assert child.stdout is not None
        server, folder, leaked = child.stdout.readline().split()
        os.kill(child.pid, number)
    end = time.monotonic() + 20
    while time.monotonic() < end and not (is_gone(int(server)) and is_gone(int(leaked)) and not Path(folder).exists()):
        time.sleep(0.05)
    assert is_gone(int(server))
    assert is_gone(int(leaked))
    assert not Path(folder).exists()
