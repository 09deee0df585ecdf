"""Options of JAX that results depend on, set to what an engine is made for whatever the environment says.

They hold for the whole process. JAX takes them from JAX_* variables when it is imported; a platform that is not there
and flags that XLA ends the process for are the command line's to name.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

NEEDED = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_default_matmul_precision": None,
    "jax_debug_nans": False,
    "jax_debug_infs": False,
    "jax_disable_jit": False,
    "jax_enable_checks": False,
    "jax_check_tracer_leaks": False,
    "jax_no_tracing": False,
    "jax_no_execution": False,
    "jax_transfer_guard": "allow",
    "jax_transfer_guard_host_to_device": "allow",
    "jax_transfer_guard_device_to_device": "allow",
    "jax_transfer_guard_device_to_host": "allow",
    "jax_array_garbage_collection_guard": "allow",
}
"""Options of JAX and the values that engines are made for: 32-bit numbers, programs compiled and not interpreted, no
check of JAX's own between two steps. Non-finite logits are the engine's to name."""


def prepare_jax() -> None:
    """Set the options, before an engine computes anything."""
    set_option: Any = jax.config.update  # jax leaves it unannotated
    for name, value in NEEDED.items():
        set_option(name, value)


def use_program_cache(folder: str) -> None:
    """Keep compiled programs in `folder` for the next process; for all of JAX in this one."""
    options: Any = jax.config
    if options.jax_compilation_cache_dir != folder:
        compilation_cache.reset_cache()  # it would go on with the folder that it first wrote to
    set_option = options.update
    set_option("jax_compilation_cache_dir", folder)
    set_option("jax_persistent_cache_min_compile_time_secs", 0.2)
    set_option("jax_persistent_cache_min_entry_size_bytes", -1)
