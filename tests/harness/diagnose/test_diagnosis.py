"""Every known fault, planted in an engine that answers by itself, is named; what is not known is called that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from inspect import unwrap

import numpy as np
import pytest

from harness.cases.models import model_path
from harness.diagnose.diagnosis import Diagnoser, Diagnosis, Observed
from harness.diagnose.known import HISTORY, INDEX_PAST, MEMORY, PLE_PAST, Known, known_faults
from harness.diagnose.planted import changed
from harness.engines.protocol import Float32
from harness.faults.planting import planted_text
from model_file.gguf_file import open_gguf

PROMPT, ANSWER, TOP = 150, 24, 5
RIGHT = Known("nothing")
SAMPLE = (
    "the hash looked through EOS into the document before",
    "the multipliers had gone through float32",
    f"{HISTORY} were lost every 64 tokens of the prompt",
    f"{PLE_PAST} were lost before each generated token",
    f"{MEMORY} were lost between the prompt and the first generated token",
    f"{HISTORY} were lost once, before position 141",
    f"{INDEX_PAST} were lost every 64 tokens of the prompt, and before each generated one",
    "the shares of the experts were not brought back to sum 1",
)


@pytest.fixture(name="diagnoser", scope="module")
def a_diagnoser() -> Iterator[Diagnoser]:
    with open_gguf(model_path("tiny-quant")) as model:
        made = Diagnoser(model, PROMPT + ANSWER)
        yield made
        made.close()


def _prompt(diagnoser: Diagnoser, seed: int) -> tuple[int, ...]:
    tokens = np.random.default_rng(seed).integers(0, 300, PROMPT)
    tokens[[20, 57, 94, 131, 146]] = diagnoser.eos
    return tuple(tokens.tolist())


def _top(logits: Float32) -> dict[int, float]:
    wide = logits.astype(np.float64)
    logprobs = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    return {int(token): float(logprobs[token]) for token in np.argsort(-logprobs)[:TOP]}


def answer(diagnoser: Diagnoser, known: Known, prompt: tuple[int, ...], noise: float = 0.0) -> Observed:
    """What an engine with this fault generates, token by token."""
    random = np.random.default_rng(5)
    with changed(known):
        sequence = diagnoser.planted(known, len(prompt))
        logits = sequence.feed(prompt, 1)[-1]
        tokens, top = [], []
        for _ in range(ANSWER):
            logits = logits + noise * random.standard_normal(logits.shape).astype(np.float32)
            tokens.append(int(np.argmax(logits)))
            top.append(_top(logits))
            logits = sequence.feed([tokens[-1]], 1)[-1]
    return Observed(prompt, tuple(tokens), tuple(top))


def _names(found: Diagnosis) -> list[str]:
    return [name for one in found.named for name in (one, *found.same.get(one, []))]


def _known(name: str) -> Known:
    return next(known for known in known_faults(150) if known.name == name)


FEW = [_known(name) for name in (*SAMPLE, "the PLE convolution were not dilated")]
"""What the fast tests choose from; the slow one takes all."""
COMPILING_NOTHING = [known for known in FEW if known.change is None]


def _is_named(
    diagnoser: Diagnoser, known: Known, seeds: Iterable[int], faults: Sequence[Known] | None = None
) -> bool | None:
    """On the first prompt where the fault changes an id; None where it changes none."""
    for seed in seeds:
        prompt = _prompt(diagnoser, seed)
        observed = answer(diagnoser, known, prompt)
        if observed.answer != answer(diagnoser, RIGHT, prompt).answer:
            found = diagnoser.diagnose([observed], faults=faults)
            assert found.named and found.fits[0].all_ids and found.fits[0].error is not None, found.sentence()
            assert found.fits[0].error < 1e-4 and "behaves as if" in found.sentence()
            return known.name in _names(found)
    return None


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_named(diagnoser: Diagnoser, name: str) -> None:
    assert _is_named(diagnoser, _known(name), range(40, 60), FEW) is True


@pytest.mark.slow
def test_nine_of_ten_faults_that_change_an_id_are_named(diagnoser: Diagnoser) -> None:
    """Every one that does is, in fact; the count is printed."""
    found = {known.name: _is_named(diagnoser, known, range(70, 74)) for known in known_faults()}
    told = {name: named for name, named in found.items() if named is not None}
    print(f"{sum(told.values())} of {len(told)} named; no id is changed by {sorted(found.keys() - told)}")
    assert len(told) >= 40 and sum(told.values()) >= 0.9 * len(told), [name for name in told if not told[name]]


def test_the_right_engine_needs_no_name(diagnoser: Diagnoser) -> None:
    found = diagnoser.diagnose([answer(diagnoser, RIGHT, _prompt(diagnoser, 61))], budget_s=0)
    assert found.plain.all_ids and not found.named and found.left_out == len(known_faults())


def test_ids_that_are_ours_have_no_name(diagnoser: Diagnoser) -> None:
    """Though known faults that change no id of a prompt would give them too."""
    observed = answer(diagnoser, RIGHT, _prompt(diagnoser, 65))
    weak = [known for known in known_faults() if known.lost == INDEX_PAST]
    found = diagnoser.diagnose([Observed(observed.prompt, observed.answer)], faults=weak)
    assert any(fit.all_ids for fit in found.fits)
    assert not found.named


def test_ids_alone_are_not_enough_where_logprobs_are_told(diagnoser: Diagnoser) -> None:
    """The ids of a known fault with the logprobs of something else."""
    known = _known(SAMPLE[1])
    observed = answer(diagnoser, known, _prompt(diagnoser, 66))
    assert observed.top is not None
    other = tuple({token: logprob - 5.0 for token, logprob in top.items()} for top in observed.top)
    assert diagnoser.diagnose([observed], faults=[known]).named == [known.name]
    found = diagnoser.diagnose([Observed(observed.prompt, observed.answer, other)], faults=[known])
    assert found.fits[0].all_ids
    assert not found.named


def test_noise_has_no_name(diagnoser: Diagnoser) -> None:
    prompt = _prompt(diagnoser, 62)
    noisy = answer(diagnoser, RIGHT, prompt, noise=0.5)
    assert noisy.answer != answer(diagnoser, RIGHT, prompt).answer
    found = diagnoser.diagnose([noisy], faults=COMPILING_NOTHING)
    assert not found.named and found.sentence().startswith("none of the known faults explains it")
    assert not diagnoser.diagnose([Observed(prompt, noisy.answer)], faults=COMPILING_NOTHING).named


def test_an_unknown_fault_has_no_name(diagnoser: Diagnoser) -> None:
    """The memory of the delta nets fades by half of what it should: no known fault does that."""
    prompt = _prompt(diagnoser, 63)
    unknown = Known(
        "unknown", change=("fast.model.delta_net", "delta_net", "decay = weights.a *", "decay = 0.5 * weights.a *")
    )
    assert unknown.name not in {known.name for known in known_faults()}
    observed = answer(diagnoser, unknown, prompt)
    assert observed.answer != answer(diagnoser, RIGHT, prompt).answer
    assert not diagnoser.diagnose([observed], faults=COMPILING_NOTHING).named


def test_without_logprobs_ids_alone_decide(diagnoser: Diagnoser) -> None:
    known = _known(SAMPLE[2])
    observed = answer(diagnoser, known, _prompt(diagnoser, 64))
    found = diagnoser.diagnose([Observed(observed.prompt, observed.answer)], faults=COMPILING_NOTHING)
    assert known.name in _names(found) and found.fits[0].error is None


def test_a_change_is_taken_back() -> None:
    for known in known_faults():
        if known.change is not None:
            module, function, old, new = known.change
            inner = unwrap(getattr(import_module(module), function))
            before = inner.__code__
            with planted_text(import_module(module), function, old, new):
                assert inner.__code__ is not before
            assert inner.__code__ is before
