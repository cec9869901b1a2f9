"""Series as SVG and as CSV. Pure.

The pictures are drawn here, not in the browser: they work without JavaScript, can be saved, and need no library.
Lines have classes, so that a page's style sheet colours them for light and dark. A picture that is saved
has the colours as attributes, too, which style sheets override. Names come from users: all of them are escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.showing.texts import moment
from skylark.mqconsole.watching.history import GAP_S, Run

#: Distinguishable with all common kinds of colour blindness (Okabe and Ito), on white and on dark grey.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#666666")
WIDTH, HEIGHT = 1_000, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 10, 24
_STEPS_S = (10, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600)
_MOST_LINES: Final = len(COLOURS)


@lazy_dataclass(frozen=True, slots=True)
class Line:
    """One series with its name."""

    name: str
    runs: Sequence[Run]


def largest(lines: Mapping[str, Sequence[Run]], most: int = _MOST_LINES) -> list[Line]:
    """The lines with the largest last values, largest first: a picture with more of them cannot be read."""
    known = [Line(name, runs) for name, runs in lines.items() if runs]
    return sorted(known, key=lambda line: (-line.runs[-1].value, line.name))[:most]


def chart(lines: Sequence[Line], title: str, from_s: int, to_s: int, *, unit: str = "") -> str:
    """An SVG element with axes. ``title`` says in words what the picture shows, also to screen readers."""
    top = _round_up(max((run.value for line in lines for run in line.runs), default=0.0))
    span = max(to_s - from_s, 1)

    def x(at_s: float) -> float:
        return _LEFT + (min(max(at_s, from_s), to_s) - from_s) / span * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="11" aria-label="{escape(_shown(title))}">'
    ]
    for number in range(5):
        value = top * number / 4
        at = y(value)
        parts.append(
            f'<line class="grid" stroke="#ddd" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" fill="#555" text-anchor="end" x="{_LEFT - 6}" y="{at + 4:.1f}">'
            f"{_tick(value)}{escape(unit) if number == 4 else ''}</text>"
        )
    step = next((one for one in _STEPS_S if span / one <= 7), _STEPS_S[-1])
    for at_s in range(ceil(from_s / step) * step, to_s + 1, step):
        # A label at the right edge would be cut. On phones labels are larger.
        anchor = "end" if x(at_s) > WIDTH - 60 else "middle"
        parts.append(
            f'<text class="tick" fill="#555" text-anchor="{anchor}" x="{x(at_s):.1f}" y="{HEIGHT - 6}">'
            f"{moment(at_s * 1000)[11 : 16 if step >= 60 else 19]}</text>"
        )
    for number, line in enumerate(lines):
        number %= _MOST_LINES
        for points in _stretches(line.runs, from_s, to_s):
            path = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in points)
            parts.append(
                f'<polyline class="line line-{number}" fill="none" stroke="{COLOURS[number]}" stroke-width="1.6"'
                f' points="{path}"/>'
            )
    parts.append("</svg>")
    return "".join(parts)


def sparkline(runs: Sequence[Run], from_s: int, to_s: int) -> str:
    """A small picture without axes for a cell of a table, which has the number beside it."""
    top = max((run.value for run in runs), default=0.0) or 1.0
    span = max(to_s - from_s, 1)
    lines = []
    for points in _stretches(runs, from_s, to_s):
        path = " ".join(f"{(at_s - from_s) / span * 80:.1f},{17 - value / top * 15:.1f}" for at_s, value in points)
        lines.append(f'<polyline class="line line-0" fill="none" stroke="{COLOURS[0]}" points="{path}"/>')
    return f'<svg class="spark" viewBox="0 0 80 18" aria-hidden="true">{"".join(lines)}</svg>'


def as_csv(lines: Sequence[Line]) -> str:
    """Rows of series, first time, last time and value. A spreadsheet must not take a name for a formula."""
    rows = ["series,from,to,value"]
    for line in lines:
        name = f"'{line.name}" if line.name[:1] in "=+-@\t\r" else line.name
        quoted = '"' + name.replace('"', '""') + '"'
        rows += [
            f"{quoted},{moment(run.first_s * 1000)},{moment(run.last_s * 1000)},{run.value:g}" for run in line.runs
        ]
    return "\n".join(rows) + "\n"


def _stretches(runs: Sequence[Run], from_s: int, to_s: int) -> list[list[tuple[float, float]]]:
    """The points of each stretch without a gap, cut to the picture."""
    found: list[list[tuple[float, float]]] = []
    last_s = None
    for run in runs:
        if run.last_s < from_s or run.first_s > to_s:
            continue
        # The values in the gap are unknown (the console was down): draw no line across it.
        if last_s is None or run.first_s - last_s > max(GAP_S, (to_s - from_s) / 60):
            found.append([])
        found[-1].append((max(run.first_s, from_s), run.value))
        # A run of one measurement is a point, drawn as a short line to be visible.
        found[-1].append((min(max(run.last_s, run.first_s + 1, from_s), to_s), run.value))
        last_s = run.last_s
    return found


def _round_up(value: float) -> float:
    """The next number of 1, 2, 4, 10, 20, 40, ..., whose quarters are short numbers."""
    if value <= 4:
        return 4.0
    power = 10.0 ** floor(log10(value))
    return next(power * factor for factor in (1, 2, 4, 10) if power * factor >= value)


def _tick(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def _shown(text: str) -> str:
    """``text`` without characters that XML forbids."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def steps_chart(steps: Sequence[tuple[str, int, int]], title: str) -> str:
    """A row for each step of a message on one time axis. A step: name, when it began, how long it took (ms)."""
    first = min(began for _, began, _ in steps)
    span = max(max(began + took for _, began, took in steps) - first, 1)
    height = _TOP + 22 * len(steps) + _BOTTOM
    left, width = 300, WIDTH - 300 - _RIGHT - 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="11" aria-label="{escape(_shown(title))}">'
    ]
    for number, (name, began, took) in enumerate(steps):
        y = _TOP + 22 * number
        x = left + (began - first) / span * width
        wide = max(took / span * width, 3)
        parts.append(
            f'<text class="tick" fill="#555" text-anchor="end" x="{left - 8}" y="{y + 12}">{escape(_cut(name))}</text>'
            f'<rect class="bar" fill="{COLOURS[0]}" x="{x:.1f}" y="{y + 2}" width="{wide:.1f}" height="12" rx="2"/>'
            f'<text class="tick" fill="#555" x="{x + wide + 4:.1f}" y="{y + 12}">+{began - first} ms</text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def _cut(text: str) -> str:
    text = _shown(text)
    return text if len(text) <= 38 else f"{text[:37]}\N{HORIZONTAL ELLIPSIS}"
