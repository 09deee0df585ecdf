"""Where the model of a case is: made on first use, a fixture of the source tree, or one with a tensor changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.atomic import write_bytes
from harness.errors import CannotRun
from harness.synth import cache_folder, ensure_model
from harness.synth.making import file_sha256
from model_file.gguf_file import open_gguf

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"
TIED = "blk.3.indexer.q_proj.weight"
"""Zeros in place of this make every block score exactly 0, on every machine: the tie rule alone decides."""


def model_path(name: str, cache_dir: Path | None = None, report: Callable[[str], None] = lambda _: None) -> Path:
    """The file of a case's model.

    Raises: CannotRun for a fixture where there is no source tree; InputError when a made model cannot be kept.
    """
    if name == "tiny-ties":
        return _tied_copy(_fixture("tiny"), cache_folder(cache_dir))
    if name.startswith("tiny"):
        return _fixture(name)
    return ensure_model(name, cache_dir, report)


def model_digest(path: Path) -> str:
    """SHA-256 of a model's file."""
    return file_sha256(path)


def provenance(name: str) -> dict[str, object]:
    """What a golden says of its model beside the digest: where it comes from, so that anybody can make it again."""
    if name == "tiny-ties":
        return {"name": name, "made": f"tiny.gguf with zeros in {TIED}"}
    if name.startswith("tiny"):
        return {"name": name, "made": f"tests/fixtures/{name}.gguf"}
    from harness.synth.keys import RECIPE_VERSION
    from harness.synth.recipe import make_recipe

    recipe = make_recipe(name)
    return {"name": name, "made": f"plegate synth {name}", "seed": recipe.seed, "recipe_version": RECIPE_VERSION}


def _fixture(name: str) -> Path:
    path = FIXTURES / f"{name}.gguf"
    if not path.is_file():
        raise CannotRun(
            f"{path}: this case's model is part of the source tree and is not there: run it from a checkout"
        )
    return path


def _tied_copy(original: Path, folder: Path) -> Path:
    """A copy of the fixture with the tied tensor zeroed, kept in the cache folder and checked byte for byte."""
    with open_gguf(original) as model:
        info = model.tensors[TIED]
    content = bytearray(original.read_bytes())
    content[info.offset_bytes : info.offset_bytes + info.size_bytes] = bytes(info.size_bytes)
    path = folder / "tiny-ties.gguf"
    if not path.is_file() or path.read_bytes() != content:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, bytes(content), over_model=True)
    return path
