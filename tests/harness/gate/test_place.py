"""Where a difference starts: said for every mode that differs, and never said of what was not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.answers.store import read_golden
from harness.cases.case import ModeSource
from harness.cases.models import model_path
from harness.cases.registry import case_by_id
from harness.gate import place
from harness.gate import run as gate
from harness.gate.checks import Finding
from model_file.gguf_file import open_gguf
from tests.conftest import larger_fixture

ROOT = Path(__file__).parents[3]
FINDING = Finding("tokens", "a case", "a prompt", "tokens differ", {"step": 1})
# In a process of its own: the fault is planted in code that other tests have compiled already.
PLANTED = """
import json
from dataclasses import replace

from harness.cases.case import parse_modes
from harness.cases.models import model_path
from harness.cases.registry import case_by_id
from harness.gate import run as gate
from harness.answers.store import read_golden
from harness.faults.fault import faults
from model_file.errors import InputError

faults()["tail block dropped"].plant(None)
whole, golden = case_by_id("tiny-quant"), read_golden("tiny-quant")
case = replace(whole, prompts=whole.prompts[:1], generate=1, repeats=1)
options = gate.GateOptions(goldens={case.id: replace(golden, prompts=golden.prompts[:1])})


def found_in(*modes):
    result = gate.run_gate(model_path(case.id), [case], parse_modes(modes), options)
    return [next(f for f in mode.ordered if f.check == "logits") for mode in result.modes]


def refuse(*_):
    raise InputError("nothing can be read today")


found = {"places": [[f.message, f.detail.get("first_tensor")] for f in found_in("mmap", "direct")]}
gate.with_place = refuse
found["refused"] = found_in("mmap")[0].message
gate.PLACE_BYTES = model_path(case.id).stat().st_size - 1
found["large"] = found_in("mmap")[0].message
print(json.dumps(found))
"""


def test_the_place_is_found_for_every_mode_that_differs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [tensor for _, tensor in found["places"]] == ["blk.3.mixer"] * 2
    assert all("against reference: blk.3.mixer at position 1 (" in text for text, _ in found["places"])
    # Where nobody looked, nothing is claimed.
    unlooked = "; the first tensor outside the bound was not looked for: "
    assert found["refused"].endswith(unlooked + "nothing can be read today")
    assert f"{unlooked}the model has 0.0 GiB, more than" in found["large"]


class _Ones:
    def new_sequence(self) -> _Ones:
        return self

    def record(self, ids: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        return np.ones((len(ids), 3), np.float32), {}


@pytest.mark.parametrize(
    ("tokens", "seen"),
    [
        (6, "all named intermediates of the 6 tokens of prompt and answer are inside the bound"),
        (9, "of the first 6 of the 9 tokens of prompt and answer, which are all that was looked through, are inside"),
    ],
)
def test_a_message_says_how_far_was_looked(monkeypatch: pytest.MonkeyPatch, tokens: int, seen: str) -> None:
    monkeypatch.setattr(place, "MAX_TOKENS", 6)
    found = place.with_place(FINDING, _Ones(), _Ones(), range(tokens), 1e-3)  # type: ignore[arg-type]
    assert seen in found.message
    assert found.detail == FINDING.detail


def test_every_shard_counts_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of many small shards is not loaded twice either."""
    shards = sorted(larger_fixture("split").glob("*.gguf"))
    sizes = [shard.stat().st_size for shard in shards]
    monkeypatch.setattr(gate, "PLACE_BYTES", max(sizes))
    with open_gguf(shards[0]) as model:
        found = gate._Model._with_place(SimpleNamespace(model=model), FINDING, ModeSource("mmap"))  # type: ignore[arg-type]
    assert "was not looked for: the model has" in found.message


class _WithoutRecord:
    """The reference, which answers with another token, and gives no intermediates."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.name, self.abilities = "wrong", inner.abilities - {"record"}

    def new_sequence(self) -> Any:
        sequence = self._inner.new_sequence()
        right = sequence.generate
        sequence.generate = lambda count: iter([((token + 1) % 300, margin) for token, margin in right(count)])
        return sequence

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "reader":
            self._inner.reader = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_wrong_engine_without_intermediates_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with "cannot run" and lost its findings before."""
    real, case, golden = gate.load_engine, case_by_id("tiny-quant"), read_golden("tiny-quant")
    assert golden is not None
    monkeypatch.setattr(gate, "load_engine", lambda _, *rest: _WithoutRecord(real("reference", *rest)))
    case = replace(case, prompts=case.prompts[:1], generate=2, repeats=1)
    options = gate.GateOptions("wrong", goldens={case.id: replace(golden, prompts=golden.prompts[:1])})
    result = gate.run_gate(model_path(case.id), [case], [ModeSource("mmap")], options)
    assert result.exit_code == 1
    message = next(finding.message for finding in result.modes[0].ordered if finding.check == "tokens")
    assert "generated token 0" in message and "the engine wrong gives no named intermediates" in message
