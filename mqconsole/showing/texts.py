"""Numbers, sizes, times and durations as people read them. Pure. Times of the wall clock are UTC, and say so."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NONE = "\N{EN DASH}"


def count(value: float | None) -> str:
    """``12,345``; numbers below ten that are not whole have one digit after the point. A dash for None."""
    if value is None:
        return NONE
    if value != int(value) and abs(value) < 10:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def size(value: float | None) -> str:
    """``1.5 MiB``."""
    if value is None:
        return NONE
    amount = float(value)
    for unit in _UNITS[:-1]:
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} {_UNITS[-1]}"


def percent(ratio: float | None) -> str:
    """``58 %``; brokers say -1 when they do not know."""
    return NONE if ratio is None or ratio < 0 else f"{ratio * 100:.0f} %"


def duration(value_ms: float | None) -> str:
    """``850 ms``, ``12.3 s``, ``5 min 03 s``, ``2 h 05 min``, ``3 d 04 h``."""
    if value_ms is None:
        return NONE
    seconds = int(value_ms // 1000)
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    if seconds < 60:
        return f"{value_ms / 1000:.1f} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60:02d} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600:02d} h"


def moment(value_ms: float | None) -> str:
    """``2026-11-27 08:00:00 UTC``; a time that is not set, or that no calendar has, is a dash."""
    if value_ms is None or value_ms <= 0:
        return NONE
    try:
        return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return NONE


def setting(value: Any) -> str:
    """A value of a setting, which may have parts: ``yes``, ``16``, ``type: CUSTOMIZED; next: 1000, 5000``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        parts = {name: one for name, one in value.items() if one is not None}
        return "; ".join(f"{name}: {_part(one)}" for name, one in parts.items()) or NONE
    if isinstance(value, list | tuple):
        return ", ".join(map(_part, value)) or NONE
    return NONE if value is None or value == "" else str(value)


def _part(value: Any) -> str:
    text = setting(value)
    return f"({text})" if isinstance(value, Mapping) and text != NONE else text


def parse_moment(text: str) -> int:
    """Milliseconds of a time: of ``2026-11-27T08:00`` (UTC, as a browser's field has it), or the number itself.

    Raises ValueError.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    found = datetime.fromisoformat(text.removesuffix(" UTC"))
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
