"""Goldens of one's own: what an arm answered to prompts of a user's, kept to judge other arms by later.

The record is that of our goldens, without rows and intermediates: an outside engine tells none. Its model is known by
SHA-256, or where that would take too long each time by size, metadata and sampled blocks, which the record says.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.answers.record import Golden, GoldenPrompt, loads
from harness.engines.arms import Arm, arm_as_dict, arm_from
from harness.engines.program import ProgramFacts
from harness.engines.protocol import Completion
from harness.synth.making import file_sha256
from model_file.errors import InputError
from model_file.gguf_file import GgufFile

HASHED_BYTES = 2 << 30  # a model up to this size is hashed as a whole
SAMPLES, SAMPLE_BYTES = 256, 64 << 10
WHOLE, SAMPLED = (
    "SHA-256 of the file",
    f"size, metadata and {SAMPLES} sampled blocks; what lies between was not looked at",
)


def identity(model: GgufFile) -> dict[str, Any]:
    """What a model's files are known by. Modification times are kept to say more, and never judged by."""
    found: dict[str, Any] = {"file": model.paths[0].name, "size_bytes": model.size_bytes}
    found["mtimes_ns"] = [path.stat().st_mtime_ns for path in model.paths]
    text = json.dumps({key: model.metadata[key] for key in sorted(model.metadata)}, default=_plain)
    found["metadata"] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    found["samples"] = _samples(model.paths)
    whole = model.size_bytes <= HASHED_BYTES and len(model.paths) == 1
    found["sha256"] = file_sha256(model.paths[0]) if whole else None
    return found | {"identity": WHOLE if whole else SAMPLED}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _samples(paths: Sequence[Path]) -> str:
    """SHA-256 over blocks spread evenly over the files, ends included."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for at in np.linspace(0, max(0, size - SAMPLE_BYTES), SAMPLES).astype(np.int64).tolist():
                digest.update(os.pread(file.fileno(), SAMPLE_BYTES, at))
    return digest.hexdigest()


def stale(golden: Golden, model: GgufFile) -> tuple[str | None, str | None]:
    """Why the golden is of another model, None where it is not; and what is to be known of how that was told."""
    now, then = identity(model), golden.model
    for key in ("size_bytes", "metadata", "samples", "sha256"):
        if now[key] != then.get(key):
            return (
                f"golden {golden.case} is stale: {model.paths[0]} has another {key} ({now[key]}, recorded "
                f"{then.get(key)}): name the model that it was recorded with, or record it anew with a reason"
            ), None
    said = f"the golden's model is known by {now['identity']}"
    changed = (
        "" if now["mtimes_ns"] == then.get("mtimes_ns") else "; its files were written to since, with the same bytes"
    )
    return None, f"{said}{changed}" if changed or now["sha256"] is None else None


def own_golden(
    name: str,
    model: GgufFile,
    prompts: Mapping[str, Sequence[int]],
    answers: Mapping[str, Completion],
    arm: Arm,
    facts: ProgramFacts | None,
    confirmed_by: Sequence[str],
    reason: str,
) -> Golden:
    """The record of an arm's answers. Raises: InputError where the arm told no ids."""
    if not all(answers[prompt].tokens for prompt in prompts):
        raise InputError(f"--arm {arm.name}: tells no ids, expected an arm that does: a golden is made of ids")
    producer: dict[str, Any] = {"engine": arm.mode, "arm": arm_as_dict(arm)}
    if facts is not None:
        producer |= {"version": facts.version, "sha256": facts.sha256, "libraries_sha256": facts.libraries}
    return Golden(
        case=name,
        model=identity(model),
        producer=producer,
        confirmed_by=tuple(confirmed_by),
        numeric_error={
            "logits": 0.0,
            "measured": None,
            "how": "not measured: arms are judged by the noise of the pair",
        },
        chunk=64,
        reason=reason,
        prompts=tuple(
            GoldenPrompt(prompt, tuple(ids), tuple(answers[prompt].tokens), _margins(answers[prompt]), (), (), ())
            for prompt, ids in prompts.items()
        ),
    )


def _margins(answer: Completion) -> tuple[float, ...]:
    """To six digits; none (null) at a step where the arm told no logprobs."""
    return tuple(float(f"{m:.6g}") if math.isfinite(m) else None for m in answer.margins)  # type: ignore[misc]


def read_own(path: Path) -> Golden:
    """A golden of one's own. Raises: InputError."""
    try:
        golden = loads(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--golden {path}: cannot be read: {error}: make it with `plegate golden record`") from None
    if "arm" not in golden.producer:
        raise InputError(
            f"--golden {path}: is a case's golden, expected one that an arm recorded: use --case {golden.case}"
        )
    return golden


def producer_of(golden: Golden) -> Arm | None:
    """The arm that recorded it; None of a case's golden."""
    return arm_from(dict(golden.producer["arm"])) if "arm" in golden.producer else None


def margins_of(prompt: GoldenPrompt) -> list[float]:
    """Recorded margins, NaN where there are none."""
    return [float("nan") if margin is None else margin for margin in prompt.margins]
