"""Clients that servers do not let in: they say why, ask no more than is useful, and go on when they are let in."""

import logging
from random import Random

import pytest
import trio
import trio.testing

from skylark import Admin, Message, Producer, PushConsumer
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, ConnectFailed, SendFailed
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.sdk import membership
from skylark.sdk.consumer import read_retry
from skylark.sdk.consumer.read_retry import REFUSALS_A_LINE, FailureLines, read_with_retry
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving
from tests.support.waiting import DEADLINE_S, until

ACL = "org.apache.rocketmq.acl.common.AclException: "
NO_RIGHT = f"{ACL}No default permission for t"
WRONG = f"{ACL}Check signature failed for accessKey=a"


@pytest.mark.parametrize(
    ("code", "text", "tries"),
    [
        (ResponseCode.SYSTEM_ERROR, WRONG, 1),
        (ResponseCode.SYSTEM_ERROR, f"{ACL}No acl config for a", 1),
        (ResponseCode.SYSTEM_ERROR, NO_RIGHT, 3),
        (ResponseCode.NO_PERMISSION, "User:a has no permission to access Topic:t", 3),
    ],
)
async def test_a_send_that_is_refused(code: int, text: str, tries: int) -> None:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        namesrv.add("t", broker)
        broker.on(310, lambda request: request.respond(code, text))
        async with Producer(namesrv.addr, send_timeout_ms=60_000) as producer:
            with pytest.raises(SendFailed) as raised:
                await producer.send(Message("t", b"x"))
        assert text in str(raised.value)
        assert isinstance(raised.value.__cause__, BrokerError) and raised.value.__cause__.code == code
        assert len(broker.asked(310)) == tries


async def test_a_route_that_is_refused_is_asked_for_once() -> None:
    async with serving(FakeNamesrv()) as namesrv:
        namesrv.on(
            105, lambda request: request.respond(ResponseCode.NO_PERMISSION, "needs the signature of an account")
        )
        async with Producer(namesrv.addr, send_timeout_ms=60_000) as producer, Admin(namesrv.addr) as admin:
            with trio.fail_after(DEADLINE_S), pytest.raises(BrokerError, match="needs the signature of an account"):
                await producer.send(Message("t", b"x"))
            with pytest.raises(BrokerError, match="needs the signature"):
                await admin.topic_route("t")
        assert len(namesrv.asked(105)) == 2


async def test_a_consumer_whose_heartbeats_are_refused_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.sdk.client.HEARTBEAT_RETRY_S", 0.01)
    monkeypatch.setattr(membership, "REFUSALS_A_LINE", 5)
    refuse = True

    def beat(request: Command) -> Command:
        return request.respond(1, NO_RIGHT) if refuse else request.respond()

    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        namesrv.add("t", broker)
        broker.on(34, beat)
        async with PushConsumer(
            namesrv.addr, group="g", subscriptions={"t": "*"}, concurrency=1, start_timeout_ms=None
        ):
            await broker.wait_asked(34, 12)
            lines = [record for record in caplog.records if "refuses the heartbeats" in record.getMessage()]
            assert 2 <= len(lines) <= len(broker.asked(34)) // 5 + 1
            assert NO_RIGHT in lines[0].getMessage() and lines[0].levelno == logging.WARNING
            refuse = False
            await until(lambda: "takes the heartbeats of this client again" in caplog.text, "it is let in")


async def test_a_reader_that_is_refused_says_so_once_in_a_while(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def ask() -> str:
        nonlocal tries
        tries += 1
        if tries <= 60:
            raise BrokerError(1, NO_RIGHT, "127.0.0.1:1")
        return "let in"

    found = await read_with_retry(ask, Backoff(0.05, 0.5, Random(1)), "a reader", "offset 5", lambda error: False)
    assert found == "let in"
    assert trio.current_time() == pytest.approx(60 * read_retry.REFUSED_S)
    assert caplog.text.count("a reader is waiting at offset 5") == 3


def test_a_reader_that_is_refused_says_so_again_and_again() -> None:
    """Refusals that follow another failure, too; a server that is away is named once."""
    away, refused = ConnectFailed("b:1", "refused"), BrokerError(16, "no permission")
    failures = FailureLines()
    told = [failures.add(error) for error in (away, away, *[refused] * (2 * REFUSALS_A_LINE), away)]
    assert [number for number, is_told in enumerate(told) if is_told] == [0, 2, 2 + REFUSALS_A_LINE]
    assert failures.count == len(told)
