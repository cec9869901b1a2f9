"""Results on stdout: tables in RocketMQ's printf formats, or one JSON document. Pure: no clients, no click.

Python's ``%`` understands Java's format strings, so each table has the format string of the official tool. Unlike in
RocketMQ, names are never cut to the column's width, so that they can be copied; a long name shifts its row.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import plain

Row = Any


@lazy_dataclass(frozen=True, slots=True)
class Table:
    """Columns as (head, member of the row), the printf format of a row, and that of the heads if it differs."""

    columns: tuple[tuple[str, str], ...]
    row_format: str
    head_format: str = ""

    def head(self) -> str:
        """The line of column heads."""
        head_format = self.head_format or re.sub(r"%(-?\d*)d", r"%\1s", self.row_format)
        return head_format % tuple(head for head, _ in self.columns)

    def row(self, row: Row, **texts: object) -> str:
        """One line; ``row`` is a report with the member of every column, by its name in Python.

        ``texts``: columns that are no members of the report, or that are shown in another form.
        """
        return self.row_format % tuple(
            texts[name] if name in texts else row[name] if isinstance(row, Mapping) else getattr(row, name)
            for _, name in self.columns
        )

    def lines(self, rows: Iterable[Row]) -> Iterator[str]:
        """The heads, then each row."""
        yield self.head()
        for row in rows:
            yield self.row(row)


def to_json(document: Any, *, one_line: bool = False) -> str:
    """Standard JSON: quoted keys, no NaN, non-ASCII text unescaped. Reports are objects."""
    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=None if one_line else 2)


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


_FIRST = (
    "SNAPSHOT ALPHA1 BETA1 BETA2 BETA3 BETA4 BETA5 BETA6_SNAPSHOT BETA6 BETA7_SNAPSHOT BETA7 "
    "BETA8_SNAPSHOT BETA8 BETA9_SNAPSHOT BETA9 FINAL"
)


# The names of RocketMQ's version numbers are in the order of its enum: 479 is ``V5_3_3``. Each release has two numbers,
# one for its snapshot and one for itself. Minor versions 3.3 to 3.9 have no patch 0.
def _patches() -> Iterator[str]:
    yield from (f"V3_0_{patch}" for patch in range(1, 16))
    for major, minors in ((3, range(1, 10)), (4, range(10)), (5, range(10))):
        for minor in minors:
            first = 1 if major == 3 and minor >= 3 else 0
            yield from (f"V{major}_{minor}_{patch}" for patch in range(first, 10))


def _names() -> Iterator[str]:
    yield from (f"V3_0_0_{stage}" for stage in _FIRST.split())
    for version in _patches():
        yield from (f"{version}_SNAPSHOT", version)
    yield "HIGHER_VERSION"


VERSION_NAMES = tuple(_names())


def version_name(version: int) -> str:
    """``V5_3_3`` for 479; numbers after the last are ``HIGHER_VERSION``."""
    return VERSION_NAMES[min(version, len(VERSION_NAMES) - 1)] if version >= 0 else str(version)
