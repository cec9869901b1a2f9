"""The turns of a handshake between brokers: what a peer may not send in them."""

from typing import Any

import pytest

from skylark.broker.replication.hello import Challenge, Hello, LogClaim, decode
from skylark.mqcommon.errors import ProtocolError

HELLO: dict[str, Any] = {
    "version": 2, "cluster": "c", "broker": "b", "broker_id": 1, "addr": "b:1", "nonce": b"n"
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", "2"), ("version", True), ("version", -1), ("version", 1 << 63), ("cluster", b"c"), ("broker", None),
        ("broker_id", 1.0), ("addr", 1), ("nonce", "n"),
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_refused_by_its_name(name: str, value: object) -> None:
    assert decode(Hello, {**HELLO, "later": 1}) == Hello(2, "c", "b", 1, "b:1", b"n"), "later versions may add fields"
    with pytest.raises(ProtocolError, match=f"Hello: {name} is "):
        decode(Hello, {**HELLO, name: value})


@pytest.mark.parametrize("body", [None, [], b"", {}, {**HELLO, "nonce": b"n"}])
@pytest.mark.parametrize("kind", [Challenge, LogClaim])
def test_a_turn_that_is_not_due_is_refused(kind: type, body: Any) -> None:
    with pytest.raises(ProtocolError, match=f"not a {kind.__name__} of a Skylark broker"):
        decode(kind, body)
