"""Whatever the environment says to JAX and XLA about arithmetic, logits are the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
WITHIN = {
    "JAX_ENABLE_X64": "1",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
    "JAX_DEBUG_NANS": "1",
    "JAX_DEBUG_INFS": "1",
    "JAX_DISABLE_JIT": "1",
    "JAX_CHECK_TRACER_LEAKS": "1",
    "JAX_TRANSFER_GUARD": "disallow",
    "JAX_ARRAY_GARBAGE_COLLECTION_GUARD": "fatal",
}
"""All that is set at once and must make no difference."""


def run(program: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    return subprocess.run(
        [sys.executable, *program],
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def answer(environment: dict[str, str], before: str = "") -> tuple[str, str]:
    """A digest of logits and their type, and the errors of a process with an engine of single tokens."""
    program = f"""
import hashlib
from fast.engine import environment
{before}
from tests.fast.engines import opened
with opened("tiny", chunk=1) as engine:
    logits = engine.new_sequence().feed([5, 6, 7])
    print(logits.dtype, hashlib.sha256(logits.tobytes()).hexdigest())
"""
    done = run(["-c", program], environment)
    return done.stdout, done.stderr


def test_options_of_jax_change_nothing() -> None:
    plain, errors = answer({})
    assert plain.startswith("float32 "), errors
    assert answer(WITHIN)[0] == plain
    # The check can fail: without what the engine sets, the same environment is another answer, or none.
    assert answer(WITHIN, before="environment.NEEDED.clear()")[0] != plain


def test_flags_of_xla_do_not_make_it_inexact() -> None:
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true --xla_cpu_enable_fast_min_max=true"}
    assert answer(flags)[0] == answer({})[0]
