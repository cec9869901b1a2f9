"""Ctrl-C while cbor2 encodes."""

import signal
import sys
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import pytest
import trio

import kombu_rocketmq
import skylark.remoting.net.client  # noqa: F401  (it protects what is tried here)
from skylark.remoting.protocol.cbor_header import encode_header
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import Dialect, encode_body
from skylark.remoting.protocol.signature import Credentials, WholeSignatures
from skylark.sdk.values.libraries import CBOR as CBOR_VALUES
from skylark.sdk.values.libraries import Plain


class Rows:
    """A body with a list, of which cbor2 asks whether it is a mapping."""

    def to_wire(self) -> Any:
        return [{"topic": "orders"}]


def sign() -> None:
    WholeSignatures("challenge", "127.0.0.1:9876").sign(
        Command(10, {"tags": ["a"]}, codec=CBOR), Credentials("a", "secret")
    )


@pytest.mark.parametrize(
    "encode",
    [
        lambda: encode_body(Rows(), Dialect.CBOR),
        lambda: encode_header(Command(10, {"tags": ["a"]}, codec=CBOR)),
        sign,
    ],
    ids=["body", "header", "signature"],
)
def test_it_is_not_lost_while_cbor2_asks_for_the_kind_of_a_value(
    encode: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What raises there is dropped."""
    ask, presses = ABCMeta.__instancecheck__, 0

    def interrupted(kind: ABCMeta, value: object) -> bool:
        nonlocal presses
        # cbor2 has no frame, so its caller is the one before.
        is_asked_by_cbor2 = "dumps" in sys._getframe(1).f_code.co_names
        if is_asked_by_cbor2 and type(value) is list and not presses:
            presses += 1
            signal.raise_signal(signal.SIGINT)
        return ask(kind, value)

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ABCMeta, "__instancecheck__", interrupted)
            encode()
        await trio.lowlevel.checkpoint()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert presses == 1


@pytest.mark.parametrize(
    "encode",
    [lambda: Plain().codec(list[int], CBOR_VALUES).write([1]), lambda: kombu_rocketmq.encode([1])],
    ids=["value", "kombu"],
)
def test_it_is_not_lost_without_trio_as_cbor2_does_not_ask(
    encode: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    isinstance_, asked = ABCMeta.__instancecheck__, list[object]()

    def ask(kind: ABCMeta, value: object) -> bool:
        if "dumps" in sys._getframe(1).f_code.co_names:
            asked.append(value)
        return isinstance_(kind, value)

    with monkeypatch.context() as patch:
        patch.setattr(ABCMeta, "__instancecheck__", ask)
        encode()
    assert not asked
