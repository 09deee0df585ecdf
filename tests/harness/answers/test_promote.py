"""Promoting: a reason, a clean tree and large margins, or nothing changes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.answers.promote import promote
from harness.answers.record import dumps
from harness.answers.store import read_golden
from harness.cases.registry import case_by_id
from harness.commands.golden import golden_app
from model_file.errors import InputError
from tests.harness.answers.examples import golden


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed tree with an empty goldens folder."""
    tree = tmp_path / "tree"
    (tree / "goldens").mkdir(parents=True)
    (tree / "file").write_text("committed")
    for command in (
        ["init", "-q"],
        ["add", "file"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", "-C", str(tree), *command], check=True)
    return tree


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    folder = tmp_path / "candidates"
    folder.mkdir()
    (folder / "tiny.json").write_text(dumps(golden()))
    return folder


def test_promote_moves_candidate_with_its_reason(checkout: Path, candidates: Path) -> None:
    target = promote("tiny", "  first answer ", candidates, checkout)
    assert target == checkout / "goldens" / "tiny.json"
    moved = read_golden("tiny", target.parent)
    assert moved is not None
    assert moved.reason == "first answer"
    assert moved.prompts == golden().prompts
    assert (candidates / "tiny.json").exists()


def test_promote_wants_answers_to_the_registered_case(checkout: Path, tmp_path: Path) -> None:
    case, good = case_by_id("tiny"), read_golden("tiny")
    assert good is not None
    first, *rest = good.prompts
    bad = {
        "prompts none": replace(good, prompts=()),
        "as registered": replace(good, prompts=(replace(first, ids=(*first.ids, 5)), *rest)),
        "has 31 tokens": replace(good, prompts=(replace(first, generated=first.generated[:-1]), *rest)),
        "and 31 margins": replace(good, prompts=(replace(first, margins=first.margins[:-1]), *rest)),
    }
    for words, candidate in bad.items():
        (tmp_path / "tiny.json").write_text(dumps(candidate))
        with pytest.raises(InputError, match=words):
            promote("tiny", "a reason", tmp_path, checkout, case)
    assert list((checkout / "goldens").iterdir()) == []
    (tmp_path / "tiny.json").write_text(dumps(good))
    assert promote("tiny", "a reason", tmp_path, checkout, case).exists()


@pytest.mark.parametrize("reason", ["", "  "])
def test_promote_refuses_no_reason(checkout: Path, candidates: Path, reason: str) -> None:
    with pytest.raises(InputError, match="--reason: found nothing"):
        promote("tiny", reason, candidates, checkout)
    assert list((checkout / "goldens").iterdir()) == []


@pytest.mark.parametrize("name", ["file", "new"])
def test_promote_refuses_uncommitted_changes(checkout: Path, candidates: Path, name: str) -> None:
    (checkout / name).write_text("changed")
    with pytest.raises(InputError, match=f"uncommitted changes in {name}; expected a clean tree"):
        promote("tiny", "why", candidates, checkout)
    assert list((checkout / "goldens").iterdir()) == []


@pytest.mark.parametrize(("margin", "allowed"), [(1e-3, True), (0.99e-3, False), (0.0, False)])
def test_promote_refuses_margin_below_ten_times_the_error(
    checkout: Path, candidates: Path, margin: float, allowed: bool
) -> None:
    (candidates / "tiny.json").write_text(dumps(golden(margin=margin)))
    if allowed:
        promote("tiny", "why", candidates, checkout)
        return
    with pytest.raises(InputError, match=r"prompt only, step 1: found a margin of .* expected at least 0\.001"):
        promote("tiny", "why", candidates, checkout)
    assert list((checkout / "goldens").iterdir()) == []


def test_promote_refuses_margin_that_is_no_number(checkout: Path, candidates: Path) -> None:
    text = dumps(golden()).replace("0.02", "NaN")
    (candidates / "tiny.json").write_text(text)
    with pytest.raises(InputError, match="found a margin of nan"):
        promote("tiny", "why", candidates, checkout)


def test_promote_names_missing_candidate(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such candidate; make it with `plegate golden record tiny`"):
        promote("tiny", "why", tmp_path / "nowhere", checkout)


def test_promote_refuses_folder_that_is_no_checkout(candidates: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(InputError, match="not a checkout"):
        promote("tiny", "why", candidates, tmp_path / "plain")


@pytest.mark.parametrize(
    "arguments", [["promote", "no-such-case", "--reason", "x"], ["diff", "no-such-case"], ["record", "no-such-case"]]
)
def test_golden_command_refuses_unknown_case(arguments: list[str]) -> None:
    result = CliRunner().invoke(golden_app, arguments)
    assert isinstance(result.exception, InputError)
    assert "expected one of pico-texts" in str(result.exception)


def test_golden_diff_says_alike_and_different(candidates: Path) -> None:
    recorded = read_golden("tiny")
    assert recorded is not None
    (candidates / "tiny.json").write_text(dumps(recorded))
    same = CliRunner().invoke(golden_app, ["diff", "tiny", "--candidates", str(candidates)])
    assert (same.exit_code, same.output.strip()) == (0, "tiny: candidate and golden answer alike")
    (candidates / "tiny.json").write_text(dumps(golden()))
    other = CliRunner().invoke(golden_app, ["diff", "tiny", "--candidates", str(candidates)])
    assert other.exit_code == 1
    assert "prompt 0: removed" in other.output
