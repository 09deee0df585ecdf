"""Goldens as files: read back as they were written, refused when they are not goldens, compared line by line."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from harness.answers.diff import differences
from harness.answers.record import Golden, Probe, dumps, loads, signs
from harness.answers.store import check_not_golden, golden_folder, read_golden
from harness.cases.registry import cases
from model_file.errors import InputError
from tests.harness.answers.examples import golden, with_answer


def schema(name: str) -> dict[str, Any]:
    return json.loads(resources.files("harness.schema").joinpath(f"{name}.json").read_text())


@pytest.mark.parametrize("case", list(cases()))
def test_registered_case_has_a_sound_golden(case: str) -> None:
    """Every case has a golden of its own prompts, valid by the schema, with a reason and with margins that hold."""
    recorded = read_golden(case)
    assert recorded is not None
    jsonschema.validate(json.loads(dumps(recorded)), schema("golden"))
    assert [prompt.ids for prompt in recorded.prompts] == [prompt.ids for prompt in cases()[case].prompts]
    assert all(len(prompt.generated) == cases()[case].generate for prompt in recorded.prompts)
    assert recorded.smallest_margin[0] >= recorded.needed_margin
    assert len(recorded.reason) > 10


def test_goldens_are_of_registered_cases() -> None:
    names = {Path(entry.name).stem for entry in golden_folder().iterdir() if entry.name.endswith(".json")}
    assert names == set(cases())


def test_golden_reads_back_as_written() -> None:
    recorded = golden()
    assert loads(dumps(recorded), "here") == recorded
    for case in cases():
        text = golden_folder().joinpath(f"{case}.json").read_text()
        assert dumps(loads(text, case)) == text


def _without(key: str) -> str:
    content = json.loads(dumps(golden()))
    del content[key]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not a golden"),
        ("[1, 2]", "not a golden"),
        (dumps(golden())[:300], "not a golden"),
        (dumps(golden()).replace("plegate.golden/2", "plegate.golden/1"), "expected 'plegate.golden/2'"),
        (_without("producer"), "not a golden"),
        (_without("prompts"), "not a golden"),
        (dumps(golden()).replace('"margins"', '"margin"'), "not a golden"),
    ],
)
def test_golden_that_is_none_is_refused(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        loads(text, "place.json")


def test_golden_under_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny-quant.json").write_text(dumps(golden("tiny")))
    with pytest.raises(InputError, match="is the golden of case 'tiny', expected 'tiny-quant'"):
        read_golden("tiny-quant", tmp_path)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda g: with_answer(g, (7, 3, 9)), "answer differs from step 1 on: was 8 with a margin of 0.02, is 3"),
        (lambda g: replace(g, model={**g.model, "sha256": "0" * 64}), "model: SHA-256 was"),
        (lambda g: replace(g, chunk=32), "chunk: was 64, is 32"),
        (lambda g: replace(g, prompts=(replace(g.prompts[0], ids=(5, 7)),)), "first difference at 1"),
        (lambda g: replace(g, prompts=(replace(g.prompts[0], row_digests=("0" * 64,)),)), "from chunk 0 on"),
        (
            lambda g: replace(g, prompts=(replace(g.prompts[0], margins=(0.5, 0.03, 0.25)),)),
            "margins: differ by up to 0.01",
        ),
        (lambda g: replace(g, prompts=(replace(g.prompts[0], probes=()),)), "intermediates: 1 and 0"),
        (lambda g: replace(g, prompts=(replace(g.prompts[0], name="other"),)), "prompt only: removed"),
    ],
)
def test_diff_names_what_changed(change: Any, line: str) -> None:
    old: Golden = golden()
    assert any(line in found for found in differences(old, change(old)))
    assert differences(old, replace(old, reason="another", producer={"engine": "fast", "versions": {}})) == []


def test_probe_sees_value_and_norm() -> None:
    rng = np.random.default_rng(7)
    vector = rng.normal(size=512)
    right = Probe.of("x", 0, vector)
    assert right.error(Probe.of("x", 0, vector * (1 + 1e-6))) <= 1e-5
    assert right.error(Probe.of("x", 0, vector * 1.01)) >= 5e-3
    wrong = vector.copy()
    wrong[right.places[3]] += 0.1
    assert right.error(Probe.of("x", 0, wrong)) >= 0.05
    assert not right.error(Probe.of("x", 1, vector)) <= 1e9  # another place is no small error


@pytest.mark.parametrize("size", [64, 512, 4096])
def test_probe_sees_what_is_wrong_between_its_places(size: int) -> None:
    """One value off, all values in other places, a value that is no number: none of them at a place that is kept."""
    rng = np.random.default_rng(size)
    vector = rng.normal(size=size)
    right = Probe.of("x", 0, vector)
    between = np.setdiff1d(np.arange(size), right.places)
    bound = 2e-3
    one = vector.copy()
    one[between[size // 3]] += 1.01 * bound * size**0.5 * np.sqrt(np.mean(vector**2))
    assert right.error(Probe.of("x", 0, one)) >= bound
    turned = vector.copy()
    turned[between] = np.roll(vector[between], 1)
    assert right.error(Probe.of("x", 0, turned)) >= 0.1
    assert right.values == Probe.of("x", 0, turned).values
    broken = vector.copy()
    broken[between[0]] = np.nan
    assert not right.error(Probe.of("x", 0, broken)) <= 1e9
    assert not right.error(replace(right, norm=float("nan"))) <= 1e9
    noise = Probe.of("x", 0, vector + 1e-4 * rng.uniform(-1, 1, size))
    assert right.error(noise) <= 2e-4


def test_signs_are_the_same_everywhere_and_independent() -> None:
    assert signs(16)[0].tolist() == [1, 1, 1, 1, -1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, -1]
    assert np.abs(signs(4096) @ signs(4096).T / 4096 - np.eye(4)).max() <= 5 / 4096**0.5
    assert np.abs(signs(4096).mean(axis=1)).max() <= 5 / 4096**0.5


def test_run_never_writes_into_goldens(tmp_path: Path) -> None:
    check_not_golden(tmp_path)
    for folder in (Path(str(golden_folder())), Path(str(golden_folder())) / "deeper"):
        with pytest.raises(InputError, match="a run never writes into goldens/"):
            check_not_golden(folder)


def test_quick_form_is_the_start_of_the_case() -> None:
    """`--quick` runs fewer prompts and tokens of the same case, compared with the start of the same golden."""
    whole = cases()["nano-texts"]
    short = whole.shortened()
    assert short.prompts == whole.prompts[: len(short.prompts)]
    assert (len(short.prompts), short.generate) == (2, whole.short)
    assert cases()["tiny"].shortened() == cases()["tiny"]


def test_beside_the_main_mode_a_case_is_run_short_or_not_at_all() -> None:
    assert cases()["nano-texts"].form_beside() == cases()["nano-texts"].shortened()
    assert cases()["pico-deep"].form_beside() is None
    assert cases()["tiny"].form_beside() is cases()["tiny"]
