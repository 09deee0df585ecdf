"""Planting changes what it says, and fails where the code is another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.faults.fault import faults
from harness.faults.planting import CannotPlant, replace_function, rewrite

ROOT = Path(__file__).parents[3]


class _Victim:
    def double(self, value: int) -> int:
        return value * 2


def test_planting_changes_exactly_what_it_says() -> None:
    rewrite(_Victim, "double", "value * 2", "value * 2 + 1")
    assert _Victim().double(4) == 9
    replace_function(_Victim, "double", lambda original: lambda self, value: original(self, value) * 0)
    assert _Victim().double(4) == 0


@pytest.mark.parametrize("text", ["value * 3", "value"])
def test_planting_fails_where_the_code_is_another(text: str) -> None:
    class Other:
        def double(self, value: int) -> int:
            return value * 2

    with pytest.raises(CannotPlant, match="adapt the fault to the code"):
        rewrite(Other, "double", text, "0")
    with pytest.raises(CannotPlant, match="has no triple"):
        replace_function(Other, "triple", lambda original: original)


def test_every_fault_can_be_planted_in_the_code_as_it_is() -> None:
    """In a process of its own: a fault whose code has changed shows here, not an hour later in the session."""
    script = (
        "import tempfile, pathlib, sys\n"
        "from harness.answers.store import read_golden\n"
        "from harness.faults.fault import Trial, faults\n"
        "project = ('fast', 'model_file')\n"
        "known = faults()\n"
        "for fault in known.values():\n"
        "    for name in [name for name in sys.modules if name.split('.')[0] in project]: del sys.modules[name]\n"
        "    with tempfile.TemporaryDirectory() as scratch:\n"
        "        golden = read_golden(fault.case or 'tiny-quant')\n"
        "        fault.plant(Trial(golden.case, [fault.mode], golden, pathlib.Path(scratch)))\n"
        "print(len(known))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(faults()))]
