"""Settings whose fields are exactly of their declared types: a string where a bool is expected would always be true."""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def wrong_types(settings: Any) -> list[str]:
    """One line for each field of a dataclass whose value is not of the field's type; True and False are no numbers."""
    declared = get_type_hints(type(settings))
    return [
        f"{field.name} is {value!r}, expected {_words(declared[field.name])}"
        for field in fields(settings)
        if not _is_of(value := getattr(settings, field.name), declared[field.name])
    ]


def _is_of(value: Any, declared: Any) -> bool:
    if get_origin(declared) in (Union, UnionType):
        return any(_is_of(value, kind) for kind in get_args(declared))
    if get_origin(declared) is tuple:
        return isinstance(value, tuple) and all(_is_of(item, get_args(declared)[0]) for item in value)
    if not isinstance(declared, type):  # a callable, an alias: nothing that a text could be mistaken for
        return not isinstance(value, str)
    return isinstance(value, declared) and (declared is bool or not isinstance(value, bool))


def _words(declared: Any) -> str:
    if get_origin(declared) in (Union, UnionType):
        return " or ".join(_words(kind) for kind in get_args(declared))
    if get_origin(declared) is tuple:
        return "a tuple of whole numbers"
    names = {bool: "True or False", int: "a whole number", str: "a text", type(None): "None"}
    return names.get(declared, getattr(declared, "__name__", str(declared)))
