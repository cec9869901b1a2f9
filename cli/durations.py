"""Times and durations on the command line: ``10s``, ``-10m``, ``first``, ``last``."""

import re
import time
from datetime import timedelta
from typing import Any

import click

from skylark.mqadmin.params import Timestamp

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", re.ASCII)

FIRST, LAST = "first", "last"


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A time span such as ``500ms``, ``10s``, ``5m``, ``2h`` or ``1d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        span = _span(str(value).strip())
        if span is None:
            self.fail(
                f"{value!r} is not a duration: give a number and a unit, as in 500ms, 10s, 5m, 2h, 1d", param, ctx
            )
        return span


class StartingPoint(Timestamp):
    """Where to begin reading: `FIRST`, `LAST`, or a time in ms since 1970, given as such or as ``-10m``."""

    name = "first|last|-10m|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip()
        if text in (FIRST, LAST):
            return text
        span = _span(text[1:]) if text.startswith("-") else None
        if span is not None:
            return max(round((time.time() - span.total_seconds()) * 1000), 0)
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{text!r} is not a starting point: give first, last, a time ago as in -10s, -10m, -2h, -1d, or a time "
                "as in 2026-11-21T08:00:00 or ms (13 digits) since 1970",
                param,
                ctx,
            )


def _span(text: str) -> timedelta | None:
    found = _DURATION.fullmatch(text)
    return timedelta(seconds=float(found[1]) * _UNITS_S[found[2]]) if found else None
