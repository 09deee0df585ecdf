"""How every command writes its numbers: one function for each kind. What was not measured is `-`, never an empty cell.

All of them take None for "not measured". No function rounds a number to something that it is not: a share that is not
all of it is never 100%, a time above 0 never 0.
"""

from __future__ import annotations

from math import isfinite

ABSENT = "-"


def count(value: float | None) -> str:
    """A whole number with its thousands apart: 35,140."""
    return ABSENT if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """A number with three digits that count, or four without a unit: 0.0123, 12.3, 456, 7,890, 12.3k, 4.56M, 1.20G."""
    if value is None:
        return ABSENT
    size = abs(value)
    if not isfinite(value) or size < 999.5:
        return _three(value)
    if size < 9999.5:
        return f"{value:,.0f}"
    factor, unit = next(
        (factor, unit) for factor, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")) if size < 999.5 * factor or unit == "G"
    )
    return f"{_three(value / factor)}{unit}"


def byte_size(size_bytes: float | None) -> str:
    """A size in binary units: 18 bytes, 4.00 KiB, 834 MiB, 26.8 GiB."""
    if size_bytes is None:
        return ABSENT
    if abs(size_bytes) < 1024:
        return f"{size_bytes:,.0f} bytes"
    power, unit = next(
        (power, unit)
        for power, unit in ((10, "KiB"), (20, "MiB"), (30, "GiB"), (40, "TiB"))
        if abs(size_bytes) < 1023.5 * 2.0**power or unit == "TiB"
    )
    return f"{_three(size_bytes / 2.0**power)} {unit}"


def exact_size(size_bytes: int) -> str:
    """A size to the byte, and what that is in a unit: 1,442,304 bytes (1.38 MiB)."""
    return f"{size_bytes:,} bytes" + (f" ({byte_size(size_bytes)})" if size_bytes >= 1024 else "")


def seconds(time_s: float | None) -> str:
    """A time: 12.3 ns, 456 us, 7.89 ms, 12.3 s, 4.5 min, 2.5 h."""
    if time_s is None:
        return ABSENT
    size = abs(time_s)
    if size >= 7200:
        return f"{time_s / 3600:,.1f} h"
    if size >= 119.5:
        return f"{time_s / 60:.1f} min"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if size >= 0.9995 * factor:
            return f"{_three(time_s / factor)} {unit}"
    return f"{_three(time_s * 1e9)} ns" if size else "0 s"


def percent(share: float | None) -> str:
    """A share of 1 in percent: 0.4%, 7.2%, 43%, 100% for all of it and nothing less."""
    if share is None:
        return ABSENT
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    digits = 1 if 0 < abs(share) < 0.0995 or 0.995 <= share < 1 else 0
    return f"{share:.{digits}%}"


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """How many times, with its interval where there is one: 1.23, 1.23 [1.10..1.40]."""
    if value is None:
        return ABSENT
    shown = f"{value:.2f}" if value >= 0.095 or not value else f"{value:.2g}"
    return shown if low is None or high is None else f"{shown} {interval(low, high)}"


def interval(low: float | None, high: float | None) -> str:
    """An interval of ratios: [1.10..1.40]."""
    return ABSENT if low is None or high is None else f"[{ratio(low)}..{ratio(high)}]"


def _three(value: float) -> str:
    """Three digits that count; an exponent only below 0.0001."""
    if not isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    digits = 1 if size >= 9.995 else 2 if size >= 0.9995 or not size else None
    return f"{value:.3g}" if digits is None else f"{value:.{digits}f}" if size else "0"
