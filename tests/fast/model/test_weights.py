"""Loading: every tensor once, and what is not applied is said once."""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest

from fast.model.weights import load_weights
from harness.cases.case import parse_modes
from harness.cases.registry import case_by_id
from harness.gate import run as gate
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.inventory import UnappliedNotice
from reference.parameters import load_parameters
from tests.fast.engines import find, shared
from tests.gguf_edit import Keys, Tensors, edited


def test_weights_use_every_tensor_once() -> None:
    with open_gguf(find("tiny-quant.gguf")) as model:
        weights = load_weights(model, shared("tiny-quant").config)
        assert len(weights.layers) == shared("tiny-quant").config.layers
        lost = dict(model.tensors)
        del lost["blk.2.ssm_out.weight"]
        model.tensors = lost
        with pytest.raises(InputError, match=r"blk\.2\.ssm_out\.weight"):
            load_weights(model, shared("tiny-quant").config)


@pytest.fixture
def with_bias(tmp_path: Path) -> Path:
    """`tiny` with one more tensor, which no engine applies."""

    def add_bias(_: Keys, tensors: Tensors) -> None:
        layer = next(name.split(".")[1] for name in tensors if name.endswith("attn_q.weight"))
        rows = tensors[f"blk.{layer}.attn_q.weight"][0].shape[0]
        tensors[f"blk.{layer}.attn_q.bias"] = (np.ones(rows, np.float32), gguf.GGMLQuantizationType.F32)

    return edited(find("tiny.gguf"), tmp_path / "bias.gguf", add_bias)


@pytest.mark.parametrize("how", ["reference", "fast", "gate"])
def test_tensors_that_are_not_applied_are_named_once(with_bias: Path, how: str) -> None:
    def load() -> None:
        if how == "gate":
            case = dataclasses.replace(case_by_id("tiny"), generate=0)
            gate.run_gate(with_bias, [case], parse_modes(["mmap"]), gate.GateOptions())
            return
        with open_gguf(with_bias) as model:
            {"reference": load_parameters, "fast": load_weights}[how](model, config_from(model))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load()
        load()
    told = [str(warning.message) for warning in caught if warning.category is UnappliedNotice]
    assert len(told) == 1
    assert re.search(r"bias\.gguf: 1 tensors .* not applied, as in llama\.cpp: blk\.\d+\.attn_q\.bias$", told[0])
