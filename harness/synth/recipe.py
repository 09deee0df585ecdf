"""From a preset and its options to a header and a list of tensors: all that decides the bytes of a made model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial

from gguf import GGMLQuantizationType

from harness.synth.bits import BitStream, Bytes
from harness.synth.gguf_writer import PlannedTensor, file_bytes, header
from harness.synth.keys import metadata_of, shard_keys
from harness.synth.presets import PRESETS, Preset, fitted_hash, with_layers
from harness.synth.table import row_bytes, table_blocks
from harness.synth.vocabulary import Vocabulary, build_vocabulary
from harness.synth.weights import Weight, model_weights
from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.tensors import MODEL, TABLE, head_groups, trunk_groups

_PIECE_BYTES = 8 << 20
_FEWEST_LAYERS, _MOST_LAYERS = 4, 48  # one of each kind; Flash-Next's own


class Head(StrEnum):
    """Where a model's MTP head is: nowhere, inside the file, or in a file that holds the head and no trunk."""

    none = "none"
    inside = "inside"
    alone = "alone"


@dataclass(frozen=True)
class Recipe:
    """One model to make. Two equal recipes give equal bytes."""

    preset: Preset
    seed: int
    rows: int
    table_kind: GGMLQuantizationType
    head: Head = Head.none

    @property
    def label(self) -> str:
        """The name that its recorded digest and its cached file go by."""
        width = self.preset.config.ple.row_width
        head = {Head.none: "", Head.inside: "-with-head", Head.alone: "-head-alone"}[self.head]
        layers = f"-{self.preset.config.layers}layers" if self.preset.served else ""
        return f"{self.preset.name}{layers}-seed{self.seed}-{self.rows}x{width}-{self.table_kind.name}{head}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one packed table row."""
        return row_bytes(self.table_kind, self.preset.config.ple.row_width)

    @cached_property
    def config(self) -> ModelConfig:
        """The architecture as the file will describe it, with the hash of this table."""
        config, old = self.preset.config, self.preset.config.ple.hash
        constants = fitted_hash(
            self.rows, old.order, old.heads_per_ngram, config.vocab, old.eos, self.preset.base_limit
        )
        if self.head != Head.none:
            ratio = max(config.compress_ratios)
            config = replace(config, skipped_layers=(config.layers,), head_ratio=ratio)
        return replace(config, name=f"plegate {self.label}", ple=replace(config.ple, hash=constants))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Tokens, types and merges."""
        return build_vocabulary(self.config.vocab, self.preset.special, self.preset.served)

    @cached_property
    def tensors(self) -> list[PlannedTensor]:
        """The tensors, in file order, each with its bytes to come."""
        shape = (self.rows, self.config.ple.row_width)
        table = PlannedTensor(TABLE, shape, self.table_kind, partial(_table_pieces, self))
        if not self.preset.complete:
            return [table]
        trunk = [("", MODEL)] if self.head == Head.alone else [*trunk_groups(self.config)]
        groups = [*trunk, *head_groups(self.config).values()]
        preset = self.preset
        quiet, kinds = self.vocabulary.quiet, preset.kinds
        weights = model_weights(groups, self.config, quiet, preset.weight_kind, preset.tied, kinds)
        return [*(_planned(weight, self) for weight in weights), *[table] * (self.head != Head.alone)]

    @cached_property
    def shards(self) -> list[tuple[bytes, list[PlannedTensor]]]:
        """Of each file, everything before the first tensor's data, and its tensors."""
        model, tensors = metadata_of(self.preset, self.config, self.seed, self.vocabulary), self.tensors
        if not self.preset.served or self.head == Head.alone:
            return [(header(model, tensors), tensors)]
        weights, table = shard_keys(0, 2, len(tensors)), shard_keys(1, 2, len(tensors))
        return [
            (header([*model, *weights[1:]], tensors[:-1]), tensors[:-1]),
            (header(table, tensors[-1:]), tensors[-1:]),
        ]

    @property
    def header(self) -> bytes:
        """Everything before the first tensor's data of the first file."""
        return self.shards[0][0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file_bytes(*shard) for shard in self.shards)


def make_recipe(
    name: str,
    *,
    seed: int | None = None,
    layers: int | None = None,
    rows: int | None = None,
    gib: float | None = None,
    table_kind: GGMLQuantizationType | None = None,
    row_width: int | None = None,
    head: Head = Head.none,
) -> Recipe:
    """The recipe of a preset; an option left out takes the preset's default.

    Raises: InputError for an option that does not fit the preset, naming it.
    """
    if name not in PRESETS:
        raise InputError(f"{name}: no such preset; choose one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    seed = preset.seed if seed is None else seed
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: expected a number in 0..2^63-1")
    if rows is not None and gib is not None:
        raise InputError("--rows and --gib both give the table's size: use one of them")
    if row_width is not None:
        if preset.complete:
            raise InputError(f"--width {row_width}: rows of {name} have a fixed width; leave it out, or use `table`")
        ple = replace(preset.config.ple, row_width=row_width)
        preset = replace(preset, config=replace(preset.config, width=row_width * ple.heads, ple=ple))
    if layers is not None:
        if not preset.served:
            raise InputError(f"--layers {layers}: {name} has {preset.config.layers} layers; leave it out, or use flash")
        if not _FEWEST_LAYERS <= layers <= _MOST_LAYERS:
            raise InputError(f"--layers {layers}: expected {_FEWEST_LAYERS} to {_MOST_LAYERS}, as Flash-Next has")
        preset = replace(preset, config=with_layers(preset.config, layers))
    kind = preset.table_kind if table_kind is None else table_kind
    packed_bytes = row_bytes(kind, preset.config.ple.row_width)
    if gib is not None:
        if not math.isfinite(gib * 2**30):
            raise InputError(f"--gib {gib}: expected a number of GiB, such as 6 or 0.5")
        rows = int(gib * 2**30) // packed_bytes
    if head != Head.none and not preset.complete:
        raise InputError(f"--head {head}: {name} is a table alone, to which no MTP head belongs; leave it out")
    recipe = Recipe(preset, seed, preset.rows if rows is None else rows, kind, head)
    assert recipe.config.layers, "made here, so that too few rows are refused here"
    return recipe


def _planned(weight: Weight, recipe: Recipe) -> PlannedTensor:
    def pieces() -> Iterator[Bytes]:
        return weight.fill(BitStream(recipe.preset.name, recipe.seed, weight.name), weight.kind, weight.shape)

    return PlannedTensor(weight.name, weight.shape, weight.kind, pieces)


def _table_pieces(recipe: Recipe) -> Iterator[Bytes]:
    stream = BitStream(recipe.preset.name, recipe.seed, TABLE)
    at_once = max(_PIECE_BYTES // recipe.row_bytes // 4 * 4, 4)  # times 4: whole 8-byte words, no leftover to copy
    for start in range(0, recipe.rows, at_once):
        count = min(at_once, recipe.rows - start)
        yield table_blocks(stream.take(count * recipe.row_bytes), recipe.table_kind)
