"""Where goldens are kept: shipped as the data package `goldens`, changed only by `plegate golden promote`."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from harness.answers.record import Golden, loads
from model_file.errors import InputError

CHECKOUT = Path(__file__).parents[2]
CANDIDATES = Path("candidates")


def golden_folder() -> Traversable:
    """The folder of recorded goldens, of a checkout or of an installed wheel."""
    own = CHECKOUT / "goldens"
    return own if own.is_dir() else resources.files("goldens")


def how_to_make(case: str) -> str:
    """The commands that record and promote a golden."""
    return f'make it with `plegate golden record {case}`, then `plegate golden promote {case} --reason "..."`'


def read_golden(case: str, folder: Path | Traversable | None = None) -> Golden | None:
    """The golden of a case, None where there is none. Raises: InputError for a file that is not one, or another's."""
    place = (folder if folder is not None else golden_folder()).joinpath(f"{case}.json")
    if not place.is_file():
        return None
    golden = loads(place.read_text(encoding="utf-8"), str(place))
    if golden.case != case:
        raise InputError(
            f"{place}: is the golden of case {golden.case!r}, expected {case!r}: copied under another name?"
        )
    return golden


def candidate_path(case: str, folder: Path | None = None) -> Path:
    """Where `record` writes and `promote` reads."""
    return (folder or CANDIDATES) / f"{case}.json"


def check_not_golden(folder: Path) -> None:
    """Raises: InputError when a run would write into the goldens."""
    if (CHECKOUT / "goldens").resolve() in (folder.resolve(), *folder.resolve().parents):
        raise InputError(
            f"{folder}: a run never writes into goldens/, expected another folder: only `plegate golden promote` "
            "changes it"
        )
