"""The rules by which checkpoints choose hash constants, against what the published checkpoint holds."""

from __future__ import annotations

import pytest

from model_file.hash_constants import CHECKPOINT_SEED, checkpoint_multipliers, offsets_of, prime_sizes


def test_checkpoint_rule_gives_flash_next_constants() -> None:
    multipliers = (23703573157769, 20109073645365, 8052911324071)
    assert checkpoint_multipliers(CHECKPOINT_SEED, 0, 3, 248320) == multipliers
    sizes = prime_sizes(20_000_003, 16)
    assert (sizes[-1], sum(sizes)) == (20_000_171, 320_001_446)
    assert offsets_of(sizes)[-1] == sum(sizes) - sizes[-1]


@pytest.mark.parametrize(
    ("base", "expected"), [(2, (2, 3, 5, 7)), (1000, (1009, 1013, 1019, 1021)), (3215031751, (3215031767,))]
)
def test_prime_sizes_known(base: int, expected: tuple[int, ...]) -> None:
    """3215031751 is composite and passes Miller-Rabin for the bases 2, 3, 5 and 7."""
    assert prime_sizes(base, len(expected)) == expected
