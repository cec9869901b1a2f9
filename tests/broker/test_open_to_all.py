"""A broker without access control on all interfaces says so, once, and what to set."""

import pytest

from broker.options import BrokerOptions
from tests.broker.running import running


@pytest.mark.parametrize(("is_open", "guarded", "lines"), [(True, False, 1), (True, True, 0), (False, False, 0)])
async def test_the_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_open: bool, guarded: bool, lines: int
) -> None:
    # Servers under test listen on loopback only.
    monkeypatch.setattr("broker.broker.is_any_address", lambda host: is_open and host == "127.0.0.1")
    monkeypatch.setattr(BrokerOptions, "has_access_control", guarded)
    async with running():
        pass
    assert caplog.text.count("set aclEnable=true, or bindAddress") == lines


@pytest.mark.parametrize(
    ("guarded", "options", "allowed"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"ha_shared_secret": "x"}, False),
        (True, {"ha_allow_plain_peers": "true"}, True),
        (False, {"ha_allow_plain_peers": "false"}, False),
    ],
)
def test_plain_slaves(monkeypatch: pytest.MonkeyPatch, guarded: bool, options: dict[str, str], allowed: bool) -> None:
    """With access control they need the explicit option."""
    monkeypatch.setattr(BrokerOptions, "has_access_control", guarded)
    assert BrokerOptions(**options).allow_plain_peers is allowed  # type: ignore[arg-type]
