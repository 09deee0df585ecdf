"""The registered cases: which prompts, on which model, and why each of them is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from harness.cases.case import Case, TokenPrompt
from model_file.errors import InputError

EOS = 1  # the n-gram hash of `nano` and of the fixtures ends documents with it
NANO_VOCAB, PICO_VOCAB = 4096, 512
SMALL_MODELS = ("pico", "femto")  # whose cases `--quick` runs
CHUNK = 64  # tokens of a recorded digest, and of a recorded first chunk
FED = 512  # tokens that the engine people run computes at a time

_METRIC = (
    "largest difference of 8 values spread over a vector and of 4 projections of all of it on random signs, divided by "
    "its root mean square, or of its norm, divided by the norm"
)
_NANO = (
    2e-3,
    "two float32 engines that add in other orders differ by up to 2e-4 on these prompts (measured on every position); "
    "a wrong row, gate or block moves values by 1e-2 and more",
)
_TINY = (
    1e-3,
    "both engines differ by up to 2e-4 here (measured on every position); a wrong row, gate or block "
    "moves values by 1e-2 and more",
)


_PICO = _TINY


def drawn(name: str, count: int, vocab: int) -> tuple[int, ...]:
    """`count` ids that follow from `name` alone, never padding (0) or EOS (1): words of SHA-256("name/0") and so on."""
    ids: list[int] = []
    block = 0
    while len(ids) < count:
        digest = hashlib.sha256(f"{name}/{block}".encode()).digest()
        ids += [2 + int.from_bytes(digest[i : i + 4], "little") % (vocab - 2) for i in range(0, 32, 4)]
        block += 1
    return tuple(ids[:count])


def with_eos(ids: Iterable[int], *places: int) -> tuple[int, ...]:
    """The same ids with EOS at these places."""
    changed = list(ids)
    for place in places:
        changed[place] = EOS
    return tuple(changed)


def _stored(name: str) -> tuple[int, ...]:
    """Ids of a built-in text in `nano`'s vocabulary; stored, so that no tokenizer decides what is compared."""
    return _stored_prompts()[name]


@cache
def _stored_prompts() -> dict[str, tuple[int, ...]]:
    content = resources.files("harness.cases").joinpath("prompts.json").read_text(encoding="utf-8")
    return {name: tuple(ids) for name, ids in json.loads(content).items()}


def _texts() -> Case:
    return Case(
        id="nano-texts",
        about="five texts, 192 tokens each; every mode runs the start of two",
        model="nano",
        prompts=tuple(TokenPrompt(name, _stored(f"text/{name}")) for name in TEXTS),
        generate=192,
        metric=_METRIC,
        bound=_NANO[0],
        reason=_NANO[1],
        everywhere=False,
        repeats=1,
        short=96,
    )


def _long() -> Case:
    return Case(
        id="nano-long",
        about="800 tokens continued by 1024, twice in one process: the second request must equal the first",
        model="nano",
        prompts=(TokenPrompt("long", drawn(LONG_SEED, 800, NANO_VOCAB)),),
        generate=1024,
        metric=_METRIC,
        bound=_NANO[0],
        reason=_NANO[1],
        everywhere=False,
    )


def _deep() -> Case:
    return Case(
        id="nano-4096",
        about="a prompt of 4,096 tokens: 64 chunks, 1,024 blocks of keys of which 16 are read",
        model="nano",
        prompts=(TokenPrompt("deep", drawn(DEEP_SEED, 4096, NANO_VOCAB)),),
        generate=16,
        metric=_METRIC,
        bound=_NANO[0],
        reason=_NANO[1],
        everywhere=False,
        repeats=1,
    )


def _edges() -> Case:
    def ids(name: str, count: int, *eos: int) -> TokenPrompt:
        return TokenPrompt(name, with_eos(drawn(f"{EDGES_SEED}/{name}", count, NANO_VOCAB), *eos))

    return Case(
        id="nano-edges",
        about="prompts that end or have EOS around the edges of a chunk (64), a block (4) and the block budget (64)",
        model="nano",
        prompts=(
            ids("one-token", 1),
            ids("chunk-less-one", CHUNK - 1),
            ids("chunk", CHUNK),
            ids("chunk-and-one", CHUNK + 1),
            ids("budget-and-tail", CHUNK + 3),
            ids("budget-and-block", CHUNK + 4),
            ids("eos-first", CHUNK + 6, 0),
            ids("eos-across-chunks", 2 * CHUNK + 2, CHUNK - 1, CHUNK),
            ids("eos-starts-chunk", 2 * CHUNK + 1, CHUNK),
            ids("eos-last", CHUNK + 2, CHUNK - 2, CHUNK + 1),
        ),
        generate=16,
        metric=_METRIC,
        bound=_NANO[0],
        reason=_NANO[1],
        everywhere=False,
        repeats=1,
    )


def _repeats() -> Case:
    a, b, c = drawn(REPEATS_SEED, 3, NANO_VOCAB)
    return Case(
        id="nano-repeats",
        about="the same few tokens over and over: many equal rows in a batch, blocks that score alike",
        model="nano",
        prompts=(
            TokenPrompt("one", (a,) * 100),
            TokenPrompt("two", (a, b) * 50),
            TokenPrompt("three", (a, b, c) * 33),
            TokenPrompt("eos", (EOS,) * 70),
            TokenPrompt("one-and-eos", (a, a, EOS) * 33),
        ),
        generate=16,
        metric=_METRIC,
        bound=_NANO[0],
        reason=_NANO[1],
        everywhere=False,
        repeats=1,
    )


def _pico(name: str, about: str, prompts: tuple[TokenPrompt, ...], generate: int, **more: Any) -> Case:
    return Case(f"pico-{name}", about, "pico", prompts, generate, _METRIC, *_PICO, **more)


def _pico_ids(name: str, count: int, *eos: int) -> TokenPrompt:
    seed = PICO_SEEDS.get(name, f"pico/{name}/1")
    return TokenPrompt(name, with_eos(drawn(seed, count, PICO_VOCAB), *eos))


def _pico_texts() -> Case:
    sizes = {"a": 40, "b": 57, "c": 23, "d": 90, "e": 140}
    prompts = tuple(_pico_ids(f"text-{name}", size) for name, size in sizes.items())
    return _pico("texts", "five prompts of unequal length; every mode runs the start of two", prompts, 24,
                 everywhere=False, short=8)  # fmt: skip


def _pico_edges() -> Case:
    ids = _pico_ids
    prompts = (
        ids("one", 1),  # a first chunk of one token
        ids("two", 2),  # shorter than an n-gram
        ids("three", 3),
        ids("eos-alone", 1, 0),
        ids("eos-last", 20, 19),
        ids("eos-then-one", 21, 19),
        ids("eos-then-two", 22, 19),
        ids("eos-twice", 30, 20, 22),
        ids("eos-first", 16, 0),  # a full compiled length
        ids("past-16", 17),  # 47 places of padding
        ids("chunk", FED),
        ids("chunk-and-one", FED + 1, FED - 1),
        ids("eos-starts-chunk", FED + 17, FED),
        ids("eos-ends-chunk", FED + 4, FED - 1, FED + 3),
        ids("eos-around-64", 70, 62, 65),
    )
    return _pico("edges", "prompts that end or have EOS at the edges of n-grams, padding and chunks", prompts, 12,
                 everywhere=False, repeats=1, varied="together")  # fmt: skip


def _pico_varied() -> Case:
    prompts = (
        _pico_ids("padding", 342 + 300, 1, 2, 63, 64, 127, 341, 342, FED - 1, FED),
        _pico_ids("short", 45, 2, 6, 41, 44),
    )
    return _pico("varied", "two prompts with EOS at boundaries, fed in every way that must not matter", prompts, 12,
                 everywhere=False, repeats=1, varied="alone")  # fmt: skip


def _pico_eos() -> Case:
    prompts = (_pico_ids("generates-eos", 24),)
    return _pico("eos", "an answer in which EOS comes up: decode goes on behind it", prompts, 48,
                 everywhere=False)  # fmt: skip


def _pico_repeats() -> Case:
    a, b, c = drawn("pico-repeats/1", 3, PICO_VOCAB)
    prompts = (
        TokenPrompt("one", (a,) * 80),
        TokenPrompt("three", (a, b, c) * 30),
        TokenPrompt("eos", (EOS,) * 40),
    )
    return _pico("repeats", "equal rows in a batch, blocks that score alike", prompts, 8,
                 everywhere=False, repeats=1)  # fmt: skip


def _pico_deep() -> Case:
    prompts = (_pico_ids("deep", 6200), _pico_ids("halfway", 1700))
    return _pico("deep", "past 512 and past 2,048 blocks of keys, the static widths of their scores", prompts, 8,
                 everywhere=False, repeats=1)  # fmt: skip


def _femto() -> Case:
    sizes = (1, 1000, 5 * FED, FED)
    prompts = tuple(TokenPrompt(str(size), drawn(f"femto/{size}/1", size, PICO_VOCAB)) for size in sizes)
    return Case("femto-dense", "dense attention at all three of its static widths; decode as one program", "femto",
                prompts, 12, _METRIC, *_PICO, everywhere=False, repeats=1)  # fmt: skip


def _fixture(model: str, about: str, answers: str = "") -> Case:
    return Case(
        id=model,
        about=about,
        model=model,
        prompts=tuple(TokenPrompt(str(number), _stored(f"{answers or model}/{number}")) for number in range(3)),
        generate=32,
        metric=_METRIC,
        bound=_TINY[0],
        reason=_TINY[1],
    )


TEXTS = ("prose", "code", "list", "languages", "dialogue")
LONG_SEED, DEEP_SEED, EDGES_SEED, REPEATS_SEED = "nano-long/15", "nano-4096/1", "nano-edges/1", "nano-repeats/1"
PICO_SEEDS = {
    "generates-eos": "pico/generates-eos/25",
    "deep": "pico/deep/3",
    "chunk-and-one": "pico/chunk-and-one/2",
}
"""Chosen among a few so that no margin and no selection of the recorded run is close (see CONTRIBUTING.md)."""


@cache
def cases() -> dict[str, Case]:
    """Every registered case by id, in the order they are run."""
    return {
        case.id: case
        for case in (
            _pico_texts(),
            _pico_edges(),
            _pico_varied(),
            _pico_eos(),
            _pico_repeats(),
            _pico_deep(),
            _femto(),
            _texts(),
            _long(),
            _deep(),
            _edges(),
            _repeats(),
            _fixture("tiny", "a real file with answers from transformers: 4 layers in F32"),
            _fixture(
                "tiny-quant", "a real file with answers from transformers: 8 layers, an IQ4_NL table, Q8_0 weights"
            ),
            _fixture(
                "tiny-ties",
                "`tiny` with an indexer that scores every block alike: the lowest blocks must be kept",
                "tiny",
            ),
        )
    }


def case_by_id(name: str) -> Case:
    """A registered case. Raises: InputError for another name, naming those there are."""
    if name not in cases():
        raise InputError(f"case {name!r} does not exist, expected one of {', '.join(cases())}")
    return cases()[name]


def cases_of(model: str, quick: bool = False) -> list[Case]:
    """The cases of a model; with `quick` those of a small one, and of another one those that have a short form."""
    every = not quick or model in SMALL_MODELS
    return [case for case in cases().values() if case.model == model and (case.short or every)]
