"""How two goldens of a case differ, in a few lines that a reviewer reads before promoting."""

from __future__ import annotations

import numpy as np

from harness.answers.record import Golden, GoldenPrompt


def differences(old: Golden, new: Golden) -> list[str]:
    """One line for each thing that differs; none when they answer alike (producer and reason may differ)."""
    lines = []
    if old.model.get("sha256") != new.model.get("sha256"):
        lines.append(f"model: SHA-256 was {old.model.get('sha256')}, is {new.model.get('sha256')}")
    if old.numeric_error["logits"] != new.numeric_error["logits"]:
        lines.append(f"stated numeric error: was {old.numeric_error['logits']:g}, is {new.numeric_error['logits']:g}")
    if old.chunk != new.chunk:
        lines.append(f"chunk: was {old.chunk}, is {new.chunk}")
    before, after = ({prompt.name: prompt for prompt in golden.prompts} for golden in (old, new))
    lines += [f"prompt {name}: removed" for name in before if name not in after]
    lines += [f"prompt {name}: added" for name in after if name not in before]
    for name in before.keys() & after.keys():
        lines += [f"prompt {name}: {line}" for line in _prompt(before[name], after[name])]
    return lines


def _prompt(old: GoldenPrompt, new: GoldenPrompt) -> list[str]:
    lines = []
    if old.ids != new.ids:
        lines.append(f"ids: were {len(old.ids)}, are {len(new.ids)}, first difference at {_first(old.ids, new.ids)}")
    if old.generated != new.generated:
        step = _first(old.generated, new.generated)
        was, now = (x.generated[step] if step < len(x.generated) else None for x in (old, new))
        margin = old.margins[step] if step < len(old.margins) else None
        lines.append(f"answer differs from step {step} on: was {was} with a margin of {margin}, is {now}")
    if old.row_digests != new.row_digests:
        lines.append(f"rows: another digest from chunk {_first(old.row_digests, new.row_digests)} on")
    worst = float(np.max([0.0, *(a.error(b) for a, b in zip(old.probes, new.probes, strict=False))]))
    if len(old.probes) != len(new.probes) or not worst <= 1e-6:
        lines.append(f"intermediates: {len(old.probes)} and {len(new.probes)}, largest error {worst:.2g}")
    margins = [abs(a - b) for a, b in zip(old.margins, new.margins, strict=False)]
    if margins and max(margins) > 1e-6:
        lines.append(
            f"margins: differ by up to {max(margins):.2g}; smallest was {min(old.margins):g}, is {min(new.margins):g}"
        )
    return lines


def _first(old: tuple[object, ...], new: tuple[object, ...]) -> int:
    return next(
        (i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
