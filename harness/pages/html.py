"""HTML pages that need nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from markupsafe import Markup

from harness.pages.figures import Look, swatch
from harness.pages.numbers import byte_size
from harness.pages.tables import STYLES, Column, Row, text_column

FACTS = (text_column(""), text_column("", wrap=True))
"""The columns of pairs of name and value."""


@dataclass(frozen=True)
class Panel:
    """A plot with what it shows, and what each line of it is where the page does not say so above it."""

    caption: str
    picture: str
    legend: list[tuple[str, str]] = field(default_factory=list)


def page(name: str, machine: Sequence[Row], **content: Any) -> str:
    """The page of a template; everything put into it is escaped unless it says it is safe."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("harness.pages", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = resources.files("harness.pages").joinpath("style.css").read_text(encoding="utf-8")
    template = environment.get_template(name)
    return template.render(style=style, cell_class=cell_class, facts=FACTS, machine=machine, **content)


def cell_class(column: Column, cell: str) -> Markup:
    """The style of a cell: by its column, and by what it says where it is a verdict."""
    look = {"green": "good", "yellow": "caution"}.get(found, "bad") if (found := STYLES.get(cell)) else ""
    classes = " ".join(filter(None, ["wrap" if column.wrap else "text" if column.justify == "left" else "", look]))
    return Markup(f' class="{classes}"' if classes else "")


def legend(look: Mapping[str, Look]) -> list[tuple[str, str]]:
    """Names with the line that stands for each."""
    return [(name, swatch(each)) for name, each in look.items()]


def machine_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a result depends on beside its inputs, of `harness.environment` and what a benchmark adds to it."""
    commit = facts.get("commit")
    dirty = ", with changes that are in no commit" if facts.get("dirty") else ""
    rows = [
        ("processor", f"{facts.get('cpu') or 'unknown'}, {facts.get('cores')} cores"),
        ("memory", byte_size(facts.get("ram_bytes"))),
        ("kernel", f"{facts.get('system')} {facts.get('kernel')}"),
        ("Python", str(facts.get("python"))),
        ("versions", ", ".join(f"{name} {found}" for name, found in facts.get("versions", {}).items() if found)),
        ("code", f"{commit[:12]}{dirty}" if commit else "not a git checkout"),
    ]
    if "disk" in facts:
        disk = f"{facts['file_system'] or 'unknown file system'} on {facts['disk'] or 'an unknown disk'}"
        rows.insert(2, ("storage", disk))
    return rows
