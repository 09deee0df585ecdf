"""What a golden holds, and how it is written so that a person can read and diff it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from model_file.errors import InputError

SCHEMA = "plegate.golden/2"
PLACES = 8  # values kept of each named intermediate, spread over it
PROJECTIONS = 4  # sums of all its values with random signs: what is wrong between the places moves each of them
MARGIN_FACTOR = 10  # a margin must be this many times the stated numeric error of logits


@cache
def signs(size: int) -> npt.NDArray[np.float64]:
    """The signs of the projections, +1 or -1, from a hash: the same on every machine. Shapes: [PROJECTIONS, size]."""
    rows = []
    for number in range(PROJECTIONS):
        drawn = hashlib.shake_256(f"plegate.golden projection {number}".encode()).digest(-(-size // 8))
        rows.append(np.unpackbits(np.frombuffer(drawn, np.uint8))[:size] * 2.0 - 1.0)
    return np.stack(rows)


@dataclass(frozen=True)
class Probe:
    """A named intermediate at one position: its L2 norm, a few of its values, and a few projections of all of them.

    Units: size is the number of values that the norm covers; places are indices into the flattened vector; a projection
    is the sum of the values with random signs, divided by the root of `size`, so that it is as large as one value.
    """

    name: str
    position: int
    size: int
    norm: float
    places: tuple[int, ...]
    values: tuple[float, ...]
    projections: tuple[float, ...]

    @classmethod
    def of(cls, name: str, position: int, vector: npt.NDArray[Any]) -> Probe:
        """The probe of a vector, or of several side by side."""
        flat = np.asarray(vector, np.float64).reshape(-1)
        places = tuple(int(place) for place in np.linspace(0, flat.size - 1, PLACES).round())
        values = tuple(float(f"{flat[place]:.7g}") for place in places)
        projections = tuple(float(f"{value:.7g}") for value in signs(flat.size) @ flat / flat.size**0.5)
        return cls(name, position, flat.size, float(f"{np.linalg.norm(flat):.7g}"), places, values, projections)

    def error(self, other: Probe) -> float:
        """How far another probe of the same place is off: the largest difference of a kept value or of a projection, by
        the root mean square of this one, or of the norm, by this norm; no number where one of them is none.

        A value off by `d` between the kept places moves every projection by `d / sqrt(size)`, and all of them off by
        `d` on average move a projection by about `d`.
        """
        if (self.name, self.position, self.size, self.places) != (other.name, other.position, other.size, other.places):
            return float("nan")
        rms = self.norm / self.size**0.5
        kept = np.subtract((*self.values, *self.projections), (*other.values, *other.projections)) / rms
        return float(np.abs([*kept, (self.norm - other.norm) / self.norm]).max())


@dataclass(frozen=True)
class Closest:
    """The closest call of a kind in a run, which rounding could turn. `position` counts prompt and answer."""

    kind: str
    value: float
    position: int
    layer: int | None = None


@dataclass(frozen=True)
class GoldenPrompt:
    """One prompt with its answer.

    row_digests: SHA-256 of the packed rows of each chunk of prompt and answer (without the answer's last token).
    """

    name: str
    ids: tuple[int, ...]
    generated: tuple[int, ...]
    margins: tuple[float, ...]
    row_digests: tuple[str, ...]
    probes: tuple[Probe, ...]
    closest: tuple[Closest, ...]

    @property
    def smallest_margin(self) -> tuple[float, int]:
        """The smallest margin and its step."""
        step = int(np.argmin(self.margins))
        return self.margins[step], step


@dataclass(frozen=True)
class Golden:
    """The recorded answer of one case.

    numeric_error: `logits` is the stated error, absolute, of a logit between engines; `how` says where it comes from.
    producer: engine and versions that the answer is from; confirmed_by: others that were seen to give the same tokens.
    """

    case: str
    model: Mapping[str, Any]
    producer: Mapping[str, Any]
    confirmed_by: tuple[str, ...]
    numeric_error: Mapping[str, Any]
    chunk: int
    reason: str
    prompts: tuple[GoldenPrompt, ...] = field(repr=False)

    @property
    def smallest_margin(self) -> tuple[float, str, int]:
        """The smallest margin of all prompts, with its prompt and step."""
        return min((*prompt.smallest_margin[:1], prompt.name, prompt.smallest_margin[1]) for prompt in self.prompts)

    @property
    def needed_margin(self) -> float:
        """What every margin must reach."""
        return MARGIN_FACTOR * float(self.numeric_error["logits"])


def dumps(golden: Golden) -> str:
    """Readable JSON: one key a line, lists of numbers in full lines."""
    content = {"schema": SCHEMA, **asdict(golden)}
    return _render(content, 0) + "\n"


def loads(text: str, place: str) -> Golden:
    """A golden from its text. Raises: InputError naming the place and what is wrong."""
    try:
        content = json.loads(text)
        schema = content.pop("schema", None)
        if schema != SCHEMA:
            raise InputError(
                f"{place}: schema {schema!r}, expected {SCHEMA!r}: recorded by another version of plegate?"
            )
        prompts = tuple(_prompt(prompt) for prompt in content.pop("prompts"))
        return Golden(**{**content, "confirmed_by": tuple(content["confirmed_by"])}, prompts=prompts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{place}: not a golden: {type(error).__name__}: {error}; restore it from version control, or record it "
            "anew"
        ) from error


def _prompt(content: dict[str, Any]) -> GoldenPrompt:
    probes = tuple(
        Probe(**{**probe, **{name: tuple(probe[name]) for name in ("places", "values", "projections")}})
        for probe in content.pop("probes")
    )
    closest = tuple(Closest(**item) for item in content.pop("closest"))
    lists: dict[str, Any] = {name: tuple(content.pop(name)) for name in ("ids", "generated", "margins", "row_digests")}
    return GoldenPrompt(**content, **lists, probes=probes, closest=closest)


def _render(value: Any, depth: int) -> str:
    """JSON with dictionaries spread over lines and flat lists packed into lines of 110 characters."""
    inner = "  " * (depth + 1)
    if isinstance(value, Mapping):
        if not value or _is_short(value):
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        items = [f"{inner}{json.dumps(key)}: {_render(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + "  " * depth + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(item, Mapping) for item in value):
            items = [inner + _render(item, depth + 1) for item in value]
            return "[\n" + ",\n".join(items) + "\n" + "  " * depth + "]"
        return _packed([json.dumps(item, allow_nan=False) for item in value], inner)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _is_short(value: Mapping[str, Any]) -> bool:
    lists = [item for item in value.values() if isinstance(item, list | tuple)]
    nested = any(isinstance(item, Mapping) for item in value.values())
    limit = 360 if lists else 260  # a probe in one line
    return not nested and all(len(item) <= PLACES for item in lists) and len(json.dumps(value)) <= limit


def _packed(items: list[str], inner: str) -> str:
    lines, line = [], inner
    for item in items:
        if len(line) + len(item) > 110 and line.strip():
            lines.append(line.rstrip())
            line = inner
        line += item + ", "
    if not lines and len(line) <= 110:
        return "[" + line.strip().removesuffix(",") + "]"
    return "[\n" + "\n".join([*lines, line.rstrip().removesuffix(",")]) + "\n" + inner[2:] + "]"
