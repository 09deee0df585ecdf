"""Numbers that people write, on the command line and in files: read strictly, in one place.

Python itself takes `1_0`, `+1`, ` 1 `, digits of any script, `nan` and numbers of any size for numbers. Here a number
is ASCII digits within limits, or an error that names what was found and expected.
"""

from __future__ import annotations

import re
from math import inf

from model_file.errors import InputError

LARGEST = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,40}")
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([kmgt]?)(i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(s|min|m|h)", re.ASCII)
_UNITS_S = {"s": 1, "min": 60, "m": 60, "h": 3600}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def whole_number(text: str, place: str = "", least: int = -LARGEST, most: int = LARGEST) -> int:
    """A whole number within limits. place: what the error begins with. Raises: InputError."""
    if _WHOLE.fullmatch(text) is None or not least <= (value := int(text)) <= most:
        raise _refused(text, place, f"a whole number{_within(least, most, LARGEST)}")
    return value


def decimal_number(text: str, place: str = "", least: float = -inf, most: float = inf) -> float:
    """A finite number within limits. place: what the error begins with. Raises: InputError."""
    if _DECIMAL.fullmatch(text) is None or not least <= (value := float(text)) <= most or abs(value) == inf:
        raise _refused(text, place, f"a number such as 1.5{_within(least, most, inf)}")
    return value


def byte_count(text: str, place: str = "", most: int = LARGEST) -> int:
    """A size such as 1024, 4KiB, 512M or 1.5g, in bytes; all units are binary. Raises: InputError."""
    match = _SIZE.fullmatch(text)
    if match is None or not 1 <= (size_bytes := int(float(match[1]) * _UNITS[match[2].lower()])) <= most:
        raise _refused(text, place, "a number of bytes, 1 or more, or a size such as 512MiB or 4GiB")
    return size_bytes


def duration_s(text: str, option: str) -> float:
    """A time such as 90s, 10min or 2h, in seconds. Raises: InputError."""
    match = _DURATION.fullmatch(text)
    if match is None or not 1 <= (seconds := float(match[1]) * _UNITS_S[match[2]]) <= 30 * 24 * 3600:
        raise InputError(f"{option} {text}: expected a time from 1s to 720h, such as 90s, 10min or 2h")
    return seconds


def _refused(text: str, place: str, expected: str) -> InputError:
    shown = repr(text) if len(text) <= 60 else f"{text[:60]!r}... ({len(text)} characters)"
    return InputError(f"{place}{': ' if place else ''}found {shown}, expected {expected}")


def _within(least: float, most: float, largest: float) -> str:
    if most < largest:
        return f" from {least} to {most}" if least > -largest else f" of at most {most}"
    return f" of at least {least}" if least > -largest else ""
