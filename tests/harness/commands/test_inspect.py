"""`plegate inspect`: the right facts, from headers alone, at any size."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cli import app
from tests import gguf_edit
from tests.conftest import FIXTURES


def inspected(path: Path, out: Path) -> tuple[int, dict]:
    result = CliRunner().invoke(app, ["inspect", str(path), "--json", str(out)])
    return result.exit_code, json.loads(out.read_text())


def test_inspect_tells_the_table_and_the_hash(tmp_path: Path) -> None:
    code, facts = inspected(FIXTURES / "tiny-quant.gguf", tmp_path / "facts.json")
    assert code == 0
    assert facts["problems"] == []
    expected = {
        "architecture": "qwen4exp",
        "table_type": "IQ4_NL",
        "table_rows": 80128,
        "row_width": 32,
        "row_bytes": 18,
        "table_bytes": 80128 * 18,
        "table_offset": 1466912,
        "rows_per_token": 4,
        "row_ids_below": 60055 + 20029,
        "memory_for_weights_in_f32_bytes": 7366208,
        "memory_for_packed_weights_bytes": 3354176,
        "experts_read_when_chosen_bytes": 835584,
    }
    assert {name: facts[name] for name in expected} == expected
    assert facts["hash_rule"].startswith("multipliers follow the rule for seed 1234; sizes are consecutive primes")


def test_inspect_says_when_the_hash_follows_no_rule(tmp_path: Path) -> None:
    def change(keys: gguf_edit.Keys, _: gguf_edit.Tensors) -> None:
        key = "qwen4exp.ple.layer_multipliers"
        keys[key] = ([3, 5, 7], *keys[key][1:])

    path = gguf_edit.edited(FIXTURES / "tiny.gguf", tmp_path / "other.gguf", change)
    assert inspected(path, tmp_path / "facts.json")[1]["hash_rule"].startswith("multipliers do not follow the rule")


def test_inspect_lists_every_problem_at_once(tmp_path: Path) -> None:
    def change(_: gguf_edit.Keys, tensors: gguf_edit.Tensors) -> None:
        del tensors["blk.0.ssm_a"], tensors["blk.1.ple_key.weight"]
        tensors["surplus"] = (np.zeros(3, np.float32), gguf.GGMLQuantizationType.F32)

    path = gguf_edit.edited(FIXTURES / "tiny.gguf", tmp_path / "bad.gguf", change)
    code, facts = inspected(path, tmp_path / "facts.json")
    assert code == 2
    named = [problem.split("'")[1] for problem in facts["problems"]]
    assert named == ["blk.0.ssm_a", "blk.1.ple_key.weight", "surplus"]


def test_inspect_takes_other_architectures_with_a_table(tmp_path: Path) -> None:
    table = (np.zeros((100, 256), np.float32), gguf.GGMLQuantizationType.F32)
    keys: gguf_edit.Keys = {"general.architecture": ("gemma3n", gguf.GGUFValueType.STRING, None)}
    path = gguf_edit.write(tmp_path / "gemma.gguf", keys, {"per_layer_token_embd.weight": table})
    code, facts = inspected(path, tmp_path / "facts.json")
    assert (code, facts["table_rows"], facts["problems"]) == (0, 100, [])
    assert "only the table can be checked" in facts["model"]


def test_inspect_takes_a_table_alone(tmp_path: Path) -> None:
    def change(_: gguf_edit.Keys, tensors: gguf_edit.Tensors) -> None:
        for name in [name for name in tensors if name != "per_layer_token_embd.weight"]:
            del tensors[name]

    path = gguf_edit.edited(FIXTURES / "tiny.gguf", tmp_path / "table.gguf", change)
    code, facts = inspected(path, tmp_path / "facts.json")
    assert (code, facts["problems"], facts["rows_per_token"]) == (0, [], 4)
    assert "the table alone" in facts["model"]


def test_inspect_reads_no_tensor_data(tmp_path: Path) -> None:
    """On a sparse file of 64 GiB it takes no longer than on a small one: the header is all it reads."""
    small, large = tmp_path / "small.gguf", tmp_path / "large.gguf"
    keys: gguf_edit.Keys = {"general.architecture": ("gemma4", gguf.GGUFValueType.STRING, None)}
    table = (np.zeros((1024, 256), np.float32), gguf.GGMLQuantizationType.F32)
    gguf_edit.write(small, keys, {"per_layer_token_embd.weight": table})
    rows = 64 * 2**30 // 1024
    content = small.read_bytes().replace((1024).to_bytes(8, "little"), rows.to_bytes(8, "little"))
    large.write_bytes(content)
    try:
        os.truncate(large, 65 * 2**30)
    except OSError as error:
        pytest.skip(f"no sparse file of 65 GiB here: {error}")
    seconds = []
    for path in (small, large):
        start = time.perf_counter()
        code, facts = inspected(path, tmp_path / "facts.json")
        seconds.append(time.perf_counter() - start)
        assert code == 0
    assert facts["table_rows"] == rows
    assert seconds[1] <= 10 * seconds[0]  # reading 64 GiB would take a thousand times as long
