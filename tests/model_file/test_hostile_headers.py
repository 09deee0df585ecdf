"""Thousands of damaged headers: each is refused by name or read as the `gguf` package reads it, fast and small."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType

import gguf
import pytest

from harness.inspection import describe
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from model_file.inventory import take_inventory
from tests import gguf_edit
from tests.conftest import FIXTURES

SECONDS = 5.0  # for one header of 20 kB, which takes 5 ms; generous, for a machine that is busy with other things
MEMORY_KIB = 200 << 10  # that the whole run may add
NUMBERS = [0, 1, 2, 31, 32, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]


@cache
def original() -> tuple[bytes, int]:
    """A header, and the bytes of its whole file."""
    content = (FIXTURES / "tiny.gguf").read_bytes()
    with open_gguf(FIXTURES / "tiny.gguf") as model:
        return content[: min(info.offset_bytes for info in model.tensors.values())], len(content)


def mutated(seed: int, parent: bytes | None = None) -> tuple[bytes, int]:
    """Header and file size after one to three damages, chosen by the seed. parent: a damaged header to go on from."""
    draw = random.Random(seed)
    header, size = original()
    content = bytearray(parent or header)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        at = draw.randrange(len(content))
        other, length = draw.randrange(len(content)), draw.choice([1, 4, 8, 40])
        match draw.randrange(7):
            case 0:
                content[at] = draw.randrange(256)
            case 1:
                content[at] ^= 1 << draw.randrange(8)
            case 2:
                content[at : at + 8] = struct.pack("<Q", draw.choice(NUMBERS))
            case 3:
                content[at : at + 4] = struct.pack("<I", draw.choice(NUMBERS) % 2**32)
            case 4:
                del content[at : at + length]
            case 5:
                content[at:at] = content[other : other + length]
            case 6:
                content[at : at + length] = content[other : other + length]
    return bytes(content), draw.choice([size, size, size, size // 2, len(content)])


def outcome(path: Path) -> str:
    """What became of one file; anything but InputError goes on as it is."""
    try:
        with open_gguf(path) as model:
            for name in model.tensors:
                model.packed(name)
            assert as_the_package_reads(path, model), path
            json.dumps(describe(model))
            take_inventory(model, config_from(model))
    except InputError as error:
        assert str(path) in str(error) and len(str(error)) < 1 << 20
        return "refused"
    return "taken"


def as_the_package_reads(path: Path, model: GgufFile) -> bool:
    """Tensors at the same places, or a file that the package cannot read at all."""
    try:
        theirs = gguf.GGUFReader(path).tensors
    except Exception:
        return True
    found = {name: (info.offset_bytes, info.size_bytes, info.type) for name, info in model.tensors.items()}
    return found == {tensor.name: (tensor.data_offset, tensor.n_bytes, tensor.tensor_type) for tensor in theirs}


def run(seeds: range, path: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in seeds:
        header, size = mutated(seed)
        path.write_bytes(header)
        os.truncate(path, size)
        started = time.process_time()
        found[outcome(path)] += 1
        assert time.process_time() - started < SECONDS, f"mutated({seed})"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB
    return found


def test_damaged_headers_are_refused_or_read_right(tmp_path: Path) -> None:
    found = run(range(1000), tmp_path / "damaged.gguf")
    assert found["refused"] > 300 and found["taken"] > 30, found  # both kinds are there to be judged


@pytest.mark.hostile
@pytest.mark.slow
def test_ten_thousand_damaged_headers_are_refused_or_read_right(
    tmp_path: Path, record_property: Callable[..., None]
) -> None:
    for end, number in run(range(10_000), tmp_path / "damaged.gguf").items():
        record_property("hostile", (f"damaged headers {end}", number))


def lines_of(path: Path) -> set[tuple[str, int, int]]:
    """The steps from line to line in `model_file` that opening this file takes; it must be refused or read right."""
    steps: set[tuple[str, int, int]] = set()

    def enter(frame: FrameType, *_: object) -> Callable[..., object] | None:
        name = frame.f_code.co_filename
        if "/model_file/" not in name:
            return None
        last = [frame.f_lineno]

        def step(frame: FrameType, event: str, _: object) -> Callable[..., object]:
            if event == "line":
                steps.add((name, last[0], frame.f_lineno))
                last[0] = frame.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        outcome(path)
    finally:
        sys.settrace(before)
    return steps


def explore(rounds: int, path: Path) -> tuple[int, int, int]:
    """Damage upon damage, going on from whatever took a new step: the headers kept, steps at first and at last."""
    draw, kept = random.Random(1), [original()[0]]
    path.write_bytes((FIXTURES / "tiny.gguf").read_bytes())
    seen = lines_of(path)
    first = len(seen)
    for number in range(rounds):
        header, size = mutated(draw.getrandbits(32), draw.choice(kept[-64:]))
        path.write_bytes(header)
        os.truncate(path, max(1, size))
        started = time.process_time()
        if not (found := lines_of(path)) <= seen:
            seen |= found
            kept.append(header)
        assert time.process_time() - started < 10 * SECONDS, f"round {number}"  # tracing costs, too
    return len(kept), first, len(seen)


def test_headers_that_reach_new_lines_are_refused_or_read_right(tmp_path: Path) -> None:
    """Guided by coverage: damages that no single one of the drawn ones would reach."""
    kept, first, last = explore(300, tmp_path / "damaged.gguf")
    assert kept > 10 and last > first + 20, (kept, first, last)


@pytest.mark.hostile
@pytest.mark.slow
def test_three_thousand_headers_guided_by_coverage(tmp_path: Path, record_property: Callable[..., None]) -> None:
    kept, first, last = explore(3000, tmp_path / "damaged.gguf")
    record_property("hostile", ("damaged headers guided by coverage", 3000))
    record_property("hostile", ("steps from line to line that they reached, beyond a sound header's", last - first))
    assert kept > 30


def test_a_wrong_answer_would_be_seen(tiny: Path, tmp_path: Path) -> None:
    other = gguf_edit.edited(tiny, tmp_path / "other.gguf", lambda _, own: own.update(more=own.pop("blk.0.ssm_a")))
    with open_gguf(tiny) as model:
        assert as_the_package_reads(tiny, model)
        assert not as_the_package_reads(other, model)
