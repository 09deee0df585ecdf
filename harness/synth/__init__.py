"""The deterministic model maker behind `plegate synth`, and the cache of made models.

It may import `model_file` and the harness's errors and atomic files: models are made without running any.
"""

from harness.synth.making import cache_folder, ensure_model, make_model, make_shards
from harness.synth.presets import PRESETS
from harness.synth.recipe import Head, Recipe, make_recipe

__all__ = ["PRESETS", "Head", "Recipe", "cache_folder", "ensure_model", "make_model", "make_recipe", "make_shards"]
