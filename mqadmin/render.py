"""Results on stdout: tables in RocketMQ's printf formats, or one JSON document. Pure: no clients, no click.

Python's ``%`` understands Java's format strings, so each table has the format string of the official tool. Unlike in
RocketMQ, names are never cut to the column's width, so that they can be copied; a long name shifts its row.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.visible import visible_json
from skylark.sdk.admin.reports.report import plain

if TYPE_CHECKING:
    from skylark.mqcommon.message.queue import MessageQueue

Row = Any


@lazy_dataclass(frozen=True, slots=True)
class Table:
    """Columns, the printf format of a row, and the printf format of the heads if it differs.

    A column is a head with the Python name of a row's member, or with a function that makes the cell from the row.
    """

    columns: tuple[tuple[str, str | Callable[[Row], object]], ...]
    row_format: str
    head_format: str = ""

    def head(self) -> str:
        """The line of column heads."""
        head_format = self.head_format or re.sub(r"%(-?\d*)d", r"%\1s", self.row_format)
        return head_format % tuple(head for head, _ in self.columns)

    def row(self, row: Row, **texts: object) -> str:
        """One line of the report ``row``. ``texts``: cells that the report lacks."""
        return self.row_format % tuple(texts[of] if of in texts else _cell(row, of) for _, of in self.columns)

    def lines(self, rows: Iterable[Row]) -> Iterator[str]:
        """The heads, then each row."""
        yield self.head()
        for row in rows:
            yield self.row(row)


def _cell(row: Row, of: str | Callable[[Row], object]) -> object:
    return of(row) if callable(of) else getattr(row, of)


def to_json(document: Any, *, one_line: bool = False) -> str:
    """Standard JSON: quoted keys, no NaN, non-ASCII text as it is unless a terminal obeys it. Reports are objects."""
    text = json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=None if one_line else 2)
    return visible_json(text)


def time_text(timestamp_ms: int) -> str:
    """Local time to the millisecond, as ``2026-11-21 02:59:15,854``; blank when there is no time."""
    if timestamp_ms <= 0:
        return ""
    return f"{seconds_text(timestamp_ms)},{timestamp_ms % 1000:03d}"


def seconds_text(timestamp_ms: int) -> str:
    """Local time to the second; the plain number when it is out of the calendar's range."""
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def java_value(value: Any) -> str:
    """A value as Java's string concatenation writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={java_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(java_value(item) for item in value) + "]"
    return str(value)


def java_object(name: str, members: Mapping[str, Any], brackets: str = "[]") -> str:
    """``Name [a=1, b=true]``, the format of RocketMQ's toString; with ``{}`` there is no blank."""
    inside = ", ".join(f"{key}={java_value(value)}" for key, value in members.items())
    return f"{name}{' ' if brackets == '[]' else ''}{brackets[0]}{inside}{brackets[1]}"


def queue_text(queue: "MessageQueue") -> str:
    """RocketMQ's ``MessageQueue.toString``."""
    return java_object(
        "MessageQueue", {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
    )
