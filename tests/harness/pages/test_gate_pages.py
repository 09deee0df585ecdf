"""What machines read: JSON by its schema, JUnit XML by its schema, one HTML page that needs nothing else."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any
from xml.etree import ElementTree as Tree

import jsonschema
import pytest
import xmlschema

from harness.cases.case import LEVELS
from harness.gate.checks import CHECKS
from harness.gate.verdicts import GateResult
from harness.pages.gate_page import gate_as_html, gate_as_junit
from harness.pages.gate_text import cell, gate_as_json, gate_as_markdown, repeat_command, summary
from tests.harness.answers.examples import ROW, STALE, TOKEN, UNSTEADY, result

RESULTS = {
    "equal": (result(), 0, "verdict: equal"),
    "different": (result(ROW, TOKEN), 1, "verdict: different. 1 of 2 modes equal, 1 different"),
    "unsteady": (result(UNSTEADY), 1, "verdict: different. 1 of 2 modes equal, 1 unsteady"),
    "not run": (result(not_run="ran as direct: ENOSYS"), 3, "verdict: incomplete. 1 of 2 modes equal, 1 not run"),
    "stale golden": (result(about_file=(STALE,)), 1, "verdict: different. golden"),
}
SCHEMA = json.loads(resources.files("harness.schema").joinpath("gate.json").read_text())


@pytest.mark.parametrize("name", list(RESULTS))
def test_result_decides_exit_code_and_verdict(name: str) -> None:
    found, code, words = RESULTS[name]
    assert found.exit_code == code
    assert summary(found).startswith(words)


@pytest.mark.parametrize("name", list(RESULTS))
def test_json_validates(name: str) -> None:
    content = json.loads(json.dumps(gate_as_json(RESULTS[name][0]), allow_nan=False))
    jsonschema.validate(content, SCHEMA, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: c.pop("verdict"), "verdict"),
        (lambda c: c.update(exit_code=2), "exit_code"),
        (lambda c: c.update(schema="plegate.gate/3"), "schema"),
        (lambda c: c["modes"][0].update(verdict="fine"), "modes"),
        (lambda c: c["modes"][1]["findings"][0].update(level="bytes"), "modes"),
        (lambda c: c["cases"][0].update(reason=""), "cases"),
        (lambda c: c["margins"][0].update(margins=[-1.0]), "margins"),
    ],
)
def test_schema_can_fail(change: Any, where: str) -> None:
    content = json.loads(json.dumps(gate_as_json(RESULTS["different"][0])))
    broken = copy.deepcopy(content)
    change(broken)
    with pytest.raises(jsonschema.ValidationError, match=where):
        jsonschema.validate(broken, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_json_of_levels_and_checks_is_what_the_schema_lists() -> None:
    levels = SCHEMA["$defs"]["finding"]["properties"]["level"]["enum"]
    assert set(levels) == {check.level for check in CHECKS.values()}
    assert set(LEVELS) <= set(levels)


@pytest.mark.parametrize("name", list(RESULTS))
def test_junit_validates(name: str) -> None:
    text = gate_as_junit(RESULTS[name][0])
    validator = xmlschema.XMLSchema(resources.files("harness.schema").joinpath("junit.xsd").read_text())
    validator.validate(text)
    root = Tree.fromstring(text)
    failures = root.findall(".//failure")
    assert int(root.get("failures", "")) == len(failures)
    assert bool(failures) == (RESULTS[name][1] == 1)
    assert int(root.get("tests", "")) == len(root.findall(".//testcase"))
    assert int(root.get("skipped", "")) == len(root.findall(".//skipped"))
    if name == "not run":
        assert "ran as direct" in text


@pytest.mark.parametrize("name", RESULTS)
def test_markdown_has_the_verdict_and_a_line_for_each_mode(name: str) -> None:
    found = RESULTS[name][0]
    text = gate_as_markdown(found)
    assert text.startswith(f"**{summary(found)}**\n")
    for mode in found.modes:
        assert any(
            line.startswith(f"| {mode.name} |") and line.endswith(f"{mode.verdict} |") for line in text.split("\n")
        )


def test_each_level_counts_by_itself() -> None:
    """A level of which nothing was compared is never shown with another one's number, or as passed."""
    mode = result().modes[0]
    assert [cell(mode, level) for level in LEVELS] == ["8", "1", "2", "3"]
    for level, name in {"rows": "rows", "PLE layer": "ple", "logits": "logits", "tokens": "tokens"}.items():
        found = result()
        setattr(found.modes[0], f"{name}_compared", 0)
        assert [cell(found.modes[0], each) == "-" for each in LEVELS] == [each == level for each in LEVELS]
        suite = next(each for each in Tree.fromstring(gate_as_junit(found)) if each.get("name") == "resident")
        skipped = {test.get("name") for test in suite if test.find("skipped") is not None}
        assert skipped == ({level, "control"} if level == "rows" else {level})


def test_junit_holds_what_xml_cannot() -> None:
    found = result(ROW)
    found.modes[1].name = "mmap@\x1b[31m\ud800name"
    validator = xmlschema.XMLSchema(resources.files("harness.schema").joinpath("junit.xsd").read_text())
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        validator.validate(gate_as_junit(result()).replace(' errors="0"', ""))
    text = gate_as_junit(found)
    validator.validate(text)
    assert r'name="mmap@\x1b[31m\ud800name"' in text


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", list(RESULTS))
def test_html_is_one_page_that_needs_nothing(name: str) -> None:
    found = RESULTS[name][0]
    page = _Page()
    text = gate_as_html(found)
    page.feed(text)
    assert summary(found) in page.text
    assert "a <model>.gguf" in page.text  # escaped in the source
    assert "<model>" not in text
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"@import|url\((?!#)", text)
    assert page.tags.count("svg") == 5  # time, calls, margins, and two lines of its legend
    assert ("What differs" in page.text) == (RESULTS[name][1] == 1)


def test_repeat_command_is_short_and_exact() -> None:
    found: GateResult = result(ROW)
    assert repeat_command(found) == "plegate gate 'a <model>.gguf' --case tiny --mode uring"
    found.repeat = "plegate gate 'a <model>.gguf' --mode uring@copy.gguf"
    found.modes[1].name = "uring@copy.gguf"
    assert repeat_command(found).endswith("--case tiny --mode uring@copy.gguf")
    found.goldens = {}
    assert repeat_command(found) == found.repeat
