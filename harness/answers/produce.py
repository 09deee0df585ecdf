"""Running a case to make a golden of it: answers, margins, digests, intermediates, and how close its calls were."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import locate_table, open_rows
from harness.answers.record import Closest, Golden, GoldenPrompt, Probe
from harness.cases.case import LOGITS, PLE, Case, TokenPrompt
from harness.cases.models import FIXTURES, model_digest, provenance
from harness.engines.protocol import RECORD, Engine, Named, Run, run_of
from harness.engines.recorded import errors_by_position, in_order, recorded
from harness.engines.settings import engine_settings
from harness.engines.table import load_engine
from harness.environment import environment
from harness.errors import CannotRun
from harness.oracle import HashOracle, row_digests
from model_file.config import ModelConfig
from model_file.gguf_file import GgufFile, open_gguf
from reference.closeness import CALLS, gaps

Report = Callable[[str], None]
PROBED_PROMPTS = 3  # of each case; more would make the record long and say nothing new
LOGITS_FLOOR = 1e-4
"""Never stated smaller than this, absolute: two engines on `nano` mostly differ by up to 1e-4 on logits of size 13."""


def probe_names(config: ModelConfig) -> tuple[str, ...]:
    """The few intermediates that goldens keep: PLE layer, every attention mixer, the last layer's streams, logits."""
    mixers = [f"blk.{layer}.mixer" for layer, linear in enumerate(config.linear_layers) if not linear]
    return (f"blk.{config.ple.layer}.ple", *mixers, f"blk.{config.layers - 1}.streams", "logits")


def probe_positions(prompt: Sequence[int], chunk: int) -> tuple[int, ...]:
    """Where they are taken: at the end of the first chunk and at the end of the prompt."""
    return tuple(sorted({min(chunk, len(prompt)) - 1, len(prompt) - 1}))


def probes_of(start: int, named: Named, config: ModelConfig, positions: Sequence[int]) -> list[Probe]:
    """The probes that fall into a recorded chunk, whose named values include the logits."""
    found = []
    for position in positions:
        at = position - start
        if 0 <= at < len(named["logits"]):
            found += [Probe.of(name, position, named[name][at]) for name in probe_names(config)]
    return found


def missing_probe(case: Case, golden: Golden, config: ModelConfig) -> tuple[str, str, int] | None:
    """The first intermediate (prompt, name, position) that the case's levels need and its golden lacks."""
    needed = [name for name in probe_names(config) if (PLE if name.endswith(".ple") else LOGITS) in case.levels]
    for prompt in golden.prompts[:PROBED_PROMPTS]:
        recorded = {(probe.name, probe.position) for probe in prompt.probes}
        for position in probe_positions(prompt.ids, case.chunk):
            for name in needed:
                if (name, position) not in recorded:
                    return prompt.name, name, position
    return None


def produce(case: Case, path: Path, engine: str, confirm: bool, reason: str, report: Report) -> Golden:
    """Run a case with an engine; with `confirm`, run the other engine beside it and measure how far they are apart.

    Raises: CannotRun when an outside engine's answers lie beside the model and are not ours: that is not recorded.
    """
    with open_gguf(path) as model, open_rows(locate_table(model), "resident") as reader:
        names = [engine, *(name for name in ("reference", "fast") if name != engine and confirm)]
        with ExitStack() as stack:
            settings = engine_settings(case.tokens)
            engines = [stack.enter_context(load_engine(name, model, reader, settings)) for name in names]
            recorder = _Recorder(case, model, engines, report)
            prompts = tuple(recorder.prompt(prompt) for prompt in case.prompts)
    agreed = [one.name for one in recorder.engines if one.name not in recorder.disagreed]
    outside = _outside_producer(case, prompts)
    confirming = agreed if outside is not None else agreed[1:]
    return Golden(
        case=case.id,
        model={**provenance(case.model), "size_bytes": path.stat().st_size, "sha256": model_digest(path)},
        producer=outside or {"engine": engine, **_versions()},
        confirmed_by=tuple(f"{name} (jax {metadata.version('jax')}, {_python()})" for name in confirming),
        numeric_error=recorder.stated_error(),
        chunk=case.chunk,
        reason=reason,
        prompts=prompts,
    )


class _Recorder:
    """Answers prompts with the first engine, and measures how far the second, where there is one, is from it."""

    def __init__(self, case: Case, model: GgufFile, engines: Sequence[Engine], report: Report) -> None:
        self.case, self.engines, self.report = case, engines, report
        self.table, self.oracle = locate_table(model), HashOracle(model)
        self.disagreed: set[str] = set()
        self.logits_apart = self.values_apart = 0.0

    def prompt(self, prompt: TokenPrompt) -> GoldenPrompt:
        """The record of one prompt."""
        runs: list[Run] = []
        for engine in self.engines:
            self.report(f"{self.case.id}: {prompt.name} with {engine.name}")
            sequence = engine.new_sequence()
            sequence.feed(prompt.ids)
            runs.append(run_of(sequence.generate(self.case.generate)))
        self.disagreed |= {e.name for e, run in zip(self.engines, runs, strict=True) if run.tokens != runs[0].tokens}
        seen = [*prompt.ids, *runs[0].tokens[:-1]]
        probes, closest = self._looked_through(prompt, seen)
        return GoldenPrompt(
            name=prompt.name,
            ids=prompt.ids,
            generated=runs[0].tokens,
            margins=tuple(float(f"{margin:.4g}") for margin in runs[0].margins),
            row_digests=row_digests(self.table, self.oracle.rows(seen), self.case.chunk),
            probes=tuple(probes),
            closest=tuple(closest[kind] for kind in CALLS if kind in closest),
        )

    def _looked_through(self, prompt: TokenPrompt, seen: Sequence[int]) -> tuple[list[Probe], dict[str, Closest]]:
        """Probes of the answering engine, and the closest calls of whichever engine tells them."""
        probed = prompt in self.case.prompts[:PROBED_PROMPTS]
        positions = probe_positions(prompt.ids, self.case.chunk) if probed else ()
        probes: list[Probe] = []
        closest: dict[str, Closest] = {}
        able = [engine for engine in self.engines if RECORD in engine.abilities]
        for pieces in zip(*(recorded(engine, seen) for engine in able), strict=True):
            (start, mine), others = pieces[0], [named for _, named in pieces[1:]]
            probes += probes_of(start, mine, able[0].config, positions)
            _note_closest(closest, start, max((mine, *others), key=len), able[0].config)
            for other in others:
                self.logits_apart = max(self.logits_apart, float(np.abs(mine["logits"] - other["logits"]).max()))
                errors = [errors_by_position(other[name], mine[name]).max() for name in in_order(mine, other)]
                self.values_apart = max(self.values_apart, *(float(error) for error in errors))
        return probes, closest

    def stated_error(self) -> dict[str, Any]:
        """What the golden says of numeric error, and how it is known."""
        if len(self.engines) < 2:
            return {"logits": LOGITS_FLOOR, "measured": None, "how": "not measured for this record: the floor"}
        return {
            "logits": max(LOGITS_FLOOR, float(f"{self.logits_apart:.3g}")),
            "measured": float(f"{self.logits_apart:.3g}"),
            "intermediates": float(f"{self.values_apart:.3g}"),
            "how": "logits: largest difference of any logit of reference and fast, at every position of prompts "
            f"and answers, stated as {LOGITS_FLOOR} at least; intermediates: of any value, by its root mean square",
        }


def _note_closest(closest: dict[str, Closest], start: int, named: Named, config: ModelConfig) -> None:
    """Keep the closest call of each kind: kept against dropped blocks and experts (relative), the PLE agreement."""
    for name, values in gaps(named, config).items():
        block, _, kind = name.removeprefix("blk.").partition(".")
        sizes = np.abs(np.asarray(values, np.float64)).reshape(len(named["logits"]), -1).min(axis=1)
        at = int(np.argmin(sizes))
        if np.isfinite(sizes[at]) and (kind not in closest or sizes[at] < closest[kind].value):
            closest[kind] = Closest(kind, float(f"{sizes[at]:.3g}"), start + at, int(block))


def fixture_answers(case: Case) -> dict[str, npt.NDArray[Any]] | None:
    """The answers of an outside engine that lie beside a fixture, None where there are none."""
    path = FIXTURES / f"{case.id}.npz"
    if not path.is_file():
        return None
    with np.load(path) as archive:
        return dict(archive)


def _outside_producer(case: Case, prompts: Sequence[GoldenPrompt]) -> dict[str, Any] | None:
    """The outside engine, where its tokens are the ones recorded. A difference is not recorded, it is an error."""
    answers = fixture_answers(case)
    if answers is None:
        return None
    for number, prompt in enumerate(prompts):
        expected = tuple(int(token) for token in answers[f"greedy_{number}"])
        if prompt.generated != expected:
            raise CannotRun(f"{case.id}: prompt {prompt.name}: our tokens are not those of transformers: not recorded")
    return {"engine": "transformers", "versions": {"transformers": "5.24"}, "answers": f"tests/fixtures/{case.id}.npz"}


def _versions() -> dict[str, Any]:
    names = ("plegate", "jax", "jaxlib", "numpy", "gguf")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source tree"
    return {"versions": {**found, "python": platform.python_version()}, "cpu": environment()["cpu"]}


def _python() -> str:
    return f"python {platform.python_version()}"
