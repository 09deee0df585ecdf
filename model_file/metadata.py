"""The metadata of a GGUF file: values decoded when they are asked for, and one strict reader of them.

A value of the wrong stored type is a problem and never converted: True is not 1, and "4" is not 4.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType

from model_file.errors import InputError
from model_file.gguf_scan import SCALARS, Value

MOST = 1 << 24
"""The largest count that is accepted: 64 times the longest context. A damaged count must not fill the memory."""


class Metadata:
    """The metadata of a file as a read-only mapping; values are decoded when asked for.

    Numeric arrays come as NumPy arrays, string arrays as lists of str, everything else as Python scalars.
    """

    def __init__(self, path: Path, data: mmap.mmap, values: dict[str, Value]) -> None:
        self.path, self._data, self._values = path, data, values

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> list[str]:
        """All keys, in file order."""
        return list(self._values)

    def type_of(self, key: str) -> tuple[GGUFValueType, GGUFValueType | None]:
        """The stored type, and the element type of an array. Raises KeyError."""
        value = self._values[key]
        return value.kind, value.element

    def count_of(self, key: str) -> int:
        """How many elements an array has, without decoding it; 1 for a scalar. Raises KeyError."""
        return self._values[key].count

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where the key is absent."""
        return self[key] if key in self._values else default

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if value.element is None:
            if value.kind is GGUFValueType.STRING:
                return self._strings(key, value.start, 1)[0]
            return struct.unpack_from(SCALARS[value.kind], self._data, value.start)[0]
        if value.element is GGUFValueType.STRING:
            return self._strings(key, value.start, value.count)
        return np.frombuffer(self._data, np.dtype(SCALARS[value.element]), value.count, value.start).copy()

    def _strings(self, key: str, start: int, count: int) -> list[str]:
        strings = []
        for index in range(count):
            (size,) = struct.unpack_from("<Q", self._data, start)
            raw = self._data[start + 8 : start + 8 + size]
            try:
                strings.append(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{self.path}: metadata {key!r}, string {index} at byte {start + 8}: not UTF-8 ({error.reason}); "
                    "expected text: the file is damaged, fetch or convert it again"
                ) from None
            start += 8 + size
        return strings


class Keys:
    """Typed values of one file's metadata, for keys that begin with `prefix`.

    What is wrong is kept in `problems`, one line each, and a stand-in value lets reading go on; `sound` says whether
    values can be compared with each other, so that no stand-in is reported as if the file said it.
    """

    def __init__(self, metadata: Metadata, prefix: str = "") -> None:
        self.metadata, self.prefix, self.problems = metadata, prefix, list[str]()
        self._unsound: set[str] = set()

    def problem(self, key: str, found: object, expected: str) -> None:
        """Note what is wrong with the value of a key."""
        self._unsound.add(key)
        self.problems.append(f"{self.metadata.path}: {self.prefix}{key}: found {found}, expected {expected}")

    def sound(self, *keys: str) -> bool:
        """Whether nothing is wrong with any of these so far."""
        return self._unsound.isdisjoint(keys)

    def raise_problems(self) -> None:
        """Raises: InputError with every problem so far."""
        if self.problems:
            raise InputError("\n".join(self.problems))

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self.prefix + key in self.metadata

    def integer(self, key: str, low: int = 1, default: int | None = None, high: int = MOST) -> int:
        """A whole number, stored as one."""
        value = self._raw(key, default)
        if value is not None and (type(value) is not int or not low <= value <= high):
            self.problem(key, shortened(value), f"a whole number of at least {low} and at most {high}")
        return value if type(value) is int and self.sound(key) else max(low, 1)

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number of at least 0."""
        value = self._raw(key, default)
        if value is not None and (type(value) not in (int, float) or not isfinite(value) or value < 0):
            self.problem(key, shortened(value), "a finite number of at least 0")
        return float(value) if value is not None and self.sound(key) else 1.0

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._raw(key, default)
        if value is not None and not isinstance(value, str):
            self.problem(key, shortened(value), "a text")
        return value if isinstance(value, str) else ""

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """An array of whole numbers."""
        return self._array(key, "iu", "an array of whole numbers", default)

    def flags(self, key: str, default: tuple[bool, ...] | None = None) -> tuple[bool, ...]:
        """An array of yes and no, stored as BOOL or as 1 and 0."""
        values = self._array(key, "iub", "an array of flags", default)
        if not {0, 1} >= {*values}:
            self.problem(key, shortened(list(values)), "flags, each 0 or 1")
        return tuple(bool(value) for value in values)

    def uint64s(self, key: str, count: int | None) -> tuple[int, ...]:
        """As `integers`, stored in 64 bits without a sign; exactly so many, where it is known how many."""
        values = self.integers(key)
        if self.sound(key):
            element = self.metadata.type_of(self.prefix + key)[1]
            if element is not GGUFValueType.UINT64:
                stored = element.name if element else "a scalar"
                self.problem(key, f"elements of {stored}", "UINT64: 32 bits cut the hash constants, convert again")
            if count not in (None, len(values)):
                self.problem(key, f"{len(values)} values", f"{count}")
        return values

    def _array(self, key: str, kinds: str, expected: str, default: tuple[Any, ...] | None) -> tuple[Any, ...]:
        value = self._raw(key, default)
        if isinstance(value, np.ndarray) and value.dtype.kind in kinds:
            return tuple(value.tolist())
        if value is not None and not isinstance(value, tuple):
            self.problem(key, shortened(value), expected)
        return value if isinstance(value, tuple) else ()

    def _raw(self, key: str, default: Any) -> Any:
        if self.has(key):
            return self.metadata[self.prefix + key]
        if default is None:
            self.problem(key, "no such key", "the key: convert the model again with a current converter")
        return default


def shortened(value: object) -> str:
    """A value as it is shown in an error."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
