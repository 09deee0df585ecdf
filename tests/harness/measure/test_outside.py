"""Another engine as an arm, behind a stand-in server: warm, cold by proof, at depths, one at a time, and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from fast.rows import locate_table, residency
from harness.measure import outside
from harness.measure.caveats import caveats
from harness.measure.statistics import summarise
from harness.synth import make_model, make_recipe
from model_file.gguf_file import open_gguf
from tests.harness.measure.conftest import made_up, plan, steady
from tests.servers import processes_with
from tests.servers import stand_in as stand_in

Run = Callable[..., Result]
SIZES = ("--workload", "prefill:16", "--workload", "decode:8", "--blocks", "1", "--repeats", "1", "--no-twin")


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a table that can be evicted."""
    path = tmp_path_factory.mktemp("pico") / "pico.gguf"
    make_model(make_recipe("pico"), path)
    with open_gguf(path) as model:
        if not residency.make_cold(locate_table(model)).cold:
            pytest.skip("the temporary folder is on a file system that keeps its files in memory: nothing is ever cold")
    return path


def measured(run_command: Run, model: Path, folder: Path, code: int, *more: str) -> dict[str, Any]:
    out = folder / "summary.json"
    result = run_command("bench", model, *SIZES, "--out", folder / "run", "--json", out, *more)
    assert result.exit_code == code, result.output
    content: dict[str, Any] = json.loads(out.read_text())
    content["output"] = " ".join(result.output.split())
    content["cells"] = [json.loads(path.read_text()) for path in sorted((folder / "run" / "cells").glob("*.json"))]
    return content


def test_server_beside_ours_on_the_same_ids(tiny_quant: Path, stand_in: Path, tmp_path: Path, run_command: Run) -> None:
    arms = ("--arm", "resident", "--arm", f"llama={stand_in} --lazy-fault made-up", "--state", "warm")
    content = measured(run_command, tiny_quant, tmp_path, 0, *arms, "--depth", "0", "--depth", "20")
    assert len(content["groups"]) == 4
    for group in content["groups"]:
        sides = {side["arm"]: side for side in group["arms"]}
        prefill = group["workload"]["kind"] == "prefill"
        shown = 16 / (1e-3 * 16 / (16 + (4 if group["depth"] else 0))) if prefill else 8 / 1e-3
        assert sides["llama"]["tokens_per_s"]["median"] == pytest.approx(shown)
        assert sides["resident"]["tokens_per_s"]["median"] > 0
    names = {caveat["name"]: caveat["text"] for caveat in content["caveats"]}
    assert "an outside engine, by its own clock" in names["note"]
    assert "such as" in names["other-tokens"]  # what it makes up is no answer
    cell = next(cell for cell in content["cells"] if cell["cell"]["arm"] == "llama")
    assert str(tiny_quant) in cell["server"]["command"]
    assert len(cell["server"]["sha256"]) == 64
    assert not processes_with(str(stand_in.parent))


def test_lazy_server_is_cold_by_proof_and_one_that_loads_all_is_called_loaded(
    pico: Path, stand_in: Path, tmp_path: Path, run_command: Run
) -> None:
    arms = [f"{name}={stand_in} --lazy-fault made-up --lazy-mode {name}" for name in ("on", "off")]
    words = [word for arm in arms for word in ("--arm", arm)]
    content = measured(run_command, pico, tmp_path, 0, *words, "--state", "cold", "--depth", "0")
    for cell in content["cells"]:
        proven, used, rows = cell["residency"], cell["used"], cell["rows"]
        assert cell["valid"]
        if cell["cell"]["arm"] == "on":
            assert (proven["state"], cell["effective_mode"]) == ("cold", "llama-server")
            assert proven["before"] <= 0.01
            assert used["disk_bytes"] >= 0.9 * rows["pages"] * 4096 > 0
            assert "bytes paged out" in proven["method"]
        else:
            assert (proven["state"], cell["effective_mode"]) == ("loaded", "loaded")
            assert any(note.startswith("loaded: off has read the whole table") for note in cell["notes"])
    assert "--lazy-mode off), loaded" in content["output"]
    assert "--lazy-mode on), loaded" not in content["output"]
    assert "holds the table in its own memory: it is never cold" in json.dumps(content["groups"])


def test_a_server_whose_table_cannot_be_evicted_is_started_again_and_then_invalid(
    pico: Path, stand_in: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = residency.Eviction(0.5, "fadvise", 3)
    monkeypatch.setattr(outside.residency, "make_cold", lambda *_: held)
    monkeypatch.setattr(outside.residency, "resident_fraction", lambda _: 0.5)
    arm = ("--arm", f"on={stand_in} --lazy-fault made-up --lazy-mode on", "--state", "cold", "--depth", "0")
    content = measured(run_command, pico, tmp_path, 3, *arm)
    assert all(cell["residency"]["reopened"] for cell in content["cells"])
    assert "50.0% of the table's pages were still in memory" in content["output"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("forgets", "it remembered 0, more or less than that depth"),
        ("prompt_n=1", "says that its prompt had 21 tokens, expected the 20 that were sent"),
        ("die=2", "its process was ended by SIGKILL"),
    ],
)
def test_a_server_that_answers_otherwise_than_asked_is_not_timed(
    tiny_quant: Path, stand_in: Path, tmp_path: Path, run_command: Run, fault: str, message: str
) -> None:
    arm = ("--arm", f"llama={stand_in} --lazy-fault made-up,{fault}", "--state", "warm", "--depth", "20")
    content = measured(run_command, tiny_quant, tmp_path, 3, *arm)
    assert not any(cell["valid"] for cell in content["cells"])
    assert message in content["output"]
    assert not processes_with(str(stand_in.parent))


def test_only_servers_that_are_started_here_are_measured_cold(tiny_quant: Path, run_command: Run) -> None:
    for arm in ("x=http://127.0.0.1:1", "transformers"):
        result = run_command("bench", tiny_quant, "--arm", arm, "--state", "cold", "--workload", "prefill:16")
        assert result.exit_code == 2
        assert "only a server that is started here is measured cold" in result.stderr


def test_same_first_tokens_are_no_caveat() -> None:
    for tokens, named in (((5, 5), False), ((5, 6), True)):
        results = made_up(plan(), steady(0.01))
        for cell in results.cells.values():
            cell["first_token"] = tokens[cell["cell"]["arm"] == "uring"]
        names = {caveat.name for caveat in caveats(results, summarise(results))}
        assert ("other-tokens" in names) == named
