"""Shared by all tests: shape checking of the model code, fixtures, and where the larger ones are."""

from __future__ import annotations

import os
import signal
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
