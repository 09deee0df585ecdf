"""Settings are of their declared types, whatever the field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from model_file.settings_types import wrong_types


@dataclass
class Settings:
    count: Any = 1
    sizes: Any = None
    folder: Any = None
    on: Any = True
    name: Any = "a"


Settings.__annotations__ = {
    "count": int,
    "sizes": tuple[int, ...] | None,
    "folder": Path | None,
    "on": bool,
    "name": str,
}


def test_right_types_pass() -> None:
    assert wrong_types(Settings()) == []
    assert wrong_types(Settings(7, (1, 2), Path("x"), False, "")) == []


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"on": "never"}, "on is 'never', expected True or False"),
        ({"on": 0}, "on is 0, expected True or False"),
        ({"count": True}, "count is True, expected a whole number"),
        ({"count": 1.0}, "count is 1.0, expected a whole number"),
        ({"sizes": [1]}, "sizes is [1], expected a tuple of whole numbers or None"),
        ({"sizes": (1, "2")}, "sizes is (1, '2'), expected a tuple of whole numbers or None"),
        ({"folder": "x"}, "folder is 'x', expected Path or None"),
        ({"name": None}, "name is None, expected a text"),
    ],
)
def test_wrong_types_are_named(choice: dict[str, Any], message: str) -> None:
    assert wrong_types(Settings(**choice)) == [message]
