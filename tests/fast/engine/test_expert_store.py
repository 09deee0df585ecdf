"""The ring of experts: what stands in a slot is what the file has, also when reading fails on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from fast.engine.expert_store import ExpertStore
from fast.model.packed_product import side_by_side
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from tests.fast.engines import find

NONE = np.empty(0, np.int32)


@contextmanager
def opened_store(slots: int, name: str = "tiny-quant") -> Iterator[tuple[ExpertStore, GgufFile]]:
    with open_gguf(find(f"{name}.gguf")) as model:
        config = config_from(model)
        store = ExpertStore(model, config, "mmap", 1 << 30)
        size = store.shape(0).size_bytes
        store.close()
        store = ExpertStore(model, config, "mmap", slots * size)
        assert store._rings[0].slots == slots
        try:
            yield store, model
        finally:
            store.close()


def check(store: ExpertStore, model: GgufFile, layer: int, experts: list[int], busy: np.ndarray = NONE) -> np.ndarray:
    slots = store.take(layer, np.array(experts, np.int64), busy)
    for matrix, name in enumerate(("gate", "up", "down")):
        tensor = f"blk.{layer}.ffn_{name}_exps.weight"
        kind = GGMLQuantizationType(model.tensors[tensor].type)
        for expert, slot in zip(experts, slots.tolist(), strict=True):
            expected = side_by_side(model.packed(tensor)[expert], kind)
            shown = [np.asarray(part)[slot] for part in store.device(layer)[matrix]]
            assert all(np.array_equal(*pair) for pair in zip(shown, expected, strict=True)), (layer, expert, name)
    return slots


def test_slots_hold_what_the_file_has_while_the_ring_turns() -> None:
    rng = np.random.default_rng(4)
    with opened_store(5) as (store, model):
        for _ in range(40):
            check(store, model, int(rng.integers(0, 4)), rng.permutation(store.experts)[:2].tolist())
        assert store.counters.asked == 80 > store.counters.read > 40


def test_what_is_there_is_not_read_again_and_busy_slots_stay() -> None:
    with opened_store(5) as (store, model):
        first = check(store, model, 0, [3, 1])
        assert np.array_equal(check(store, model, 0, [3, 1]), first) and store.counters.read == 2
        check(store, model, 1, [0, 1, 2], busy=first)
        assert np.array_equal(check(store, model, 0, [3, 1]), first) and store.counters.read == 5
        second = check(store, model, 2, [0, 1], busy=first)
        assert not set(second.tolist()) & set(first.tolist())


def test_a_failed_read_leaves_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_store(4) as (store, model):
        check(store, model, 0, [0, 1, 2, 3])
        reader = store._rings[0].readers[1]

        def fail(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(reader, "gather", fail)
            with pytest.raises(OSError, match="Input/output error"):
                store.take(1, np.array([0, 1]), NONE)
        check(store, model, 0, [0, 1])  # their slots were given to what was not read
        check(store, model, 1, [0, 1])


def test_another_mode_reads_anew() -> None:
    with opened_store(8) as (store, model):
        check(store, model, 0, [0, 1])
        store.use("prefetch")
        check(store, model, 0, [0, 1])
        assert store.counters.read == 4
        with pytest.raises(InputError, match="unknown row mode"):
            store.use("nonsense")
        assert store.mode == "prefetch"
        check(store, model, 0, [0, 1])
