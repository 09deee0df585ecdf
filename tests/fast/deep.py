"""The reference at depth, and its state as the fast engine's: so that a window far down is compared by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np

from fast.engine.engine import FastEngine
from fast.engine.sequence import Saved
from fast.rows import locate_table, open_rows
from fast.rows.dequantize import dequantize_numpy
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from reference.attention import AttentionState
from reference.closeness import gaps
from reference.decode import Session
from reference.delta_net import DeltaNetState
from reference.layers import rms_norm, rotate
from reference.parameters import Attention, load_parameters


class Reference:
    """A session of the reference on a model file."""

    def __init__(self, path: Path, room: int) -> None:
        self.file = open_gguf(path)
        self.reader = open_rows(locate_table(self.file), "mmap")
        self.config = config_from(self.file)
        kind = self.reader.table.type
        self.parameters = load_parameters(self.file, self.config)
        self.session = Session(
            self.parameters, self.config, lambda rows: dequantize_numpy(self.reader.gather(rows), kind), room
        )

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.close()
        self.file.close()

    def feed_with_gaps(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Logits [t, v], and the smallest gap of any selection at every position."""
        logits, named = self.session.feed_recorded(tokens)
        found = gaps(named, self.config)
        return logits, np.min([found[name] for name in found if name.endswith(("block_gap", "expert_gap"))], axis=0)

    def saved(self, engine: FastEngine, tokens: Sequence[int]) -> Saved:
        """This session's state, which is that after `tokens`, as a saved sequence of the fast engine."""
        state, filled = self.session.state, len(tokens)
        assert int(state.position) == filled
        leaves = [np.array(state.position, np.int32), np.array(state.ple_past)]
        caches = []
        for layer, mixer in enumerate(state.mixers):
            if isinstance(mixer, DeltaNetState):
                leaves += [np.array(mixer.conv), np.array(mixer.memory)]
                continue
            assert isinstance(mixer, AttentionState)
            ratio = self.config.compress_ratios[layer]
            raw = np.array(mixer.index_keys)[:filled]
            before = np.zeros((ratio - 1, raw.shape[1]), np.float32)
            leaves.append(np.concatenate([before, raw])[-(ratio - 1) :])
            keys, values = (
                np.ascontiguousarray(np.array(x)[:filled].swapaxes(0, 1)) for x in (mixer.keys, mixer.values)
            )
            caches.append((keys, values, self._block_keys(layer, raw, ratio)))
        assert [leaf.shape for leaf in leaves] == [
            leaf.shape for leaf in jax.tree_util.tree_leaves(engine.new_sequence().state.recurrent)
        ]
        return Saved(engine.identity, tuple(tokens), tuple(leaves), tuple(caches), None)

    def _block_keys(self, layer: int, raw: np.ndarray, ratio: int) -> np.ndarray:
        """Keys [j, blocks] of the complete blocks, as the reference forms them when it scores."""
        mixer = self.parameters.layers[layer].mixer
        assert isinstance(mixer, Attention)
        assert mixer.indexer is not None
        blocks = raw.shape[0] // ratio
        if not blocks:
            return np.zeros((raw.shape[1], 0), np.float32)
        means = jnp.mean(jnp.asarray(raw[: blocks * ratio]).reshape(blocks, ratio, -1), axis=1)
        normed = rms_norm(means, self.config.rms_eps) * mixer.indexer.k_norm
        turned = rotate(normed[:, None, :], jnp.arange(blocks) * ratio, self.config)[:, 0]
        return np.ascontiguousarray(np.asarray(turned).T)
