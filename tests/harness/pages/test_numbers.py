"""Numbers read the same in every command, and none is rounded to what it is not."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pages import numbers

SHOWN = {
    "count": [(0, "0"), (35140, "35,140"), (None, "-")],
    "short": [
        (0, "0"), (0.0123, "0.0123"), (1, "1.00"), (12.34, "12.3"), (99.96, "100"), (789, "789"), (999.6, "1,000"),
        (7890, "7,890"), (9999.6, "10.0k"), (12345, "12.3k"), (999_600, "1.00M"), (4_560_000, "4.56M"),
        (1.2e9, "1.20G"), (5e12, "5,000G"), (-12.34, "-12.3"), (math.inf, "inf"), (math.nan, "nan"), (None, "-"),
    ],
    "byte_size": [
        (0, "0 bytes"), (18, "18 bytes"), (1023, "1,023 bytes"), (1024, "1.00 KiB"), (834 << 20, "834 MiB"),
        (1023 << 20, "1,023 MiB"), ((1 << 30) - 1, "1.00 GiB"),
        (28777 << 20, "28.1 GiB"), (3 << 40, "3.00 TiB"), (None, "-"),
    ],
    "seconds": [
        (0, "0 s"), (1.234e-8, "12.3 ns"), (456e-6, "456 us"), (999.6e-6, "1.00 ms"), (0.00789, "7.89 ms"),
        (0.9996, "1.00 s"), (12.34, "12.3 s"), (119, "119 s"), (270, "4.5 min"), (9000, "2.5 h"), (None, "-"),
    ],
    "percent": [
        (0, "0%"), (0.0001, "<0.1%"), (0.004, "0.4%"), (0.0721, "7.2%"), (0.43, "43%"), (0.9962, "99.6%"),
        (0.99999, ">99.9%"), (1, "100%"), (1.4, "140%"), (None, "-"),
    ],
    "ratio": [(1.234, "1.23"), (0.05, "0.05"), (0.00123, "0.0012"), (0, "0.00"), (593.2, "593.20"), (None, "-")],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), [(kind, *each) for kind in SHOWN for each in SHOWN[kind]])
def test_numbers_are_written_so(kind: str, value: float | None, text: str) -> None:
    assert getattr(numbers, kind)(value) == text


def test_ratios_come_with_their_interval() -> None:
    assert numbers.ratio(1.234, 1.1, 1.4) == "1.23 [1.10..1.40]"
    assert numbers.ratio(1.234, None, None) == "1.23"
    assert numbers.interval(0.98, 1.02) == "[0.98..1.02]"
    assert numbers.interval(None, None) == "-"


def test_exact_sizes_say_both() -> None:
    assert numbers.exact_size(80128 * 18) == "1,442,304 bytes (1.38 MiB)"
    assert numbers.exact_size(18) == "18 bytes"


UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS |= {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}


@given(st.sampled_from(["short", "byte_size", "seconds"]), st.floats(1e-8, 1e14))
def test_what_is_written_is_the_number(kind: str, value: float) -> None:
    """Read back, it is right to half of its last digit; never 0, and no exponent in any size that occurs."""
    value = max(value, 1e-4) if kind == "short" else value
    value = float(round(value) or 1) if kind == "byte_size" else value
    found = re.fullmatch(r"([\d.,]+) ?([A-Za-z]*)", getattr(numbers, kind)(value))
    assert found
    back = float(found[1].replace(",", "")) * UNITS[found[2]]
    assert back == pytest.approx(value, rel=0.03 if found[2] in ("min", "h") else 0.0051)
