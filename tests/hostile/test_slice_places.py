"""A slice beside its model: blocks are shared where the file system can, and across two of them rows are copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.synth.slice import CLONED, COPIED, slice_model
from model_file.gguf_file import open_gguf
from model_file.tensors import TABLE
from tests.conftest import FIXTURES
from tests.hostile.test_places import mounted  # noqa: F401  a fixture

pytestmark = pytest.mark.hostile


@pytest.fixture(autouse=True)
def small_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.synth.gguf_writer._FREE_MARGIN_BYTES", 1 << 20)


@pytest.mark.parametrize(
    ("mounted", "how"), [("btrfs", CLONED), ("xfs", CLONED), ("ext4", COPIED)], indirect=["mounted"]
)
def test_the_table_shares_its_blocks(mounted: Path, how: str) -> None:  # noqa: F811
    whole = Path(shutil.copy(FIXTURES / "tiny.gguf", mounted))
    with open_gguf(whole) as model:
        made = slice_model(model, 2, mounted / "cut")
        with open_gguf(made.paths[0]) as part:
            assert part.packed(TABLE).tobytes() == model.packed(TABLE).tobytes()
            assert [tensor.type for tensor in part.tensors.values()] == [
                model.tensors[name].type for name in part.tensors
            ]
    assert made.table == how


@pytest.mark.parametrize("mounted", ["xfs"], indirect=True)
def test_another_file_system_gets_a_copy(mounted: Path) -> None:  # noqa: F811
    with open_gguf(FIXTURES / "tiny.gguf") as model:
        made = slice_model(model, 2, mounted / "cut")
        with open_gguf(made.paths[0]) as part:
            assert made.table == COPIED and part.packed(TABLE).tobytes() == model.packed(TABLE).tobytes()
