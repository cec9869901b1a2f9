"""The text formats of Prometheus, classic and OpenMetrics, in slices.

So a page of some hundred thousand lines does not block an event loop. OpenTelemetry's own text format takes longer than
a whole scrape may: it makes objects for each line. Here a line is one formatting operation, and one check tells whether
anything in a slice must be escaped. Pure.
"""

from collections.abc import Generator, Iterable, Sequence
from enum import Enum

from skylark.mqcommon.metrics.metric import Column, Histogram, Metric


class TextFormat(Enum):
    """A format, by its content type. The names of values are the same in both."""

    CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


# Lines of one slice: about two milliseconds.
SLICE = 1_000


def format_for(accept: str) -> TextFormat:
    """The format for a header ``Accept``: classic unless OpenMetrics 1.0.0 is wanted at least as much."""
    wanted = {TextFormat.CLASSIC: 0.0, TextFormat.OPEN_METRICS: 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        given = dict(piece.partition("=")[::2] for piece in parameters)
        if kind == "application/openmetrics-text" and given.get("version", "1.0.0") == "1.0.0":
            which = TextFormat.OPEN_METRICS
        elif kind in ("text/plain", "text/*", "*/*"):
            which = TextFormat.CLASSIC
        else:
            continue
        wanted[which] = max(wanted[which], _weight(given.get("q", "1")))
    weight = wanted[TextFormat.OPEN_METRICS]
    return TextFormat.OPEN_METRICS if 0 < weight >= wanted[TextFormat.CLASSIC] else TextFormat.CLASSIC


def _weight(text: str) -> float:
    """The weight ``q`` of a part of a header; 0 for what is no number from 0 to 1."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def page(
    columns: Iterable[Column], common: Sequence[tuple[str, str]], text_format: TextFormat = TextFormat.CLASSIC
) -> Generator[None, None, list[bytes]]:
    """The page in pieces, a turn of the loop after each. ``common``: labels of all lines."""
    pieces: list[bytes] = []
    for column in columns:
        if not column.values:
            continue
        pieces.append(_head(column.metric, text_format).encode())
        for start in range(0, len(column.values), SLICE):
            pieces.append(_lines(column, start, common).encode())
            yield
    if text_format is TextFormat.OPEN_METRICS:
        pieces.append(b"# EOF\n")
    return pieces


def whole_page(columns: Iterable[Column]) -> str:
    """The classic page of few lines, at once."""
    return "".join(
        _head(column.metric, TextFormat.CLASSIC)
        + "".join(_lines(column, start, ()) for start in range(0, len(column.values), SLICE))
        for column in columns
        if column.values
    )


def _head(metric: Metric, text_format: TextFormat) -> str:
    unit = f" ({metric.unit})" if metric.unit else ""
    # In OpenMetrics a counter is named without the suffix that its values have; our tables have the suffix.
    is_open = text_format is TextFormat.OPEN_METRICS and metric.kind == "counter"
    name = metric.name.removesuffix("_total") if is_open else metric.name
    return f"# HELP {name} {metric.help}{unit}\n# TYPE {name} {metric.kind}\n"


def _lines(column: Column, start: int, common: Sequence[tuple[str, str]]) -> str:
    metric = column.metric
    labels = column.labels[start : start + SLICE]
    values = column.values[start : start + SLICE]
    own = _without_percent(common)
    names = [*own, *(f'{name}="%s"' for name in metric.labels)]
    if metric.kind == "histogram":
        return "".join(
            _histogram(metric.name, ",".join(names) % _escaped(texts), value)
            for texts, value in zip(labels, values, strict=True)
            if isinstance(value, Histogram)
        )
    line = f"{metric.name}{{{','.join(names)}}} %s\n"
    text = "".join([line % (*texts, value) for texts, value in zip(labels, values, strict=True)])
    # Hardly any name has a character that must be escaped. Each such character would show in one of these counts.
    if "\\" in text or text.count('"') != line.count('"') * len(values) or text.count("\n") != len(values):
        return "".join([line % (*_escaped(texts), value) for texts, value in zip(labels, values, strict=True)])
    return text


def _histogram(name: str, labels: str, value: Histogram) -> str:
    before, comma = 0, "," if labels else ""
    lines = []
    for bound, count in zip((*value.bounds, "+Inf"), value.counts, strict=True):
        before += count
        lines.append(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {before}\n')
    return "".join([*lines, f"{name}_sum{{{labels}}} {value.total}\n", f"{name}_count{{{labels}}} {before}\n"])


def _without_percent(common: Sequence[tuple[str, str]]) -> list[str]:
    """The labels of all lines, for use in a format."""
    return [f'{name}="{_escape(value)}"'.replace("%", "%%") for name, value in common]


def _escaped(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_escape(text) for text in texts)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
