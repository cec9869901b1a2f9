"""Lines in the log about oneway requests that failed."""

import pytest

from skylark.remoting.net.unanswered import LOG_INTERVAL_S, MAX_CODES, Unanswered
from skylark.remoting.protocol.command import Command


def test_a_code_has_a_line_in_an_interval_and_the_codes_that_are_remembered_are_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unanswered = Unanswered()

    def lines(*codes: int, now: float = 0.0) -> int:
        caplog.clear()
        for code in codes:
            request = Command(code)
            unanswered.log("10.0.0.1:5", request, request.respond(17, "no such thing"), now)
        return len(caplog.messages)

    assert lines(1, 1, 1) == 1
    assert lines(1, now=LOG_INTERVAL_S) == 1
    assert caplog.messages == [
        "oneway request 1 of 10.0.0.1:5: [17] no such thing; 2 more since the last such line",
    ]
    assert lines(*range(2, MAX_CODES + 1), now=LOG_INTERVAL_S) == MAX_CODES - 1
    assert lines(1, 2, now=LOG_INTERVAL_S) == 0
    # With one more code all are forgotten, and have a line each again.
    assert lines(MAX_CODES + 1, 1, 2, 2, now=LOG_INTERVAL_S) == 3
