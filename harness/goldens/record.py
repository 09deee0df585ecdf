"""What a golden holds, and how it is written so that a person can read and diff it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.errors import InputError

SCHEMA = "plegate.golden/1"
PLACES = 8  # values kept of each named intermediate, spread over it
MARGIN_FACTOR = 10  # a margin must be this many times the stated numeric error of logits


@dataclass(frozen=True)
class Probe:
    """A named intermediate at one position: its L2 norm and a few of its values.

    Units: size is the number of values that the norm covers; places are indices into the flattened vector.
    """

    name: str
    position: int
    size: int
    norm: float
    places: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, name: str, position: int, vector: npt.NDArray[Any]) -> Probe:
        """The probe of a vector, or of several side by side."""
        flat = np.asarray(vector, np.float64).reshape(-1)
        places = tuple(int(place) for place in np.linspace(0, flat.size - 1, PLACES).round())
        values = tuple(float(f"{flat[place]:.7g}") for place in places)
        return cls(name, position, flat.size, float(f"{np.linalg.norm(flat):.7g}"), places, values)

    def error(self, other: Probe) -> float:
        """How far another probe of the same place is off: largest difference by the root mean square of this one."""
        if (self.name, self.position, self.size, self.places) != (other.name, other.position, other.size, other.places):
            return float("nan")
        rms = self.norm / self.size**0.5
        values = np.abs(np.subtract(self.values, other.values)).max() / rms
        return float(max(values, abs(self.norm - other.norm) / self.norm))


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
        Probe(**{**probe, "places": tuple(probe["places"]), "values": tuple(probe["values"])})
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
    return (
        all(
            not isinstance(item, Mapping) and (not isinstance(item, list | tuple) or len(item) <= PLACES)
            for item in value.values()
        )
        and len(json.dumps(value)) <= 260
    )


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
