"""Run by `test_kills`: children that do nothing but write goldens, reports and caches, killed at random moments.

A process of its own and light, because it forks: `python -m tests.harness.answers.killed_writer FOLDER COUNT SEED`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.answers.promote import promote
from harness.answers.record import dumps
from harness.answers.store import candidate_path
from harness.atomic import write_bytes, write_text
from harness.commands.outputs import outputs
from harness.pages.gate_page import gate_as_html, gate_as_junit
from harness.pages.gate_text import gate_as_json
from tests.harness.answers.examples import ROW, golden, result

LONGEST_S = 0.03


def writers(folder: Path) -> dict[str, tuple[Callable[[], None], list[Path]]]:
    """By name: one round of writing, which leaves other content than the round before, and the files it writes."""
    versions = [golden(), replace(golden(), reason="another reason, and a longer one")]
    runs = [result(), result(ROW)]
    turn = iter(range(1 << 60))
    candidates, checkout, reports = folder / "candidates", folder / "tree", folder / "reports"
    files = [reports / name for name in ("gate.json", "gate.html", "gate.xml")]

    def record() -> None:
        write_text(candidate_path("tiny", candidates), dumps(versions[next(turn) % 2]))

    def move() -> None:
        promote("tiny", versions[next(turn) % 2].reason, candidates, checkout)

    def report() -> None:
        version = next(turn) % 2
        found = runs[version]
        write(
            {"json": lambda: gate_as_json(found), "html": lambda: pages[version], "junit": lambda: gate_as_junit(found)}
        )

    def cache() -> None:
        write_bytes(folder / "cache.bin", bytes([next(turn) % 2]) * 300_000)

    reports.mkdir(exist_ok=True)
    write = outputs(dict(zip(("json", "html", "junit"), files, strict=True)))
    pages = [gate_as_html(run) for run in runs]  # once: drawing takes far longer than writing, and writes nothing
    return {
        "record": (record, [candidates / "tiny.json"]),
        "promote": (move, [checkout / "goldens" / "tiny.json"]),
        "report": (report, files),
        "cache": (cache, [folder / "cache.bin"]),
    }


def open_files(process: int) -> list[Path]:
    """What the descriptors of a process are, files without a name too."""
    return [entry.readlink() for entry in Path(f"/proc/{process}/fd").iterdir()]


def main(folder: Path, count: int, seed: int) -> None:
    """Kill `count` children, each at a random moment of one kind of writing, and look at the files after each kill."""
    moments = random.Random(seed)
    kinds = writers(folder)
    allowed = {}
    for name, (write, files) in kinds.items():
        contents: dict[Path, set[bytes]] = {file: set() for file in files}
        for _ in range(4):  # both versions of every file
            write()
            for file in files:
                contents[file].add(file.read_bytes())
        allowed[name] = contents
    seen: dict[str, int] = {"kills": 0, "writing": 0}
    wrong: list[str] = []
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        write, files = kinds[name]
        child = os.fork()
        if not child:
            while True:
                write()
        time.sleep(moments.uniform(0, LONGEST_S))
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        seen["writing"] += any(str(link).startswith(f"{folder.resolve()}/") for link in open_files(child))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{name}: the child ended by itself"
        seen["kills"] += 1
        wrong += [f"{name}: {file}" for file in files if file.read_bytes() not in allowed[name][file]]
        for left in folder.rglob(".*.part"):
            left.unlink()
    print(json.dumps({**seen, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
