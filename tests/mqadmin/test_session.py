"""Commands with -i: round after round until Ctrl-C, whatever fails in between."""

import json
from typing import Any, cast

import pytest
import trio.testing

from skylark.mqadmin.session import Session, Settings, in_rounds
from skylark.mqcommon.errors import ConnectFailed


def session(output: str) -> Session:
    return Session(cast(Any, None), Settings("", 1000, output), cast(Any, None))


class Looks:
    """The findings of each round; Ctrl-C ends the last round."""

    def __init__(self, *found: list[int] | Exception) -> None:
        self.found = list(found)

    async def __call__(self) -> list[int]:
        if not self.found:
            raise KeyboardInterrupt
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def lines(found: list[int]) -> list[str]:
    return [f"line {number}" for number in found]


async def test_one_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert await in_rounds(session("table"), None, Looks([1, 2]), lines) == [1, 2]
    assert capsys.readouterr().out == "line 1\nline 2\n"


async def test_round_after_round(capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock) -> None:
    at = session("table")
    looks = Looks([1], ConnectFailed("10.0.0.1:9876", "refused"), [2])
    assert await in_rounds(at, 60, looks, lines) is None
    said = capsys.readouterr()
    assert said.out == "line 1\nline 2\n" and "10.0.0.1:9876" in said.err
    assert at.failed and trio.current_time() >= 180


async def test_each_round_is_a_line_of_json(
    capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock
) -> None:
    await in_rounds(session("json"), 1, Looks([1], [2, 3]), lines)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [[1], [2, 3]]


async def test_a_watched_terminal_is_cleared(
    capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared: list[str] = []
    monkeypatch.setattr("click.clear", lambda: cleared.append(capsys.readouterr().out))
    await in_rounds(session("table"), 1, Looks([1], [2]), lines, clears=True)
    assert cleared == []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    capsys.readouterr()
    await in_rounds(session("table"), 1, Looks([1], [2]), lines, clears=True)
    assert cleared == ["", "line 1\n"]
    await in_rounds(session("json"), 1, Looks([1], [2]), lines, clears=True)
    assert len(cleared) == 2
