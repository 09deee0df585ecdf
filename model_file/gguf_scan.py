"""A cursor over a GGUF header: every length is checked against the bytes that are there before it is used."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGUFValueType

from model_file.errors import InputError

SCALARS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True)
class Value:
    """Where a metadata value lies: `element` is the type of an array's elements, None for a scalar."""

    kind: GGUFValueType
    element: GGUFValueType | None
    start: int
    count: int


class Scanner:
    """A cursor over a header. Every step checks that the bytes are there before they are used."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def fail(self, found: str, expected: str, place: str) -> InputError:
        return InputError(f"{self.path}: {place} at byte {self.at}: found {found}, expected {expected}")

    def need(self, count: int, place: str) -> None:
        if count > self.size - self.at:
            raise self.fail(
                f"{self.size - self.at} bytes left of {self.size}",
                f"{count} more: truncated download? compare the file's size with the publisher's",
                place,
            )

    def number(self, layout: str, place: str) -> Any:
        self.need(struct.calcsize(layout), place)
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def string(self, place: str) -> str:
        size = self.number("<Q", place)
        self.need(size, place)
        raw = self.data[self.at : self.at + size]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(repr(raw[:40]), "a name in UTF-8: the file is damaged, fetch it again", place) from None
        self.at += size
        return text

    def kind(self, place: str) -> GGUFValueType:
        value = self.number("<I", place)
        try:
            return GGUFValueType(value)
        except ValueError:
            raise self.fail(f"value type {value}", "0 to 12: the header is damaged", place) from None

    def value(self, key: str) -> Value:
        place = f"metadata {key!r}"
        kind = self.kind(place)
        if kind is not GGUFValueType.ARRAY:
            start = self.at
            if kind is GGUFValueType.STRING:
                self.skip_strings(1, place)
            else:
                self.skip(struct.calcsize(SCALARS[kind]), place)
            return Value(kind, None, start, 1)
        element = self.kind(place)
        count = self.number("<Q", place)
        start = self.at
        if element is GGUFValueType.ARRAY:
            raise self.fail("an array of arrays", "an array of numbers, flags or strings", place)
        if element is GGUFValueType.STRING:
            self.skip_strings(count, place)
        else:
            self.skip(count * struct.calcsize(SCALARS[element]), place)
        return Value(kind, element, start, count)

    def skip(self, count: int, place: str) -> None:
        self.need(count, place)
        self.at += count

    def skip_strings(self, count: int, place: str) -> None:
        self.need(8 * count, place)  # bounds the loop before it starts
        at, size, data, unpack = self.at, self.size, self.data, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                break
            at += 8 + unpack(data, at)[0]
        else:
            if at <= size:
                self.at = at
                return
        self.need(at - self.at + 8, place)
