"""Draws how costs grow: one panel for each kind of growth, as SVG text. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from typing import NamedTuple

PANEL_WIDTH, PANEL_HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 24, 44, 40
_ACROSS = 2
# (colour, dashes) of the series, in their order.
_STYLES = (("#1f6f8b", ""), ("#c8553d", ""), ("#1f6f8b", "4 3"), ("#c8553d", "4 3"))
_STEPS = 4


class Panel(NamedTuple):
    """``costs``: series → the cost at each of ``sizes``, which ascend and are above 0."""

    title: str
    unit: str
    sizes: Sequence[float]
    costs: Mapping[str, Sequence[float]]


def picture(panels: Sequence[Panel]) -> str:
    """The panels side by side. Sizes have a logarithmic axis; costs begin at 0, so that flat looks flat."""
    rows = -(-len(panels) // _ACROSS)
    drawn = []
    for number, each in enumerate(panels):
        x, y = number % _ACROSS * PANEL_WIDTH, number // _ACROSS * PANEL_HEIGHT
        drawn.append(f'<g transform="translate({x} {y})">{_panel(each)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_ACROSS * PANEL_WIDTH}" height="{rows * PANEL_HEIGHT}"'
        f' font-family="sans-serif" font-size="11" fill="#333">\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    wide, high = PANEL_WIDTH - _LEFT - _RIGHT, PANEL_HEIGHT - _TOP - _BOTTOM
    top = _rounded_up(max([cost for costs in panel.costs.values() for cost in costs], default=0))
    first, last = log10(panel.sizes[0]), log10(panel.sizes[-1])

    def across(size: float) -> float:
        return _LEFT + wide * ((log10(size) - first) / (last - first) if last > first else 0.5)

    def up(cost: float) -> float:
        return _TOP + high * (1 - cost / top)

    parts = [f'<text x="{_LEFT}" y="16" font-size="13" font-weight="bold">{escape(panel.title)}</text>']
    for step in range(_STEPS + 1):
        cost = top * step / _STEPS
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{up(cost):.1f}" y2="{up(cost):.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{up(cost) + 4:.1f}" text-anchor="end">{cost:,.4g}</text>'
        )
    parts.append(f'<text x="{_LEFT - 6}" y="{_TOP - 8}" text-anchor="end">{escape(panel.unit)}</text>')
    parts += [
        f'<text x="{across(size):.1f}" y="{_TOP + high + 16}" text-anchor="middle">{size:,.5g}</text>'
        for size in panel.sizes
    ]
    for number, (name, costs) in enumerate(panel.costs.items()):
        colour, dashes = _STYLES[number % len(_STYLES)]
        points = " ".join(f"{across(size):.1f},{up(cost):.1f}" for size, cost in zip(panel.sizes, costs, strict=True))
        drawn = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        x, y = _LEFT + number * wide // len(panel.costs), PANEL_HEIGHT - 8
        parts.append(
            f'<polyline points="{points}" {drawn}/><line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" {drawn}/>'
            f'<text x="{x + 22}" y="{y}">{escape(name)}</text>'
        )
    return "".join(parts)


def _rounded_up(cost: float) -> float:
    """The end of the axis: 1, 2 or 5 times a power of ten."""
    if cost <= 0:
        return 1.0
    power = 10.0 ** (len(f"{cost:.0f}") - 1) if cost >= 1 else 10.0 ** -len(f"{1 / cost:.0f}")
    return next((step * power for step in (1, 2, 5, 10, 20) if step * power >= cost), 50 * power)
