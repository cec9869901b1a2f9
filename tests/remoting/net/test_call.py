"""Asking with descriptions: what is sent, and which answers are errors."""

from dataclasses import dataclass, field

import pytest

from skylark.mqcommon.errors import BrokerError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO, UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.clients import HEART_BEAT, HeartbeatData
from skylark.remoting.protocol.requests.offsets import QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader
from skylark.remoting.protocol.requests.replication import PageRequestHeader
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG, GET_TOPIC_STATS_INFO, TopicRequestHeader
from tests.sdk.fakes import Fake, serving

HEADER = QueryConsumerOffsetRequestHeader("g", "T", 3)


@dataclass
class Remembering:
    """A server that gives one answer, and remembers what it was asked."""

    answer: Command = field(default_factory=lambda: Command(0, {}, b"{}"))
    addr: str = "10.0.0.1:1"
    asked: list[tuple[Command, Body | bytes | None, float]] = field(default_factory=list)

    async def invoke(self, command: Command, body: Body | bytes | None, wait_ms: float) -> Command:
        self.asked.append((command, body, wait_ms))
        return self.answer


async def test_fields_and_bodies_are_sent() -> None:
    server = Remembering()
    heartbeat = HeartbeatData("id")
    await call(server, GET_TOPIC_STATS_INFO, TopicRequestHeader("T"))
    await call(server, GET_BROKER_RUNTIME_INFO, wait_ms=70)
    await call(server, HEART_BEAT, None, heartbeat)
    await call(server, UPDATE_BROKER_CONFIG, None, b"k=v\n")
    await call(server, GET_ALL_TOPIC_CONFIG.bare, page=PageRequestHeader(5, 2))
    assert server.asked == [
        (Command(202, {"topic": "T"}), None, 0),
        (Command(28), None, 70),
        (Command(34), heartbeat, 0),
        (Command(25, body=b"k=v\n"), None, 0),
        (Command(21, {"pageFrom": 5, "pageRemovals": 2}), None, 0),
    ]


async def test_the_answer_is_read_when_it_is_asked_for() -> None:
    answer = await call(Remembering(Command(0, {"offset": "12"})), QUERY_CONSUMER_OFFSET, HEADER)
    assert (answer.code, answer.header().offset) == (0, 12)
    answer = await call(Remembering(Command(22, remark="none")), QUERY_CONSUMER_OFFSET, HEADER)
    assert (answer.code, answer.command.remark) == (22, "none")


async def test_other_codes_are_errors() -> None:
    with pytest.raises(BrokerError) as error:
        await call(Remembering(Command(1, remark="no")), QUERY_CONSUMER_OFFSET, HEADER)
    assert (error.value.code, error.value.remark, error.value.addr) == (1, "no", "10.0.0.1:1")
    with pytest.raises(BrokerError):
        await call(Remembering(Command(22)), GET_BROKER_RUNTIME_INFO)


async def test_a_remote_server() -> None:
    fake = Fake()
    fake.on(28, lambda request: request.respond(body=b'{"table":{"a":"b"}}'))
    async with serving(fake), open_client() as client:
        answer = await call(Remote(client, fake.addr, 3_000), GET_BROKER_RUNTIME_INFO)
        assert answer.body().table == {"a": "b"}
