"""All that a compiled program depends on beside the shapes of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from model_file.config import ModelConfig

SPARE_BLOCKS = 16  # a full sequence's padding touches one block behind the room; 16 keep rows of the array aligned


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a compiled program depends on beside the shapes of its arrays; a static argument of `jit`.

    Compared by identity, and `plan_for` gives the same object for the same choices: hashing a whole configuration at
    every call takes 70 us of a decode step.

    Units: counts of tokens. room: positions of the caches, the context and one chunk more, so that a padded chunk can
    be written without clamping. draft: tokens that the draft head guesses before a check; 0: there is no head, and
    states hold nothing of one. lazy_experts: the host brings the routed experts, layer by layer. delta_chunk: tokens of
    one matrix form of the delta net. query_tile: queries that attend together, which bounds the memory of scores and
    gathered keys. expert_tile: tokens of one expert computed together.
    """

    config: ModelConfig
    table_type: int
    room: int
    precision: str
    draft: int = 0
    lazy_experts: bool = False
    delta_chunk: int = 64
    query_tile: int = 128
    expert_tile: int = 64

    @property
    def layers(self) -> tuple[tuple[int, bool], ...]:
        """Of every layer the tokens of a block and whether it is a delta net; the draft head's stands last."""
        trunk = zip(self.config.compress_ratios, self.config.linear_layers, strict=True)
        return (*trunk, *[(self.config.head_ratio, False)] * (self.draft > 0))

    @property
    def attention_ratios(self) -> tuple[int, ...]:
        """Tokens of a block in every attention layer, in layer order; 0 in a dense one."""
        return tuple(ratio for ratio, linear in self.layers if not linear)

    @property
    def early_layers(self) -> int:
        """How many layers stand before the PLE layer, 0 when not all of them are delta nets or experts are lazy."""
        layer = self.config.ple.layer
        return layer if all(self.config.linear_layers[:layer]) and not self.lazy_experts else 0

    def cache_place(self, number: int) -> int:
        """Which of the attention layers' caches is that of layer `number`."""
        return sum(not linear for _, linear in self.layers[:number])

    def key_blocks(self, ratio: int) -> int:
        """Columns of an index cache: the blocks of the room and spare ones, of which padding needs one."""
        return self.room // ratio + SPARE_BLOCKS if ratio else 0


@lru_cache(maxsize=256)
def shared_plan(
    config: ModelConfig, table_type: int, room: int, precision: str, draft: int = 0, lazy_experts: bool = False
) -> Plan:
    """One object for equal choices, so that engines with the same shapes share their compiled programs."""
    return Plan(config, table_type, room, precision, draft, lazy_experts)
