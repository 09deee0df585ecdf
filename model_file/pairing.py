"""Which draft head goes with which model: the head inside the file, or a file of its own, checked against the model."""

from __future__ import annotations

from dataclasses import fields, replace

from model_file.config import ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.inventory import take_inventory

_OF_EITHER = ("name", "context", "skipped_layers", "head_ratio", "ple")  # what a head need not share with its trunk


def with_draft_head(config: ModelConfig, model: GgufFile, holder: GgufFile) -> ModelConfig:
    """The model's configuration with the draft head that `holder` has: the model itself, or another file.

    Raises: InputError when it has none, or one of another model, naming every value that differs.
    """
    path, of_holder = holder.paths[0], config if holder is model else config_from(holder)
    if not take_inventory(holder, of_holder).head:
        advice = "name the file that has it (--mtp FILE), or leave drafts out" if holder is model else "name another"
        raise InputError(f"{path}: holds no MTP head (blk.{of_holder.layers}.nextn.*), expected one: {advice}")
    differing = [
        f"{path}: {field.name}: found {getattr(of_holder, field.name)!r}, expected {getattr(config, field.name)!r}, as "
        f"{model.paths[0].name} has it: the MTP head is of another model"
        for field in fields(ModelConfig)
        if field.name not in _OF_EITHER and getattr(of_holder, field.name) != getattr(config, field.name)
    ]
    if differing:
        raise InputError("\n".join(differing))
    return replace(config, skipped_layers=of_holder.skipped_layers, head_ratio=of_holder.head_ratio)
