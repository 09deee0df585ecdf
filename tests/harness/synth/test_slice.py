"""A slice of a model: its layers give what they gave in the whole one, and its table is not copied if possible."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fast.rows import locate_table
from harness.cli import app
from harness.engines.protocol import Named
from harness.engines.settings import engine_settings
from harness.engines.table import load_engine
from harness.oracle import HashOracle, PlainReader
from harness.synth.slice import CLONED, COPIED, LINKED, Slice, slice_model
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.tensors import TABLE
from tests.conftest import FIXTURES
from tests.gguf_edit import read, split, write

TINY = FIXTURES / "tiny.gguf"
TOKENS = np.random.default_rng(8).integers(0, 300, 40).tolist()


def cut(source: Path, out: Path, layers: int = 2, **chosen: object) -> Slice:
    with open_gguf(source) as model:
        return slice_model(model, layers, out, **chosen)  # type: ignore[arg-type]


def named(path: Path) -> Named:
    """Every intermediate of the reference."""
    with (
        open_gguf(path) as model,
        load_engine(
            "reference",
            model,
            PlainReader(locate_table(model)),
            engine_settings(64),  # type: ignore[arg-type]
        ) as engine,
    ):
        return engine.new_sequence().record(TOKENS)[1]


def table_apart(source: Path, folder: Path, number: int = 1) -> Path:
    """A split copy of three shards, of which one holds the table and nothing else."""
    import gguf

    keys, tensors = read(source)
    u16, i32 = gguf.GGUFValueType.UINT16, gguf.GGUFValueType.INT32
    rest = {name: tensor for name, tensor in tensors.items() if name != TABLE}
    for place in range(3):
        own = dict(keys) if place == 0 else {"general.architecture": keys["general.architecture"]}
        own |= {"split.no": (place, u16, None), "split.count": (3, u16, None)}
        own["split.tensors.count"] = (len(tensors), i32, None)
        part = {TABLE: tensors[TABLE]} if place == number else rest if place == 3 - number else {}
        write(folder / f"whole-{place + 1:05d}-of-00003.gguf", own, part)
    return folder / "whole-00001-of-00003.gguf"


@pytest.mark.parametrize("layers", [2, 3])
def test_the_layers_give_what_they_gave(tmp_path: Path, layers: int) -> None:
    before = TINY.stat().st_mtime_ns, TINY.read_bytes()
    made = cut(TINY, tmp_path / "cut.gguf", layers)
    assert [path.name for path in made.paths] == ["cut-00001-of-00002.gguf", "cut-00002-of-00002.gguf"]
    whole, part = named(TINY), named(made.paths[0])
    inside = [name for name in whole if name.startswith("blk.") and int(name.split(".")[1]) < layers]
    assert len(inside) >= 3 * layers and not [name for name in part if name.startswith(f"blk.{layers}.")]
    for name in inside:
        np.testing.assert_array_equal(part[name], whole[name], err_msg=name)
    assert (TINY.stat().st_mtime_ns, TINY.read_bytes()) == before
    with open_gguf(made.paths[1]) as model, open_gguf(TINY) as source:
        assert model.packed(TABLE).tobytes() == source.packed(TABLE).tobytes()
        assert list(model.tensors)[-1] == TABLE and len(list(tmp_path.iterdir())) == 2


def test_a_table_with_a_shard_to_itself_is_linked(tmp_path: Path) -> None:
    whole = table_apart(TINY, tmp_path)
    made = cut(whole, tmp_path / "cut")
    assert made.table == LINKED and [path.name for path in made.paths][1] == "cut-00002-of-00003.gguf"
    assert made.paths[1].samefile(tmp_path / "whole-00002-of-00003.gguf")
    np.testing.assert_array_equal(named(made.paths[0])["blk.1.ple"], named(TINY)["blk.1.ple"])


def test_without_links_the_table_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table_apart(TINY, tmp_path)
    monkeypatch.setattr("harness.synth.slice._linked", lambda *_: False)
    made = cut(whole, tmp_path / "cut")
    assert made.table in (COPIED, CLONED) and not made.paths[1].samefile(tmp_path / "whole-00002-of-00003.gguf")
    np.testing.assert_array_equal(named(made.paths[0])["blk.1.ple"], named(TINY)["blk.1.ple"])


def test_split_models_whose_table_shares_a_shard_are_copied(tmp_path: Path) -> None:
    made = cut(split(TINY, tmp_path, "whole", 3)[2], tmp_path / "cut")
    assert made.table in (COPIED, CLONED) and len(made.paths) == 2
    np.testing.assert_array_equal(named(made.paths[0])["blk.1.streams"], named(TINY)["blk.1.streams"])


def test_fewer_rows_are_the_first_of_every_head(tmp_path: Path) -> None:
    made = cut(TINY, tmp_path / "cut", table_rows=1000)
    with open_gguf(TINY) as source, open_gguf(made.paths[0]) as model:
        before, after = HashOracle(source), HashOracle(model)
        table, whole = model.packed(TABLE), source.packed(TABLE)
    assert made.table == COPIED and len(table) == sum(after.sizes) <= 1000 < sum(before.sizes)
    for head, size in enumerate(after.sizes):
        mine, right = table[after.offsets[head] :][:size], whole[before.offsets[head] :][:size]
        assert mine.tobytes() == right.tobytes()
    assert np.isfinite(named(made.paths[0])["blk.1.ple"]).all()


@pytest.mark.parametrize(
    ("layers", "chosen", "said"),
    [
        (1, {}, "its PLE layer is number 1, counted from 0: expected 2 to 4"),
        (9, {}, "has 4 layers"),
        (2, {"table_rows": 3}, "--table-rows 3: "),
        (2, {"table_rows": 1 << 40}, "--table-rows"),
    ],
)
def test_what_cannot_be_cut_is_said(tmp_path: Path, layers: int, chosen: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cut(TINY, tmp_path / "cut", layers, **chosen)
    assert not list(tmp_path.iterdir())


def test_shards_that_are_there_stay(tmp_path: Path) -> None:
    made = cut(TINY, tmp_path / "cut")
    before = [path.stat().st_ino for path in made.paths]
    with pytest.raises(InputError, match="exists already, nothing was written; add --force"):
        cut(TINY, tmp_path / "cut")
    assert [path.stat().st_ino for path in made.paths] == before
    assert cut(TINY, tmp_path / "cut", 3, force=True).layers == 3


def test_what_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise InputError("no space")

    whole = table_apart(TINY, tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("harness.synth.slice.write_gguf", full)
    with pytest.raises(InputError, match="no space"):
        cut(whole, tmp_path / "cut")
    assert sorted(tmp_path.iterdir()) == before


def test_the_command(tmp_path: Path) -> None:
    words = ["slice", str(TINY), "--layers", "2", "--out", str(tmp_path / "cut.gguf"), "--json", str(tmp_path / "j")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    facts = json.loads((tmp_path / "j").read_text())
    assert facts["layers"] == 2 and facts["paths"][0].endswith("cut-00001-of-00002.gguf") and facts["table"] == COPIED
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2 and "exists already" in " ".join(again.output.split())
