"""From `plegate gate --arm` to the known fault: a server that is wrong in a known way is told how, in every report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.diagnose.known import known_faults
from tests.conftest import FIXTURES
from tests.servers import stand_in as stand_in

MODEL = FIXTURES / "tiny-quant.gguf"
FAULT = "the multipliers had gone through float32"
NUMBER = [known.name for known in known_faults()].index(FAULT)


def judged(stand_in: Path, folder: Path, fault: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, arms of the JSON, and what was printed, of the right stand-in and one with a fault."""
    (tokens := folder / "ids.json").write_text(json.dumps(np.random.default_rng(21).integers(0, 300, 70).tolist()))
    arguments = ["gate", str(MODEL), "--tokens", str(tokens), "--generate", "16", "--no-restart", *options]
    arguments += ["--arm", f"right={stand_in}", "--arm", f"wrong={stand_in} --lazy-fault {fault}"]
    done = CliRunner().invoke(app, [*arguments, "--json", str(folder / "out.json")])
    return done.exit_code, json.loads((folder / "out.json").read_text())["arms"], " ".join(done.output.split())


def test_a_server_with_a_known_fault_is_told_which(stand_in: Path, tmp_path: Path) -> None:
    code, (right, wrong), printed = judged(stand_in, tmp_path, f"known={NUMBER}", "--diagnose", "5min")
    assert code == 1 and wrong["verdict"] == "different" and right["diagnosis"] is None
    assert wrong["diagnosis"].startswith(f"behaves as if {FAULT} (16 of 16 ids, logprobs within ")
    assert f"diagnosis: behaves as if {FAULT}" in printed


@pytest.mark.parametrize("options", [("--diagnose", "0s"), ()])
def test_one_other_id_follows_no_known_fault(
    stand_in: Path, tmp_path: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [known for known in known_faults() if known.change is None][:12]
    monkeypatch.setattr("harness.diagnose.diagnosis.known_faults", lambda *_: few)
    code, (_, wrong), _ = judged(stand_in, tmp_path, "id=5", *options)
    assert code == 1
    if options:
        assert wrong["diagnosis"] is None
    else:
        assert wrong["diagnosis"].startswith("none of the known faults explains it (our own run: 15 of 16 ids")
