"""With credentials, every request of every client is signed as a whole, and so is every request between servers."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import pytest
import trio

from skylark import (
    Admin,
    Client,
    ConsumeFrom,
    Credentials,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TopicConfig,
    TransactionProducer,
)
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.clients import (
    CHALLENGE,
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    UNREGISTER_CLIENT,
)
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.pops import POP_MESSAGE
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.registrations import REGISTER_BROKER
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD
from skylark.sdk.testing import Cluster
from tests.support.waiting import DEADLINE_S

WHO = Credentials("app", "secret of app")
SECRETS = {"app": "secret of app", "inner": "secret of inner"}
INNER = '{"accessKey":"inner","secretKey":"secret of inner"}'
FROM_START = {"consume_from": ConsumeFrom.FIRST_OFFSET, "credentials": WHO}


class Seen(NamedTuple):
    code: int
    codec: int
    #: Whose signature over the whole request it has; "" for none or a wrong one.
    by: str


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Seen]]:
    """The requests that all servers of this process get."""
    requests: list[Seen] = []
    dispatch = Server._dispatch

    def noting(server: Server, channel: Channel, request: Command) -> None:
        by = str((request.ext or {}).get(ACCESS_KEY_FIELD, ""))
        whole = channel.signatures
        is_signed = by in SECRETS and whole is not None and whole.is_signed_with(request, SECRETS[by])
        if request.code != CHALLENGE.code:
            requests.append(Seen(request.code, request.codec, by if is_signed else ""))
        dispatch(server, channel, request)

    monkeypatch.setattr(Server, "_dispatch", noting)
    yield requests


async def test_all_requests_of_clients_and_brokers_are_signed(seen: list[Seen]) -> None:
    options = {"innerClientAuthenticationCredentials": INNER, "registerNameServerPeriod": 10_000}
    got: list[bytes] = []
    done = trio.Event()

    async def handle(message: MessageExt) -> None:
        got.append(message.body)
        if len(got) == 8:
            done.set()

    async with Cluster(slaves=1, options=options) as cluster:
        cluster.create_topic("T", 2)
        del seen[:]
        at = cluster.nameserver
        async with Admin(at, credentials=WHO) as admin:
            await admin.create_topic(cluster.brokers[0].address, TopicConfig("U", 2, 2))
            await admin.topic_stats("T")
        async with Producer(at, credentials=WHO, trace=True) as producer:
            await producer.send(Message("T", b"one", tags="a"))
            await producer.send_many("T", [b"two", b"three", b"four"])
            await producer.send_oneway(Message("T", b"five"))
            await producer.send(Message("T", b"six" * 5_000, tags="b"))
            await producer.send(Message("T", b"later"), delay=timedelta(seconds=1))
        async with (
            TransactionProducer(at, group="tx", credentials=WHO) as transactional,
            transactional.transaction(Message("T", b"seven")),
        ):
            pass
        async with Client(at, credentials=WHO) as client, PullConsumer(client, group="g1") as consumer:
            for queue in await consumer.message_queues("T"):
                await consumer.pull(queue, 0, wait_ms=0)
                await consumer.commit_offset(queue, 1)
        with trio.fail_after(DEADLINE_S):
            async with PushConsumer(at, group="g2", subscriptions={"T": "*"}, handler=handle, **FROM_START):
                await done.wait()
            async with SimpleConsumer(at, group="g3", subscriptions={"T": "*"}, **FROM_START) as simple:
                for message in await simple.receive():
                    await simple.ack(message)
        requests = list(seen)
    assert [each for each in requests if not each.by] == []
    assert {each.codec for each in requests} == {CBOR}
    by = {name: {each.code for each in requests if each.by == name} for name in SECRETS}
    assert by["app"] >= {
        SEND_MESSAGE_V2.code, SEND_BATCH_MESSAGE.code, PULL_MESSAGE.code, HEART_BEAT.code,
        UNREGISTER_CLIENT.code, GET_ROUTEINFO_BY_TOPIC.code, END_TRANSACTION.code,
        UPDATE_CONSUMER_OFFSET.code, UPDATE_AND_CREATE_TOPIC.code, POP_MESSAGE.code,
        GET_CONSUMER_LIST_BY_GROUP.code,
    }  # fmt: skip
    assert REGISTER_BROKER.code in by["inner"]


@pytest.mark.parametrize("signed", [True, False])
async def test_a_server_without_access_control_takes_both(signed: bool) -> None:
    make = partial(Producer, credentials=WHO) if signed else Producer
    async with Cluster() as cluster, make(cluster.nameserver) as producer:
        cluster.create_topic("T")
        assert (await producer.send(Message("T", b"x"))).queue_offset == 0
