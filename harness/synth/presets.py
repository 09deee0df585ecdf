"""The shapes of the models that `plegate synth` makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gguf import GGMLQuantizationType


@dataclass(frozen=True)
class Dimensions:
    """A model's architecture, in the field's own words. Every one is needed."""

    blocks: int
    width: int
    context: int
    query_heads: int
    kv_heads: int
    head_width: int
    rotated: int
    rope_sections: tuple[int, int, int, int]
    conv_kernel: int
    state_width: int
    key_heads: int
    value_heads: int
    attention_interval: int
    streams: int
    low_rank: int
    experts: int
    experts_used: int
    expert_width: int
    indexer_heads: int
    indexer_width: int
    top_k: int
    compress_ratio: int
    ple_layer: int
    ngram: int
    heads_per_ngram: int
    ple_conv_kernel: int

    @property
    def ple_heads(self) -> int:
        """Rows that one token reads."""
        return (self.ngram - 1) * self.heads_per_ngram

    @property
    def row_width(self) -> int:
        """Values of one table row: the heads together make one model width."""
        return self.width // self.ple_heads

    def is_attention(self, block: int) -> bool:
        """Whether that block is QSA; the others are gated delta nets."""
        return (block + 1) % self.attention_interval == 0


@dataclass(frozen=True)
class Preset:
    """A shape with its vocabulary, its number formats and its default table.

    special: reserved token ids and their names. seed, rows: the defaults. base_limit: head sizes start no higher
    (None: as high as the rows allow). complete: every tensor of the model, or the table alone.
    """

    name: str
    about: str
    dimensions: Dimensions
    vocab: int
    special: dict[int, str]
    eos: int
    padding: int
    image: int | None
    seed: int
    rows: int
    table_kind: GGMLQuantizationType
    weight_kind: GGMLQuantizationType
    complete: bool
    base_limit: int | None = field(default=None)


_NANO = Dimensions(
    blocks=8,
    width=640,
    context=65536,
    query_heads=8,
    kv_heads=2,
    head_width=64,
    rotated=32,
    rope_sections=(6, 5, 5, 0),
    conv_kernel=4,
    state_width=64,
    key_heads=2,
    value_heads=6,
    attention_interval=4,
    streams=4,
    low_rank=32,
    experts=16,
    experts_used=4,
    expert_width=64,
    indexer_heads=8,
    indexer_width=64,
    top_k=64,
    compress_ratio=4,
    ple_layer=1,
    ngram=3,
    heads_per_ngram=2,
    ple_conv_kernel=4,
)


def _flash_next(blocks: int, experts: int, experts_used: int) -> Dimensions:
    """Flash-Next's sizes per layer, with a number of layers and experts of one's own."""
    return Dimensions(
        blocks=blocks,
        width=2560,
        context=262144,
        query_heads=24,
        kv_heads=2,
        head_width=256,
        rotated=64,
        rope_sections=(11, 11, 10, 0),
        conv_kernel=4,
        state_width=128,
        key_heads=16,
        value_heads=48,
        attention_interval=4,
        streams=4,
        low_rank=320,
        experts=experts,
        experts_used=experts_used,
        expert_width=640,
        indexer_heads=4,
        indexer_width=128,
        top_k=2048,
        compress_ratio=4,
        ple_layer=1,
        ngram=3,
        heads_per_ngram=8,
        ple_conv_kernel=4,
    )


_SMALL_SPECIAL = {0: "<|pad|>", 1: "<|endoftext|>"}
_FLASH_NEXT_SPECIAL = {248044: "<|endoftext|>", 248056: "<|image_pad|>"}
FLASH_NEXT_ROWS = 320_001_536
FLASH_NEXT_BASE = 20_000_000  # its sixteen head sizes are the primes from here on

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="nano",
            about="a whole small model: 8 layers, 4 PLE heads, a table of 1,000,064 rows of 90 bytes, F32 weights",
            dimensions=_NANO,
            vocab=4096,
            special=_SMALL_SPECIAL,
            eos=1,
            padding=0,
            image=None,
            seed=0,
            rows=1_000_064,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.F32,
            complete=True,
        ),
        Preset(
            name="table",
            about="Flash-Next's metadata, vocabulary size and hash with nothing but the table, of any size and type",
            dimensions=_flash_next(blocks=48, experts=512, experts_used=10),
            vocab=248_320,
            special=_FLASH_NEXT_SPECIAL,
            eos=248_044,
            padding=248_044,
            image=248_056,
            seed=0,
            rows=(1 << 30) // 90,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.F32,
            complete=False,
            base_limit=FLASH_NEXT_BASE,
        ),
        Preset(
            name="mini",
            about="a whole model with Flash-Next's sizes per layer, 4 layers and 8 experts, Q8_0 weights",
            dimensions=_flash_next(blocks=4, experts=8, experts_used=2),
            vocab=4096,
            special=_SMALL_SPECIAL,
            eos=1,
            padding=0,
            image=None,
            seed=0,
            rows=1_600_000,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.Q8_0,
            complete=True,
        ),
    )
}
