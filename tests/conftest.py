"""Shared by all tests: shape checking of the model code, fixtures, and where the larger ones are."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# The model code is checked against its shape annotations in every test; `fast.rows` has none, and is timed.
_MODEL_CODE = ["reference", "fast.model", "fast.engine"]
_HOOK = install_import_hook(_MODEL_CODE, "beartype.beartype")

FIXTURES = Path(__file__).parent / "fixtures"
LARGER_FIXTURES = Path(__file__).parents[2] / "shared" / "fixtures"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background with Ctrl-C ignored, and so would everything that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

HOSTILE = (
    "fast/engine/test_engine.py::test_a_fork_is_refused_by_name_and_its_parent_goes_on",
    "fast/engine/test_environment.py",
    "fast/engine/test_nonfinite.py",
    "fast/rows/test_reader_forks.py",
    "fast/rows/test_reader_threads.py",
    "harness/commands/test_exit_codes.py::test_environment_of_others_is_no_difference",
    "harness/commands/test_terminals.py",
    "harness/gate/test_evidence_names.py",
    "harness/gate/test_scan.py",
    "harness/measure/test_advise.py::test_advise_praises_no_table_of_holes",
    "harness/engines/test_serving.py::test_a_server_and_its_children_end_with_plegate",
    "harness/engines/test_arms.py::test_arm_named_after_a_mode_that_it_is_not_is_refused",
    "harness/measure/test_runner.py::test_changed_model_ends_the_run_with_its_own_verdict",
    "harness/measure/worker/test_proof.py::test_cell_of_a_table_with_holes_says_so",
    "harness/pages/test_tables.py",
    "harness/test_atomic.py::test_killed_writer_leaves_no_part",
    "harness/test_inputs.py",
    "model_file/test_gguf_file.py",
    "model_file/test_hostile_headers.py",
    "model_file/test_shard.py",
)
"""What tests/README.md names beside the code that it is about: marked like the tests of tests/hostile."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(HOSTILE):
            item.add_marker(pytest.mark.hostile)


MOST_MAPPINGS = 25_000  # of a process; the kernel ends what XLA does at 65,530, and each compiled program has several


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs() -> Iterator[None]:
    """Forget compiled programs between modules when there are many; the next ones come from the program cache."""
    yield
    mappings = Path("/proc/self/maps")
    if "jax" in sys.modules and mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        sys.modules["jax"].clear_caches()


settings.register_profile(
    "gate", derandomize=True, deadline=None, max_examples=50, suppress_health_check=list(HealthCheck)
)
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("PLEGATE_HYPOTHESIS", "gate"))


def larger_fixture(name: str) -> Path:
    """A fixture that is not part of the repository; the test says that it was skipped where the folder is absent."""
    path = LARGER_FIXTURES / name
    if not path.exists():
        pytest.skip(f"{name} is not in the repository: needs the folder shared/fixtures beside it")
    return path


@pytest.fixture
def tiny() -> Path:
    return FIXTURES / "tiny.gguf"


@pytest.fixture
def tiny_quant() -> Path:
    return FIXTURES / "tiny-quant.gguf"
