"""Requests for logical queues of a static topic that has moved between two brokers: each answer is about all of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from skylark.broker.delivery import logical_queues
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    GetMaxOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem, TopicConfig, TopicQueueMappingDetail
from skylark.sdk.admin.remapping import BLOCK, State, begun, changed_parts, decided, given_away, grown, levelled
from tests.support.daemons import Cluster, in_threads
from tests.support.waiting import until

TOPIC = "static"
QUEUE = MessageQueue(TOPIC, "__syslo__global__", 0)


class Moved:
    """A topic with one logical queue, and what moves it."""

    def __init__(self, cluster: Cluster, admin: Admin, client: RemotingClient) -> None:
        self.cluster = cluster
        self.admin = admin
        self.client = client
        self.addrs = {broker.name: broker.addr for broker in cluster.brokers}
        self.state = State(TOPIC, {}, list(self.addrs))

    def at(self, name: str) -> Remote:
        return Remote(self.client, self.addrs[name], 5_000)

    async def put(self, after: State) -> None:
        for name, part in changed_parts(self.state, after).items():
            await self.admin.put_static_topic(self.addrs[name], part.config, part.mapping)
        self.state = after

    async def make(self, name: str) -> None:
        await self.put(levelled(grown(self.state, [name], 1, 1_000), 1, 1_000))

    async def move(self, name: str, *, decide: bool = True) -> None:
        await self.put(begun(self.state, {0: name}, 0))
        await self.put(given_away(self.state))
        if decide:
            await self.decide()
        await self.known(name)

    async def decide(self) -> None:
        before = self.state.undecided[0].stretches[-2]
        end = await self.admin.own_max_offset(self.addrs[before.bname], TOPIC, before.queue_id)
        await self.put(decided(self.state, {0: end}))

    async def known(self, name: str) -> None:
        async def is_known() -> bool:
            try:
                parts = (await self.admin.topic_route(TOPIC)).topic_queue_mapping_by_broker or {}
            except RouteNotFound:
                return False
            return name in parts and 0 in parts[name].curr_id_map

        await until(is_known, f"{name} leads the queue")

    async def send(self, *bodies: bytes) -> list[int]:
        async with Producer(self.cluster.nameserver, group="p") as producer:
            return [(await producer.send(Message(TOPIC, body))).queue_offset for body in bodies]


@pytest.fixture
async def moved(tmp_path: Path) -> AsyncIterator[Moved]:
    async with (
        in_threads(tmp_path, 2) as cluster,
        Admin(cluster.nameserver) as admin,
        open_client() as client,
    ):
        made = Moved(cluster, admin, client)
        await made.make("broker-a")
        await made.known("broker-a")
        yield made


async def all_of(nameserver: str, group: str = "g", offset: int = 0) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with PullConsumer(nameserver, group=group) as consumer:
        end = await consumer.max_offset(QUEUE)
        while offset < end:
            result = await consumer.pull(QUEUE, offset)
            found += [(message.queue_offset, message.body) for message in result.messages]
            offset = max(offset, result.next_offset)
    return found


async def test_a_reader_sees_one_queue(moved: Moved) -> None:
    assert await moved.send(b"a0", b"a1", b"a2") == [0, 1, 2]
    await moved.move("broker-b")
    assert await moved.send(b"b0", b"b1") == [BLOCK, BLOCK + 1]
    await moved.move("broker-a")
    assert await moved.send(b"c0") == [2 * BLOCK]
    nameserver = moved.cluster.nameserver
    assert await all_of(nameserver) == [
        (0, b"a0"), (1, b"a1"), (2, b"a2"), (BLOCK, b"b0"), (BLOCK + 1, b"b1"), (2 * BLOCK, b"c0"),
    ]  # fmt: skip
    async with PullConsumer(nameserver, group="g") as consumer:
        assert await consumer.message_queues(TOPIC) == [QUEUE]
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 2 * BLOCK + 1)
        # Between two stretches, and past the end.
        assert (await consumer.pull(QUEUE, 500)).next_offset == BLOCK
        assert (await consumer.pull(QUEUE, 2 * BLOCK + 7)).next_offset == 2 * BLOCK + 1


async def test_a_queue_that_is_not_decided_is_written_and_read_later(moved: Moved) -> None:
    await moved.send(b"a0")
    await moved.move("broker-b", decide=False)
    assert await moved.send(b"b0") == [-1]
    nameserver = moved.cluster.nameserver
    async with PullConsumer(nameserver, group="g") as consumer:
        assert await consumer.max_offset(QUEUE) == 1
        assert (await consumer.pull(QUEUE, 1)).next_offset == 1
        await moved.decide()
        assert await all_of(nameserver, offset=1) == [(BLOCK, b"b0")]


async def test_only_the_leader_serves_it(moved: Moved) -> None:
    await moved.move("broker-b")
    for what, header in (
        (GET_MIN_OFFSET, QueueRequestHeader(TOPIC, 0)),
        (GET_MAX_OFFSET, GetMaxOffsetRequestHeader(TOPIC, 0)),
        (QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader("g", TOPIC, 0)),
    ):
        with pytest.raises(BrokerError) as caught:
            await call(moved.at("broker-a"), what, header)
        assert caught.value.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    with pytest.raises(BrokerError, match="does not exit in request process of current broker broker-b"):
        await call(moved.at("broker-b"), GET_MIN_OFFSET, QueueRequestHeader(TOPIC, 1))


async def test_times_of_all_stretches(moved: Moved) -> None:
    def search(timestamp: int, boundary: str | None = None) -> SearchOffsetRequestHeader:
        return SearchOffsetRequestHeader(TOPIC, 0, timestamp, boundary)

    async def at(timestamp: int, boundary: str | None = None) -> int:
        return (
            (await call(moved.at("broker-b"), SEARCH_OFFSET_BY_TIMESTAMP, search(timestamp, boundary))).header().offset
        )

    await moved.send(b"a0", b"a1")
    await moved.move("broker-b")
    async with PullConsumer(moved.cluster.nameserver, group="g") as consumer:
        (first, last) = [message.store_timestamp for message in (await consumer.pull(QUEUE, 0)).messages]
    now = await call(moved.at("broker-b"), GET_EARLIEST_MSG_STORETIME, QueueRequestHeader(TOPIC, 0))
    assert now.header().timestamp == first
    assert await at(0) == 0
    assert await at(last + 1) == BLOCK  # all that is on the first broker is older
    assert await at(last, "UPPER") == 1
    await moved.send(b"b0")
    async with PullConsumer(moved.cluster.nameserver, group="g") as consumer:
        (newest,) = (await consumer.pull(QUEUE, BLOCK)).messages
    assert await at(newest.store_timestamp) in (0, 1, BLOCK)  # all three may be of one millisecond
    assert await at(newest.store_timestamp, "UPPER") == BLOCK


async def test_offsets_of_groups(moved: Moved) -> None:
    async def commit(offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader("g", TOPIC, 0, offset)
        await call(moved.at("broker-b"), UPDATE_CONSUMER_OFFSET, header)

    async def committed() -> int | None:
        header = QueryConsumerOffsetRequestHeader("g", TOPIC, 0, set_zero_if_not_found=False)
        answer = await call(moved.at("broker-b"), QUERY_CONSUMER_OFFSET, header)
        return answer.header().offset if answer.code == 0 else None

    async def own(name: str) -> int | None:
        header = QueryConsumerOffsetRequestHeader("g", TOPIC, 0, set_zero_if_not_found=False)
        command = QUERY_CONSUMER_OFFSET.command(header)
        answer = await moved.client.invoke(
            moved.addrs[name], Command(command.code, {**(command.ext or {}), "lo": False}), 5_000
        )
        return int((answer.ext or {})["offset"]) if answer.code == 0 else None

    await moved.send(b"a0", b"a1", b"a2")
    header = UpdateConsumerOffsetRequestHeader("g", TOPIC, 0, 1)
    await call(moved.at("broker-a"), UPDATE_CONSUMER_OFFSET, header)
    await moved.move("broker-b")
    assert (await committed(), await own("broker-a"), await own("broker-b")) == (1, 1, None)
    await commit(2)
    assert (await committed(), await own("broker-a")) == (2, 2)
    # With its first commit on the new broker a group has read all of the former one.
    await moved.send(b"b0", b"b1")
    await commit(BLOCK)
    assert (await own("broker-a"), await own("broker-b")) == (3, 0)
    await commit(BLOCK + 2)
    assert await committed() == BLOCK + 2
    # A group that goes back is not sent forward again.
    await commit(1)
    assert await committed() == 1
    await commit(BLOCK + 1)
    assert (await committed(), await own("broker-a")) == (BLOCK + 1, 3)


async def test_late_messages_go_to_the_leader(moved: Moved) -> None:
    async with TransactionProducer(
        moved.cluster.nameserver, group="tp", checker=lambda message: TransactionState.UNKNOWN
    ) as producer:
        transaction = await producer.begin(Message(TOPIC, b"half"))
        await moved.send(b"a0")
        await moved.move("broker-b")
        assert await all_of(moved.cluster.nameserver) == [(0, b"a0")]
        # Its end goes to the broker that has the half message, into whose queue the message comes.
        await producer.end(transaction, TransactionState.COMMIT)

        async def comes() -> bool:
            return [body for _, body in await all_of(moved.cluster.nameserver)] == [b"a0", b"half"]

        await until(comes, "the message is in the queue of the new broker", 20)
    assert await all_of(moved.cluster.nameserver, offset=1) == [(BLOCK, b"half")]


async def test_pops_find_messages_on_both_brokers(moved: Moved) -> None:
    await moved.send(b"a0")
    await moved.move("broker-b")
    await moved.send(b"b0")
    found: set[bytes] = set()
    async with SimpleConsumer(moved.cluster.nameserver, group="pop", subscriptions={TOPIC: "*"}) as consumer:
        while len(found) < 2:
            for message in await consumer.receive(wait_ms=1_000):
                found.add(message.body)
                await consumer.ack(message)
    assert found == {b"a0", b"b0"}


@pytest.fixture
def often_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the brokers start."""
    monkeypatch.setattr(logical_queues, "CLEAN_S", 0.0)


async def test_what_has_expired_is_forgotten(often_cleaned: None, moved: Moved) -> None:
    await moved.move("broker-b")  # nothing was on the first broker
    await moved.send(b"b0")

    async def is_forgotten() -> bool:
        part = (await moved.admin.static_topic(moved.addrs["broker-b"], TOPIC)).mapping_detail
        assert part is not None
        return [stretch.bname for stretch in part.hosted_queues[0]] == ["broker-b"]

    await until(is_forgotten, "the stretch without messages is gone", 20)
    assert await all_of(moved.cluster.nameserver) == [(BLOCK, b"b0")]


async def test_a_broker_that_is_away_is_waited_for(moved: Moved) -> None:
    await moved.send(b"a0")
    await moved.move("broker-b")
    await moved.send(b"b0")
    async with PullConsumer(moved.cluster.nameserver, group="g", timeout_ms=1_000) as consumer:
        await moved.admin.delete_topic_in_broker(moved.addrs["broker-a"], TOPIC)
        with pytest.raises(SkylarkError):
            await consumer.pull(QUEUE, 0)
        assert [message.body for message in (await consumer.pull(QUEUE, BLOCK)).messages] == [b"b0"]


async def test_changes_of_what_is_fixed_are_refused(moved: Moved) -> None:
    addr, part = moved.addrs["broker-a"], moved.state.parts["broker-a"]

    async def refused(config: TopicConfig, mapping: TopicQueueMappingDetail, why: str) -> None:
        with pytest.raises(BrokerError, match=why):
            await moved.admin.put_static_topic(addr, config, mapping)

    def mapping(epoch: int, *stretches: LogicQueueMappingItem, **more: str) -> TopicQueueMappingDetail:
        return TopicQueueMappingDetail(TOPIC, total_queues=1, epoch=epoch, hosted_queues={0: list(stretches)},
                                       **{"bname": "broker-a", **more})  # fmt: skip

    now = part.mapping.epoch
    first = LogicQueueMappingItem(0, 0, "broker-a")
    await refused(part.config, mapping(now - 1, first), "is older than")
    await refused(part.config, mapping(now, first, bname="broker-b"), "is a mapping of broker broker-b")
    await refused(part.config, mapping(now, first, scope="other"), "scope other")
    await refused(part.config, TopicQueueMappingDetail(TOPIC, bname="broker-a", epoch=now), "lacks logical queue 0")
    await refused(part.config, mapping(now + 1, LogicQueueMappingItem(0, 1, "broker-a")), "is another queue")
    await refused(part.config, mapping(now + 1, LogicQueueMappingItem(0, -1, "broker-a")), "is negative")
    await refused(TopicConfig("other", 1, 1), mapping(now, first), "the mapping is of topic static")
    with pytest.raises(BrokerError, match="updateStaticTopic"):
        await moved.admin.create_topic(addr, TopicConfig(TOPIC, 8, 8))
    assert (await moved.admin.static_topic(addr, TOPIC)).mapping_detail == part.mapping
    await moved.admin.delete_topic_in_broker(addr, TOPIC)
    with pytest.raises(BrokerError):
        await moved.admin.static_topic(addr, TOPIC)
