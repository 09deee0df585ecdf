"""Plots as SVG text, small enough to stand side by side on a wide screen and below each other on a narrow one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with any kind of sight; shapes and dashes say the same once more.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8b5a2b", "#5d3fd3")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES = ("-", "--", "-.", ":")
WIDTH_IN, HEIGHT_IN = 4.4, 2.9
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plegate",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e8ee",
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Look:
    """How one arm is drawn everywhere."""

    colour: str
    shape: str
    dash: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each arm, the same in every plot of a page."""
    return {
        name: Look(COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)], DASHES[(i // 2) % len(DASHES)])
        for i, name in enumerate(names)
    }


@dataclass(frozen=True)
class Series:
    """One line: x, y, and the spread around y where it is known."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def lines(
    series: Sequence[Series],
    look: dict[str, Look],
    x_label: str,
    y_label: str,
    *,
    ticks: Sequence[float] | None = None,
    tick_labels: Sequence[str] | None = None,
    log_y: bool = False,
    from_zero: bool = True,
    marks: bool = True,
    band: Sequence[tuple[float, float]] | None = None,
) -> str:
    """A panel of lines. ticks: places on the x axis that get a label, all others get none.

    band: a factor for each of some places; the band from 1 over it to it is grey, with a line at 1.
    """

    def draw(axes: Axes) -> None:
        if band is not None:
            axes.axhline(1, color="#9aa5b1", linewidth=1)
            places, factors = [place for place, _ in band], [factor for _, factor in band]
            axes.fill_between(places, [1 / factor for factor in factors], factors, color="#9aa5b1", alpha=0.25)
        for line in series:
            style = look[line.name]
            if line.low is not None and line.high is not None:
                below = [y - low for y, low in zip(line.y, line.low, strict=True)]
                above = [high - y for y, high in zip(line.y, line.high, strict=True)]
                axes.errorbar(line.x, line.y, [below, above], fmt="none", ecolor=style.colour, alpha=0.5, capsize=2)
            shape = style.shape if marks or len(line.x) == 1 else None
            axes.plot(line.x, line.y, style.dash, color=style.colour, marker=shape, markersize=4.5, linewidth=1.4)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        elif from_zero:
            axes.set_ylim(0, 1.06 * axes.dataLim.ymax)  # room above a line that is nearly flat
        if ticks is not None:
            axes.set_xticks(list(ticks), list(tick_labels or [f"{tick:g}" for tick in ticks]))

    return _svg(draw)


def bars(values: dict[str, float], look: dict[str, Look], label: str, *, log: bool = False) -> str:
    """A panel of horizontal bars, one per arm, with their numbers; lower where there are few."""

    def draw(axes: Axes) -> None:
        names = list(values)[::-1]
        numbers = [values[name] for name in names]
        drawn = axes.barh(names, numbers, color=[look[name].colour for name in names], height=0.62)
        axes.bar_label(drawn, [_number(number) for number in numbers], padding=3, fontsize=9)
        axes.set_xlabel(label)
        axes.grid(axis="y", visible=False)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.18)

    return _svg(draw, (WIDTH_IN, min(HEIGHT_IN, 0.8 + 0.52 * len(values))))


def swatch(look: Look) -> str:
    """The line and shape of an arm, for a legend in HTML."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1, 2], [0, 0, 0], look.dash, color=look.colour, marker=look.shape, markevery=[1], linewidth=1.8)
        axes.set_axis_off()

    return _svg(draw, (0.5, 0.16), tight=False)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _svg(draw: Any, size: tuple[float, float] = (WIDTH_IN, HEIGHT_IN), tight: bool = True) -> str:
    """What `draw` puts on a pair of axes, as an SVG element without date or XML head."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        axes = figure.add_subplot() if tight else figure.add_axes((0.02, 0.02, 0.96, 0.96))
        draw(axes)
        if tight:
            figure.tight_layout(pad=0.4)
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = content.getvalue()
    return text[text.index("<svg") :]
