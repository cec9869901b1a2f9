"""Lines of the audit: who, what and why, and not too many."""

import logging

import pytest

from skylark.broker.security import audit as audit_module
from skylark.broker.security.audit import MAX_LINES_A_SECOND, MAX_REMEMBERED, Audit
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD
from tests.support.clock import ManualClock


def request(name: str = "anna", code: int = 310) -> Command:
    return Command(code, {ACCESS_KEY_FIELD: name})


def test_the_same_refusal_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    for port in (1, 2, 3):
        audit.refused(f"10.0.0.1:{port}", request(), "no matched policies")
    assert caplog.messages == ["refused request 310 of user 'anna' at 10.0.0.1:1: no matched policies"]
    audit.refused("10.0.0.2:1", request(), "no matched policies")
    audit.refused("10.0.0.1:1", request("bob"), "no matched policies")
    audit.refused("10.0.0.1:1", request(code=11), "no matched policies")
    assert len(caplog.messages) == 4
    clock.advance(audit_module.MINUTE_MS)
    audit.refused("10.0.0.1:9", request(), "no matched policies")
    assert caplog.messages[-1].endswith("no matched policies (2 times more since the last such line)")
    lines = len(caplog.messages)
    clock.set_by(-3_600_000)
    clock.advance(audit_module.MINUTE_MS)
    audit.refused("10.0.0.1:9", request(), "no matched policies")
    assert len(caplog.messages) == lines + 1, "a clock that went back silences nothing"


def test_there_is_a_most_of_lines_and_of_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = ManualClock()
    audit = Audit(clock)
    for number in range(MAX_REMEMBERED * 2):
        if number == MAX_REMEMBERED:
            assert len(caplog.messages) == MAX_LINES_A_SECOND
        if number % 10 == 0 and number > MAX_REMEMBERED:
            clock.advance(1_000)
        audit.refused("10.0.0.1:1", request(f"user-{number}" + "x" * 1_000), "w" * 100_000)
    left_out = MAX_REMEMBERED + 6 - MAX_LINES_A_SECOND
    assert f"({left_out} other refusals were not logged)" in caplog.text
    assert len(audit._logged) == MAX_REMEMBERED
    assert max(map(len, caplog.messages)) < 1_500


def test_a_reason_is_one_line_whatever_the_client_calls_itself(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(ManualClock())
    audit.refused("10.0.0.1:1", request("a\nb"), "User:a\nb \u202e\ud800 is not found.")
    assert caplog.messages == [
        "refused request 310 of user 'a\\nb' at 10.0.0.1:1: User:a\\nb \\u202e\\ud800 is not found."
    ]
