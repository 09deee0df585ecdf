"""Which cells, in which order: all arms of a block one after the other, the next block backwards (ABBA)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from harness.engines.arms import DEVICE, OUTSIDE, TWIN, Arm
from harness.measure.cells import COLD, STATES, WARM, Cell, Group, Workload
from model_file.errors import InputError

REPEATS = 8  # from six the interval can leave 1 out, if all point one way; two may point the other way
MOST_REPEATS = 10_000
BLOCKS_A_REPEAT = 8  # of all groups together, so that measuring takes about as long as opening what is measured
LEAD_IN = 16  # tokens fed before a decode, so that it continues something at depth 0 too

# What the options of `plegate bench` leave open: of the command itself, `--preset speed`, and `nox -s bench`.
_OWN_MODES: tuple[str, ...] = ("resident", "mmap", "mmap-sequential", "mmap-random", "prefetch")
_OWN_MODES += ("direct", "direct-uncached", "uring", "uring-uncached", "auto")
_SERVERS = ("off=llama-server --lazy-mode off", "on=llama-server --lazy-mode on")
PRESETS: dict[str, dict[str, Any]] = {
    "modes": {
        "arms": ("prefetch", "mmap", "mmap-random", "uring", "auto", "resident"),
        "states": STATES,
        "depths": (0, 4096, 16384, 32768),
        "workloads": (Workload("prefill", 512), Workload("prefill", 2048), Workload("decode", 128)),
    },
    "speed": {
        "arms": ("resident", "llama-server"),
        "states": (WARM,),
        "depths": (0, 4096, 16384, 32768),
        "workloads": (Workload("prefill", 512), Workload("decode", 128)),
    },
    # What people measure by hand: llama.cpp's own report; a prompt of 800, 1,024 tokens, the same again; a long prompt.
    "v0.7.2": {
        "arms": _SERVERS,
        "states": (COLD,),
        "depths": (0, 4096, 16384, 32768),
        "workloads": (Workload("prefill", 512), Workload("prefill", 2048), Workload("decode", 128)),
    },
    "twice": {
        "arms": _SERVERS,
        "states": STATES,
        "depths": (0,),
        "workloads": (Workload("prefill", 800), Workload("decode", 1024)),
    },
    "long": {"arms": _SERVERS, "states": (COLD,), "depths": (0,), "workloads": (Workload("prefill", 65536),)},
    "trend-rows": {"arms": _OWN_MODES, "states": STATES, "depths": (0,), "workloads": (Workload("gather", 512),)},
    "trend-model": {
        "arms": ("prefetch", "mmap-random", "auto"),
        "states": STATES,
        "depths": (0, 4096),
        "workloads": (Workload("prefill", 256), Workload("decode", 16)),
    },
}


@dataclass(frozen=True)
class Matrix:
    """The full matrix of a run. arms[0] is the baseline; `twin` repeats it at the other end of every block.

    repeats: how often processes are started for all arms; blocks: measurements of a cell in the same processes.
    """

    arms: tuple[Arm, ...]
    states: tuple[str, ...]
    depths: tuple[int, ...]
    workloads: tuple[Workload, ...]
    repeats: int = REPEATS
    blocks: int = 1
    twin: bool = True

    def __post_init__(self) -> None:
        for name in ("arms", "states", "depths", "workloads"):
            values = getattr(self, name)
            if not values:
                raise InputError(f"the benchmark has no {name}, expected at least one")
            if len(set(values)) != len(values):
                raise InputError(f"the benchmark's {name} name one twice, expected each once: repeats are --repeats N")
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise InputError(f"--repeats {self.repeats}: expected 1 to {MOST_REPEATS:,}, {REPEATS} for claims")
        if not 1 <= self.blocks <= 1000:
            raise InputError(f"--blocks {self.blocks}: expected 1 to 1000")
        if min(self.depths) < 0:
            raise InputError(f"--depth {min(self.depths)}: expected 0 or more tokens")
        rows_only = [arm.name for arm in self.arms if arm.mode == DEVICE]
        if rows_only and any(work.needs_model for work in self.workloads):
            raise InputError(
                f"--arm {rows_only[0]}: the device reads rows and nothing else: expected --workload gather:N"
            )
        outside = [arm for arm in self.arms if arm.mode in OUTSIDE]
        if outside and not all(work.needs_model for work in self.workloads):
            raise InputError(f"--arm {outside[0].name}: an outside engine is measured with prefill:N and decode:N")
        kept = [arm for arm in outside if not arm.words]
        if kept and COLD in self.states:
            raise InputError(
                f"--arm {kept[0].name}: only a server that is started here is measured cold: expected a program, or "
                "--state warm (--preset speed sets it)"
            )

    @property
    def baseline(self) -> Arm:
        """What all others are compared with."""
        return self.arms[0]

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        """The arms of one block in order: the baseline at one end, its twin at the other."""
        twin = (replace(self.baseline, name=self.baseline.name + TWIN),) if self.twin else ()
        return self.arms + twin

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is measured of every arm, by depth."""
        return tuple(Group(s, d, w) for d in self.depths for w in self.workloads for s in self.states)

    @property
    def context(self) -> int:
        """Positions that a sequence needs room for: the deepest cell, what is fed before a decode, and its warm-up."""
        longest = max((work.tokens for work in self.workloads if work.needs_model), default=0)
        return max(self.depths) + longest + 3 * LEAD_IN

    def cells_of(self, repeat: int) -> Iterator[Cell]:
        """The cells of a repeat in the order of measuring.

        A block is one measurement of one group by every arm, one after the other. The next block of the group goes
        backwards, and each one turns round from repeat to repeat: what drifts with time hits every arm as often early
        as late.
        """
        for block in range(self.blocks):
            for number, group in enumerate(self.groups):
                backwards = (repeat + block + number) % 2 == 1
                for arm in self.all_arms[:: -1 if backwards else 1]:
                    if arm.mode == DEVICE and group.state == WARM:
                        continue  # it reads past the page cache: there is no such cell
                    yield Cell(arm.name, group.state, group.depth, group.workload, repeat, block)


def blocks_for(groups: int) -> int:
    """Blocks of each group in a repeat, an even number, so that both directions are there as often."""
    return max(2, 2 * -(-BLOCKS_A_REPEAT // (2 * groups)))
