"""`plegate logits`: the archive it writes holds what another engine computed for the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cli import app
from tests.conftest import FIXTURES
from tests.reference.test_model import BOUND, worst_error


def write_logits(out: Path, tokens: Path, *arguments: str) -> dict[str, np.ndarray]:
    command = ["logits", str(FIXTURES / "tiny-quant.gguf"), "--tokens", str(tokens), "--out", str(out), *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    with np.load(out) as archive:
        return dict(archive)


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("separator", [", ", " "])
def test_logits_equal_another_engine(tmp_path: Path, engine: str, separator: str) -> None:
    with np.load(FIXTURES / "tiny-quant.npz") as archive:
        expected = dict(archive)
    ids = separator.join(str(token) for token in expected["prompt_1"])
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(f"[{ids}]" if separator == ", " else ids)
    found = write_logits(tmp_path / "out.npz", tokens, "--engine", engine, "--generate", "32", "--mode", "mmap")
    assert found["tokens"].tolist() == expected["prompt_1"].tolist()
    assert worst_error(found["logits"], expected["logits_1"]) <= BOUND
    assert found["greedy"].tolist() == expected["greedy_1"].tolist()
    assert np.max(np.abs(found["margin"] - expected["margin_1"])) <= 1e-3


def test_logits_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    out, tokens = tmp_path / "out.npz", tmp_path / "tokens.txt"
    out.write_bytes(b"earlier")
    tokens.write_text("1 2 999999")
    command = ["logits", str(FIXTURES / "tiny.gguf"), "--tokens", str(tokens), "--out", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 2
    assert out.read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "tokens.txt"]
