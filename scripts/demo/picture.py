"""The report of the demo: one HTML file with two pictures in SVG, which needs nothing else to be shown."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from scripts.demo.flights import Carrier

WIDTH = 760
_LEFT = 220
_ROW = 22
_HEIGHT = 180
_STYLE = (
    "body{font:15px sans-serif;max-width:800px;margin:2em auto;color:#222}"
    "text{font:12px sans-serif;fill:#222}.bar{fill:#3b6ea5}.early{fill:#5a9367}.axis{stroke:#999}"
    ".line{fill:none;stroke:#3b6ea5;stroke-width:2}"
)


def report_html(found: Mapping[str, Any], carriers: Mapping[str, Carrier], names: Mapping[str, str]) -> str:
    """The whole page: mean departure delay of each carrier, and messages stored in each second."""
    queues = found["queues"]
    read = f"{found['rows']:,} rows from {len(queues)} queues of {len({queue[0] for queue in queues})} brokers"
    delays = [
        (f"{code} {names.get(code, '')}".strip(), one.mean_delay) for code, one in carriers.items() if one.departed
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Flights</title><style>{_STYLE}</style>'
        f"</head>\n<body><h1>Flights in a topic, read by Spark</h1><p>{escape(read)}</p>\n"
        f"<h2>Mean departure delay by carrier, minutes</h2>\n{bars(sorted(delays, key=lambda one: -one[1]))}\n"
        f"<h2>Messages stored per second</h2>\n{line([tuple(point) for point in found['stored']])}\n</body></html>\n"
    )


def bars(values: Sequence[tuple[str, float]]) -> str:
    """A horizontal bar for each value; negative values, which mean early, have another colour."""
    most = max((abs(value) for _, value in values), default=0) or 1
    rows = []
    for number, (label, value) in enumerate(values):
        y, size = number * _ROW, abs(value) / most * (WIDTH - _LEFT - 60)
        kind = "bar" if value >= 0 else "early"
        rows.append(
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="{kind}" x="{_LEFT}" y="{y + 3}" width="{size:.1f}" height="{_ROW - 6}"/>'
            f'<text x="{_LEFT + size + 6:.1f}" y="{y + 15}">{value:.1f}</text>'
        )
    return _svg(max(len(values), 1) * _ROW, rows)


def line(points: Sequence[tuple[int, int]]) -> str:
    """Counts over seconds; a second without a point had none."""
    if not points:
        return "<p>nothing was stored</p>"
    counts = dict(points)
    first, last = min(counts), max(counts)
    most, span = max(counts.values()) or 1, max(last - first, 1)
    places = [
        f"{60 + (at - first) / span * (WIDTH - 80):.1f},{_HEIGHT - 20 - counts.get(at, 0) / most * (_HEIGHT - 40):.1f}"
        for at in range(first, last + 1)
    ]
    base = _HEIGHT - 20
    return _svg(
        _HEIGHT,
        [
            f'<line class="axis" x1="60" y1="{base}" x2="{WIDTH - 20}" y2="{base}"/>',
            f'<polyline class="line" points="{" ".join(places)}"/>',
            f'<text x="52" y="24" text-anchor="end">{most:,}</text><text x="52" y="{base}" text-anchor="end">0</text>',
            f'<text x="60" y="{_HEIGHT - 4}">0 s</text>',
            f'<text x="{WIDTH - 20}" y="{_HEIGHT - 4}" text-anchor="end">{last - first} s</text>',
        ],
    )


def _svg(height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" role="img">'
    return f"{head}{''.join(parts)}</svg>"
