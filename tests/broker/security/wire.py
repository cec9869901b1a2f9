"""Requests that need different rights, and a client that adds nothing to a request after its signature.

The client signs whole requests, or as RocketMQ's clients do.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import trio

from skylark.mqcommon.addresses import split_address
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES, encode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG
from skylark.remoting.protocol.requests.clients import (
    CHALLENGE,
    HEART_BEAT,
    ChallengeRequestHeader,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import GET_MAX_OFFSET, UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC
from skylark.remoting.protocol.signature import Credentials, WholeSignatures, sign
from tests.broker.running import pull_request, send_request
from tests.broker.security.users.rows import SECRET
from tests.support.waiting import DEADLINE_S

_clients = count()


def heartbeat() -> Command:
    # Each is of another client: a client id belongs to one user.
    member = ConsumerData("group", subscription_data_set=[SubscriptionData("T")])
    data = HeartbeatData(f"c{next(_clients)}", consumer_data_set=[member])
    return Command(HEART_BEAT.code, None, encode_body(data))


def create_topic() -> Command:
    ext = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    return Command(UPDATE_AND_CREATE_TOPIC.code, ext)


#: Requests of clients and tools about topic T and group "group".
REQUESTS: dict[str, Callable[[], Command]] = {
    "send": lambda: send_request("T", b"x"),
    "give back": lambda: send_request("%RETRY%group", b"x"),
    "pull": lambda: pull_request("T", 0),
    "commit": lambda: Command(
        UPDATE_CONSUMER_OFFSET.code,
        {"consumerGroup": "group", "topic": "T", "queueId": 0, "commitOffset": 0},
    ),
    "heartbeat": heartbeat,
    "max offset": lambda: Command(GET_MAX_OFFSET.code, {"topic": "T", "queueId": 0}),
    "create topic": create_topic,
    "create group": lambda: Command(
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, None, encode_body(SubscriptionGroupConfig("group"))
    ),
    "broker config": lambda: Command(GET_BROKER_CONFIG.code),
}


class Wire:
    """One connection to a broker."""

    def __init__(self, stream: trio.SocketStream, *, plain: bool = False) -> None:
        self._stream = stream
        self._is_plain = plain
        self._connection = Connection(MAX_FRAME_BYTES)
        self._opaque = 0
        self._signatures: WholeSignatures | None = None

    async def ask_for_challenge(self) -> None:
        """Ask for a challenge: from now on whole requests are signed."""
        answer = await self.ask(CHALLENGE.command(ChallengeRequestHeader(None)))
        self._signatures = WholeSignatures(CHALLENGE.answer_header_type.from_answer(answer.ext).challenge)

    async def ask(self, request: Command, name: str = "", secret: str = SECRET) -> Command:
        """The answer to ``request``, signed as the user ``name``, or not signed at all."""
        if name and not self._is_plain and self._signatures is None:
            await self.ask_for_challenge()
        if name and self._signatures is not None:
            self._signatures.sign(request, Credentials(name, secret))
        elif name:
            sign(request, Credentials(name, secret))
        self._opaque += 1
        request.opaque = self._opaque
        await self._stream.send_all(encode(request))
        while True:
            for answer in self._connection.receive_data(await self._stream.receive_some()):
                if answer.opaque == self._opaque:
                    return answer

    async def send(self, request: Command) -> None:
        """Send a oneway request that is not signed."""
        await self._stream.send_all(encode(request))


@asynccontextmanager
async def connected(addr: str, *, plain: bool = False) -> AsyncIterator[Wire]:
    """``plain``: as RocketMQ's clients sign, until a challenge is asked for."""
    async with await trio.open_tcp_stream(*split_address(addr)) as stream:
        with trio.fail_after(DEADLINE_S):
            yield Wire(stream, plain=plain)
