"""Limits of memory: by a cgroup that is removed again, or by what there is instead, which is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measure.memory_limit import limited


def test_machine_without_cgroups_says_what_is_not_limited(tmp_path: Path) -> None:
    with limited(1 << 30, tmp_path) as limit:
        assert limit is not None
        assert limit.kind == "rlimit"
        assert limit.problem


def test_cgroup_is_removed_afterwards() -> None:
    with limited(1 << 28) as limit:
        group = limit.group if limit else None
        if group is None:
            pytest.skip("no cgroup can be made here")
        assert group.is_dir()
    assert not group.exists()
