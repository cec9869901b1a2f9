"""Durations and starting points on the command line."""

from datetime import timedelta
from typing import Any

import click
import pytest

from skylark.cli import durations
from skylark.cli.durations import Duration, StartingPoint


def converted(kind: Any, text: str) -> Any:
    return kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("10s", 10), ("1.5m", 90), ("2h", 7_200), ("1d", 86_400)]
)
def test_a_duration_has_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert converted(Duration(), text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["10", "s", "-10s", "10 parsecs", ""])
def test_other_durations_are_usage_errors(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration"):
        converted(Duration(), text)


def test_a_starting_point_is_a_word_a_time_or_a_time_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations.time, "time", lambda: 1_000.0)
    points = [converted(StartingPoint(), text) for text in ("first", "last", "-10m", "-1d", "1700000000000")]
    assert points == ["first", "last", 400_000, 0, 1_700_000_000_000]


@pytest.mark.parametrize("text", ["-10", "-x", "soon"])
def test_other_starting_points_are_usage_errors(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a starting point: give first, last"):
        converted(StartingPoint(), text)
