"""The page: whole, self-contained, with every caveat, and nothing in it that could be run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import Result

from harness.engines.arms import Arm
from harness.measure.cells import Workload
from tests.harness.measure.conftest import made_up, plan, steady, store_of

Run = Callable[..., Result]


class _Tags(HTMLParser):
    """Counts what is opened and closed, and what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "img", "link", "hr", "input"):
            self.open.append(tag)
        self.loaded += [
            f"{tag} {value}" for name, value in attrs if name in ("src", "href") and not value.startswith("#")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def _page(folder: Path, run_command: Run, *options: str) -> str:
    result = run_command("report", folder, *options)
    assert result.exit_code == 0, result.output
    return (folder / "report.html").read_text(encoding="utf-8")


def test_page_is_whole_and_needs_nothing_else(tmp_path: Path, run_command: Run) -> None:
    made = plan(workloads=(Workload("prefill", 512), Workload("gather", 64)))
    store_of(made_up(made, steady(0.01, uring=0.5)), tmp_path / "run")
    page = _page(tmp_path / "run", run_command)
    tags = _Tags()
    tags.feed(page)
    assert not tags.wrong
    assert not tags.open
    assert not [item for item in tags.loaded if not item.startswith(("use #", "use url"))]
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"https?:", page)
    for heading in (
        "Speed over depth",
        "Gain over depth",
        "Share of waiting",
        "Read amplification",
        "Effective concurrency",
    ):
        assert heading in page
    assert "uring is 2.0" in page
    assert "grey band is what prefetch differs from itself by" in page
    assert page.count("<figure>") >= 12


def test_page_says_what_speaks_against_it(tmp_path: Path, run_command: Run) -> None:
    results = made_up(plan(repeats=1, depths=(0,)), steady(0.01, uring=0.5))
    store_of(results, tmp_path / "run")
    page = _page(tmp_path / "run", run_command)
    for part in ("too-few-repeats", "few-depths", "No difference is claimed."):
        assert part in page


def test_page_of_an_unfinished_run_lists_invalid_cells(tmp_path: Path, run_command: Run) -> None:
    results = made_up(plan(), steady(0.01))
    cells = results.planned()
    del results.cells[cells[-1].id]
    results.cells[cells[0].id] |= {"valid": False, "reasons": ["eviction-failed: 40% stayed"]}
    store_of(results, tmp_path / "run")
    page = _page(tmp_path / "run", run_command)
    for part in ("unfinished", "Invalid cells", "eviction-failed"):
        assert part in page


def test_names_are_escaped(tmp_path: Path, run_command: Run) -> None:
    made = plan(arms=(Arm("prefetch", "prefetch"), Arm("uring", "uring")))
    made.model["file"] = "<b>model</b>.gguf"
    store_of(made_up(made, steady(0.01)), tmp_path / "run")
    page = _page(tmp_path / "run", run_command)
    assert "<b>model" not in page
    assert "&lt;b&gt;model" in page


def test_same_results_give_the_same_page(tmp_path: Path, run_command: Run) -> None:
    store_of(made_up(plan(), steady(0.01)), tmp_path / "run")
    assert _page(tmp_path / "run", run_command) == _page(tmp_path / "run", run_command)


def test_other_baseline_and_json(tmp_path: Path, run_command: Run) -> None:
    store_of(made_up(plan(), steady(0.01, uring=0.5)), tmp_path / "run")
    page = _page(tmp_path / "run", run_command, "--baseline", "uring", "--json", str(tmp_path / "summary.json"))
    for part in ("<td>0.5", "no claim", "only prefetch ran twice", "as fast as uring,", "No difference is claimed."):
        assert part in page
    for part in ("prefetch is 0.5", "differs from itself by", "grey band"):  # uring never ran twice
        assert part not in page
    assert json.loads((tmp_path / "summary.json").read_text())["schema"] == "plegate.bench/2"
    assert run_command("report", tmp_path / "run", "--baseline", "nobody").exit_code == 2


def test_markdown_has_every_arm_at_every_depth_and_says_what_speaks_against_it(
    tmp_path: Path, run_command: Run
) -> None:
    results = made_up(plan(), steady(0.01, uring=0.5), process={"other_cpu": 1.0})
    store_of(results, tmp_path / "run")
    _page(tmp_path / "run", run_command, "--markdown", str(tmp_path / "summary.md"))
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "- **cold, prefill of 512, depth 0: uring is 2.0" in text
    assert "- busy-machine: " in text
    assert "A processor, 2 cores" in text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    found = [(row[0], row[1], row[7]) for row in rows if row[0].isdecimal()]
    assert [row[:2] for row in found] == [(d, a) for d in ("0", "1024", "4096") for a in ("prefetch", "uring")] * 2
    assert all(verdict == "faster" for _, arm, verdict in found if arm == "uring")
    assert {len(row) for row in rows} == {8}


@pytest.mark.parametrize("name", ["nothing-there", "empty"])
def test_folder_without_a_run_is_refused(tmp_path: Path, run_command: Run, name: str) -> None:
    (tmp_path / "empty").mkdir()
    result = run_command("report", tmp_path / name)
    assert result.exit_code == 2
    assert "run.json" in result.output
