"""The gate on experts that are read when chosen: every mode reads them, and one that reads them wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fast.engine.expert_store import ExpertStore
from fast.rows.uring import UringReader
from harness.cli import app
from tests.conftest import FIXTURES

MODES = ("mmap", "prefetch", "uring", "resident")


def judged(tmp_path: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    (tmp_path / "prompt.json").write_text(json.dumps([226, 320, 456, 394, 351, 334, 279, 1, 1, 277]))
    out = tmp_path / "result.json"
    chosen = [part for mode in MODES for part in ("--mode", mode)]
    arguments = [FIXTURES / "tiny-quant.gguf", "--tokens", tmp_path / "prompt.json", "--generate", 8, *chosen]
    arguments += ["--memory", "2GiB", "--json", out, *more]
    result = CliRunner().invoke(app, ["gate", *map(str, arguments)])
    return result.exit_code, json.loads(out.read_text()) if out.exists() else {}, result.output


def test_every_mode_reads_experts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    read: dict[str, int] = {}
    use, take = ExpertStore.use, ExpertStore.take

    def noted(store: ExpertStore, mode: str) -> None:
        used.append(mode)
        use(store, mode)

    def counted(store: ExpertStore, *arguments: Any) -> Any:
        slots = take(store, *arguments)
        read[store.mode] = store.counters.read
        return slots

    monkeypatch.setattr(ExpertStore, "use", noted)
    monkeypatch.setattr(ExpertStore, "take", counted)
    code, result, output = judged(tmp_path)
    assert code == 0, output
    assert {mode["verdict"] for mode in result["modes"]} == {"equal"}
    assert any("experts were read when they were chosen, by each mode" in note for note in result["notes"])
    assert {"mmap", "prefetch", "uring", "auto"} <= set(used), "auto for resident, which would hold all experts"
    assert sorted(read.values()) == sorted(set(read.values())) and len(read) == 4, "every mode has read some"


def test_a_mode_that_reads_experts_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = UringReader._read

    def wrong(reader: UringReader, ids: Any, out: Any, counters: Any) -> None:
        read(reader, ids, out, counters)
        if reader.table.name.startswith("experts'"):
            out[:, 8:] ^= 0x15

    monkeypatch.setattr(UringReader, "_read", wrong)
    code, result, output = judged(tmp_path)
    verdicts = {mode["mode"]: mode["verdict"] for mode in result["modes"]}
    assert code == 1, output
    del verdicts["resident"]  # `auto` reads its experts, and that goes by the ring when pages are cold
    assert verdicts == {"mmap": "equal", "prefetch": "equal", "uring": "different"}


def test_one_mode_of_experts_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    use = ExpertStore.use
    monkeypatch.setattr(ExpertStore, "use", lambda store, mode: (used.add(mode), use(store, mode))[1])
    assert judged(tmp_path, "--expert-mode", "direct")[0] == 0
    assert used == {"direct"}


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    code, _, output = judged(tmp_path, "--arm", "mmap")
    assert code == 2 and "memory_bytes=12GiB" in " ".join(output.split())
    result = CliRunner().invoke(app, ["gate", "--expert-mode", "mmap"])
    assert result.exit_code == 2 and "expected --memory SIZE too" in " ".join(result.output.split())
