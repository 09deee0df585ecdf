"""Weights of a file as float32, one group of the table at a time, each tensor once.

Quantized types become float32 through the `gguf` package's own dequantizers. A `.scale` multiplies a product, which is
the same as multiplying its matrix. Fused experts are cut in two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.inventory import inventory_to_load, scale_of
from model_file.tensors import FUSED, FUSED_PARTS, Group, as_stored, sizes

FloatArray: TypeAlias = npt.NDArray[np.float32]
PackedArray: TypeAlias = npt.NDArray[np.uint8]
_PLAIN = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}


@dataclass(frozen=True)
class PackedTensor:
    """A large matrix as its file has it: a read-only view [out, row bytes], and the factor of its products."""

    data: PackedArray
    type: gguf.GGMLQuantizationType
    factor: float | None


class WeightSource:
    """Reads tensors of an open model by the table and remembers which are still to be read."""

    def __init__(self, model: GgufFile, config: ModelConfig, *, head: bool = False, packed: bool = False) -> None:
        """head: of the draft head, in place of the trunk. packed: large matrices come as `PackedTensor`, and routed
        experts do not come: they are read when they are chosen.

        Raises: InputError naming every tensor that is missing, unused or of a wrong shape.
        """
        self.model, self.config, self.inventory = model, config, inventory_to_load(model, config)
        self._keeps_packed = packed
        every = {*self.inventory.weights, *self.inventory.scales}
        self.left = every & self.inventory.head if head else every - self.inventory.head
        if self.inventory.alone and not head:
            raise InputError(
                f"{model.paths[0]}: holds the MTP head alone, expected a whole model: name the model, and this with "
                "--mtp FILE"
            )

    def group(self, prefix: str, group: Group) -> dict[str, Any]:
        """The tensors of a group by their fields, in the shapes of the table; optional ones only where they are."""
        values: dict[str, Any] = {}
        for tensor in as_stored(prefix, group, self.inventory.weights):
            name, shape = prefix + tensor.name, sizes(tensor.shape, self.config)
            if name not in self.inventory.weights:
                continue
            if self._keeps_packed and tensor.quantized and len(shape) == 3:
                self.left -= {name, scale_of(name)}  # whoever reads experts reads both
            elif (
                self._keeps_packed
                and tensor.quantized
                and self.inventory.weights[name].type != gguf.GGMLQuantizationType.F32
            ):
                values[tensor.field] = self._packed(name)
            else:
                values[tensor.field] = self._scaled(name).reshape(shape)
        if FUSED.field in values:
            halves = np.split(values.pop(FUSED.field), len(FUSED_PARTS), axis=1)
            values |= {part.field: half for part, half in zip(FUSED_PARTS, halves, strict=True)}
        return values

    def check_all_read(self) -> None:
        """Loading is a bijection: what the inventory accepted must have been asked for."""
        assert not self.left, f"all tensors of the file must be loaded: {sorted(self.left)} were not"

    def _scaled(self, name: str) -> FloatArray:
        values = self._read(name)
        if scale_of(name) not in self.inventory.scales:
            return values
        factors = self._read(scale_of(name))  # [1], or one for each expert, the first axis
        return values * factors.reshape(-1, *[1] * (values.ndim - 1))

    def _packed(self, name: str) -> PackedTensor:
        self.left.remove(name)
        factor = float(self._read(scale_of(name))[0]) if scale_of(name) in self.inventory.scales else None
        return PackedTensor(self.model.packed(name), self.model.tensors[name].type, factor)

    def _read(self, name: str) -> FloatArray:
        self.left.remove(name)
        return dequantized(self.model, name)


def dequantized(model: GgufFile, name: str) -> FloatArray:
    """A tensor as float32, in its shape. Raises: KeyError."""
    info, packed = model.tensors[name], model.packed(name)
    # The package's dequantizer takes bytes of quantized types, and numbers of the two plain ones.
    values = gguf.quants.dequantize(packed.view(_PLAIN[info.type]) if info.type in _PLAIN else packed, info.type)
    return values.astype(np.float32, copy=False).reshape(info.shape)
