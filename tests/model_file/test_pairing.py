"""Draft heads: inside the file, in a file of their own, or none; and which model they go with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.model.weights import load_draft_head, load_weights
from fast.rows import locate_table, open_rows
from harness.cli import app
from harness.synth import Head, make_model, make_recipe
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.pairing import with_draft_head
from reference.parameters import load_draft_head as load_reference_head
from tests import gguf_edit

ROWS = 2000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Head, Path]:
    """One small model in every layout."""
    folder = tmp_path_factory.mktemp("heads")
    paths = {head: folder / f"{head}.gguf" for head in Head}
    for head, path in paths.items():
        make_model(make_recipe("pico", rows=ROWS, head=head), path)
    return paths


def test_layouts_hold_the_same_tensors(made: dict[Head, Path]) -> None:
    of = {head: gguf_edit.read(path)[1] for head, path in made.items()}
    block = {name for name in of[Head.inside] if name.startswith("blk.3.")}
    assert {*of[Head.inside]} == {*of[Head.none]} | block and len(block) > 30
    assert {*of[Head.alone]} == {"token_embd.weight", "output.weight"} | block
    for head in (Head.none, Head.alone):
        for name, (data, kind) in of[head].items():
            assert kind == of[Head.inside][name][1] and data.tobytes() == of[Head.inside][name][0].tobytes(), name


def test_a_head_is_the_same_from_either_file(made: dict[Head, Path]) -> None:
    with open_gguf(made[Head.none]) as bare, open_gguf(made[Head.inside]) as whole, open_gguf(made[Head.alone]) as side:
        config = with_draft_head(config_from(bare), bare, side)
        assert config == replace(config_from(whole), name=config.name)
        assert with_draft_head(config_from(whole), whole, whole) == config_from(whole)
        ours, theirs = load_draft_head(side, config), load_draft_head(whole, config)
        for own, other in zip(*map(jax.tree_util.tree_leaves, (ours, theirs)), strict=True):
            assert (own == other).all()
        head = load_reference_head(side, config)
        assert head is not None and (head.eh_proj[:, : config.width] == ours.from_token.T).all()
        assert load_weights(whole, config).draft is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"width": 384, "ple": {"row_width": 64}}, "width: found 384, expected 192"),
        ({"streams": 4}, "streams: found 4, expected 2"),
        ({"vocab": 1024}, "vocab: found 1024, expected 512"),
        ({"linear_layers": (True,) * 3 + (False,), "compress_ratios": (0, 0, 0, 3)}, "linear_layers: found"),
    ],
)
def test_a_head_of_another_model_is_refused_by_name(
    made: dict[Head, Path], tmp_path: Path, changed: dict[str, Any], expected: str
) -> None:
    recipe = make_recipe("pico", rows=ROWS, head=Head.alone)
    own = recipe.preset.config
    fields = {name: replace(own.ple, **value) if name == "ple" else value for name, value in changed.items()}
    other = replace(recipe, preset=replace(recipe.preset, config=replace(own, **fields)))
    make_model(other, tmp_path / "other.gguf")
    with open_gguf(made[Head.none]) as model, open_rows(locate_table(model), "mmap") as reader:
        settings = EngineSettings(context=64, chunk=16, draft=2, mtp=str(tmp_path / "other.gguf"))
        with pytest.raises(InputError, match=expected) as error:
            FastEngine(model, reader, settings)
    assert "other.gguf" in str(error.value) and "none.gguf has it" in str(error.value)


@pytest.mark.parametrize("beside", [False, True])
def test_a_file_without_a_head_is_refused(made: dict[Head, Path], beside: bool) -> None:
    with open_gguf(made[Head.none]) as model, open_rows(locate_table(model), "mmap") as reader:
        settings = EngineSettings(context=64, chunk=16, draft=2, mtp=str(made[Head.none]) if beside else None)
        with pytest.raises(InputError, match=r"holds no MTP head \(blk\.3\.nextn\.\*\)"):
            FastEngine(model, reader, settings)


def test_a_head_alone_is_no_model(made: dict[Head, Path]) -> None:
    with open_gguf(made[Head.alone]) as side, pytest.raises(InputError, match="holds the MTP head alone"):
        load_weights(side, config_from(side))


def missing(keys: gguf_edit.Keys, tensors: gguf_edit.Tensors) -> None:
    del keys, tensors["blk.3.nextn.eh_proj.weight"]


def short(keys: gguf_edit.Keys, tensors: gguf_edit.Tensors) -> None:
    del keys
    data, kind = tensors["blk.3.nextn.enorm.weight"]
    tensors["blk.3.nextn.enorm.weight"] = (data[:-1], kind)


@pytest.mark.parametrize("head", [Head.inside, Head.alone])
@pytest.mark.parametrize(("change", "expected"), [(missing, "is missing"), (short, "found shape (191,)")])
def test_inspect_checks_the_head_wherever_it_is(
    made: dict[Head, Path], tmp_path: Path, head: Head, change: Callable[..., None], expected: str
) -> None:
    assert inspected(made[head], tmp_path)["problems"] == []
    problems = inspected(gguf_edit.edited(made[head], tmp_path / "bad.gguf", change), tmp_path)["problems"]
    assert len(problems) == 1 and "blk.3.nextn." in problems[0] and expected in problems[0]


def inspected(path: Path, folder: Path) -> dict[str, Any]:
    CliRunner().invoke(app, ["inspect", str(path), "--json", str(folder / "facts.json")])
    return json.loads((folder / "facts.json").read_text())


def test_inspect_says_what_a_head_alone_is_for(made: dict[Head, Path], tmp_path: Path) -> None:
    facts = inspected(made[Head.alone], tmp_path)
    assert facts["model"] == "the MTP head alone: `--mtp FILE` beside the model that it belongs to"
    assert facts["draft_head"] == "32 tensors of the MTP block 3"
