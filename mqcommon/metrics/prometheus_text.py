"""The text format of Prometheus, in slices: so that a page of some hundred thousand lines does not block an event loop.

OpenTelemetry's own text takes longer than the whole scrape may: it makes objects for each line. Here a line is one
formatting operation, and escaping is looked at once for a slice. Pure.
"""

from collections.abc import Generator, Iterable, Sequence

from mqcommon.metrics.metric import Column, Histogram, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Lines of one slice: about two milliseconds.
SLICE = 1_000


def page(columns: Iterable[Column], common: Sequence[tuple[str, str]]) -> Generator[None, None, list[bytes]]:
    """The page in pieces, a turn of the loop after each. ``common``: labels of all lines."""
    pieces: list[bytes] = []
    for column in columns:
        if not column.values:
            continue
        pieces.append(_head(column.metric).encode())
        for start in range(0, len(column.values), SLICE):
            pieces.append(_lines(column, start, common).encode())
            yield
    return pieces


def whole_page(columns: Iterable[Column]) -> str:
    """The page of few lines, at once."""
    return "".join(
        _head(column.metric) + "".join(_lines(column, start, ()) for start in range(0, len(column.values), SLICE))
        for column in columns
        if column.values
    )


def _head(metric: Metric) -> str:
    unit = f" ({metric.unit})" if metric.unit else ""
    return f"# HELP {metric.name} {metric.help}{unit}\n# TYPE {metric.name} {metric.kind}\n"


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
    # Nearly no name has a character that must be escaped. Each would show in one of these counts.
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
