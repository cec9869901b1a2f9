"""Draws when the tasks of Spark's jobs ran, one row of bars for each core, as SVG text. Pure."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 840
_LEFT, _RIGHT, _TITLE, _LANE, _GAP, _AXIS = 16, 16, 24, 22, 14, 24
_STEPS = 4
# Neighbouring bars differ, so that short tasks can be told apart.
_COLOURS = ("#1f6f8b", "#7fb3c4")


class Job(NamedTuple):
    """``spans``: when each task began and ended, in seconds since the job began."""

    title: str
    spans: Sequence[tuple[float, float]]


def lanes(spans: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """``spans`` in as few rows as tasks run at a time; within a row one task begins after the other has ended."""
    rows: list[list[tuple[float, float]]] = []
    for span in sorted(spans):
        free = next((row for row in rows if row[-1][1] <= span[0]), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def picture(jobs: Sequence[Job]) -> str:
    """The jobs one below another, on one axis of seconds."""
    end_s = max((end for job in jobs for _, end in job.spans), default=0.0) or 1.0
    scale = (WIDTH - _LEFT - _RIGHT) / end_s
    parts, y = [], 0.0
    for job in jobs:
        parts.append(f'<text x="{_LEFT}" y="{y + 16:g}" font-size="13" font-weight="bold">{escape(job.title)}</text>')
        y += _TITLE
        for row in lanes(job.spans):
            parts += [
                f'<rect x="{_LEFT + begin * scale:.2f}" y="{y:g}" width="{(end - begin) * scale:.2f}"'
                f' height="{_LANE - 4}" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
                for number, (begin, end) in enumerate(row)
            ]
            y += _LANE
        y += _GAP
    for step in range(_STEPS + 1):
        at_s = end_s * step / _STEPS
        parts.append(
            f'<text x="{_LEFT + at_s * scale:.1f}" y="{y + 10:g}" text-anchor="{_anchor(step)}">{at_s:,.3g} s</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + _AXIS:g}" font-family="sans-serif"'
        ' font-size="11" fill="#333">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _anchor(step: int) -> str:
    return "start" if step == 0 else "end" if step == _STEPS else "middle"
