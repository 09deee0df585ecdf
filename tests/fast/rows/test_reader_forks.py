"""Forks after open: parent and child gather at the same time, each of them right in every batch, or refused by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from fast.rows import MODES, Table

SETTINGS = "RowSettings(inline_rows=8, queue_depth=64, workers=3, slice_reads=16, advise_rows=64)"


def run_apart(script: str, table: Table, *arguments: str) -> None:
    """In a process of its own: the test process has threads of other libraries that a fork would upset."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, pickle.dumps(table).hex(), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


BOTH_GATHER = f"""
import os, pickle, sys, threading, time
import numpy as np
from fast.rows import RowCache, RowSettings, open_rows
from tests.fast.rows.tables import pread_rows

sys.setswitchinterval(1e-5)
table = pickle.loads(bytes.fromhex(sys.argv[1]))
mode, cached, threads = sys.argv[2], sys.argv[3] == "cached", int(sys.argv[4])
expected = pread_rows(table, np.arange(table.rows))
reader = open_rows(table, mode, {SETTINGS})
used = [RowCache(reader, 64 * 98), reader] if cached else [reader]
wrong = []

def gather(seed, until):
    step = 0
    while not until(step):
        ids = np.random.default_rng([seed, step]).integers(0, table.rows, (5, 300, 40)[step % 3])
        found = used[seed % len(used)].gather(ids)
        if found.tobytes() != expected[ids].tobytes():
            wrong.append(f"{{int((found != expected[ids]).any(axis=1).sum())}} of {{ids.size}} rows, batch {{step}}")
        step += 1

def gather_in_threads(seed, until):
    working = [threading.Thread(target=gather, args=(seed + i, until), daemon=True) for i in range(1, threads)]
    for thread in working: thread.start()
    gather(seed, until)
    for thread in working: thread.join(30)
    assert not any(thread.is_alive() for thread in working), "a thread hangs"

gather(0, lambda step: step == 6)
end = threading.Event()
others = [threading.Thread(target=gather, args=(1000 + i, lambda step: end.is_set()), daemon=True)
          for i in range(threads - 1)]
for thread in others: thread.start()
children = []
for number in range(4):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        wrong.clear()
        gather_in_threads(10 * number, lambda step: step == 30)
        for one in used: one.close()
        if wrong: print(f"child {{number}} of {{mode}}: {{len(wrong)}} wrong, first {{wrong[0]}}", flush=True)
        os._exit(bool(wrong))
    children.append(child)
deadline = time.monotonic() + 90
codes = []
for step in range(10**9):
    gather(2000 + step, lambda done: done == 3)
    for child in list(children):
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended: children.remove(child), codes.append(code)
    if not children or time.monotonic() > deadline: break
end.set()
for thread in others: thread.join(30)
for child in children: os.kill(child, 9)
if wrong: print(f"parent of {{mode}}: {{len(wrong)}} gathers are wrong, first {{wrong[0]}}")
assert not children, "a child hangs"
sys.exit(bool(wrong) or any(codes))
"""


@pytest.mark.parametrize(("front", "threads"), [("alone", 1), ("alone", 3), ("cached", 3)])
@pytest.mark.parametrize("mode", list(MODES))
def test_parent_and_child_gather_at_the_same_time(table: Table, mode: str, front: str, threads: int) -> None:
    """With threads: some of the parent's are in the middle of a gather at every fork, and the child has some, too."""
    run_apart(BOTH_GATHER, table, mode, front, str(threads))


PROBES = """
import os, pickle, sys
import numpy as np
from fast.rows.probe import DeviceProbe

table = pickle.loads(bytes.fromhex(sys.argv[1]))
probe = DeviceProbe(table)
probe._buffer[:] = 1
child = os.fork()
if child == 0:
    probe._buffer[:] = 2
    probe.run(4, 4, 1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (probe._buffer == 1).all(), "the child wrote into the parent's memory"
"""


def test_a_probe_of_a_child_leaves_the_memory_of_the_parent(table: Table) -> None:
    run_apart(PROBES, table)
