"""drain, undrain, shrinkTopic and rebalanceTopic on brokers of ours: messages are consumed once, wherever they are."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from skylark import Admin, ConsumeFrom, Message, MessageQueue, Producer, PullConsumer, PushConsumer, SimpleConsumer
from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.errors import SendFailed
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing import Cluster
from tests.support.in_process import until_known
from tests.support.waiting import DEADLINE_S, until

TOPIC = "orders"
# Clients of ours know of a change at once.
DRAIN = ("drain", "--settle", "0", "-b")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


async def run(cluster: Cluster, *words: str, ends_with: int = 0) -> dict[str, Any]:
    """The result of a command; its exit code must be as given."""
    line = [*words, "-n", cluster.nameserver, "--output", "json"]
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, line))
    assert done.exit_code == ends_with, done.output
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    return found


async def send(cluster: Cluster, count: int, broker_name: str = "", timeout_ms: int | None = None) -> list[bytes]:
    bodies = [b"%s %d" % (broker_name.encode(), number) for number in range(count)]
    async with Producer(cluster.nameserver, group="p") as producer:
        for number, body in enumerate(bodies):
            message = Message(TOPIC, body, keys=f"key-{number % 5}")
            queue = MessageQueue(TOPIC, broker_name, number % 4) if broker_name else None
            await producer.send(message, queue=queue, timeout_ms=timeout_ms)
    return bodies


async def consumed(cluster: Cluster, count: int, group: str = "g") -> list[bytes]:
    """The bodies of ``count`` messages, as a push consumer gets them."""
    found: list[bytes] = []
    enough = trio.Event()

    async def handle(message: Any) -> None:
        found.append(message.body)
        if len(found) >= count:
            enough.set()

    first = ConsumeFrom.FIRST_OFFSET
    async with PushConsumer(
        cluster.nameserver, group=group, subscriptions={TOPIC: "*"}, handler=handle, consume_from=first
    ):
        with trio.fail_after(DEADLINE_S):
            await enough.wait()
    return found


async def until_writes(cluster: Cluster, wanted: dict[str, int]) -> None:
    """Return when the NameServer knows the ``wanted`` number of writable queues of each broker."""

    async def known() -> bool:
        queues = (await admin.topic_route(TOPIC)).queue_datas
        return {one.broker_name: one.write_queue_nums if one.perm & 2 else 0 for one in queues} == wanted

    async with Admin(cluster.nameserver) as admin:
        await until(known)


async def test_a_drained_broker_is_read_to_its_end_and_stays_drained(cluster: Cluster) -> None:
    sent = await send(cluster, 8, "broker-a")
    assert sorted(await consumed(cluster, 8)) == sorted(sent)
    sent = await send(cluster, 40, "broker-a") + await send(cluster, 8, "broker-b")
    left = await run(cluster, *DRAIN, "broker-a", "--deadline", "0", ends_with=1)
    assert not left["isDrained"]
    assert left["unreadTotal"] == 40
    assert {(row["group"], row["isOnline"]) for row in left["unread"]} == {("g", False)}
    await until_writes(cluster, {"broker-a": 0, "broker-b": 4})
    with pytest.raises(SendFailed, match="is drained"):
        await send(cluster, 1, "broker-a", timeout_ms=300)
    cluster.brokers[0].stop()
    cluster.brokers[0].start()
    sent += await send(cluster, 8)
    await until_writes(cluster, {"broker-a": 0, "broker-b": 4})
    assert sorted(await consumed(cluster, len(sent))) == sorted(sent)
    assert (await run(cluster, *DRAIN, "broker-a"))["isDrained"]
    assert "error" not in await run(cluster, "undrain", "-b", "broker-a")
    await until_writes(cluster, {"broker-a": 4, "broker-b": 4})
    await send(cluster, 1, "broker-a")


async def test_what_nobody_has_read_moves_to_other_brokers(cluster: Cluster) -> None:
    first = await send(cluster, 20, "broker-a")
    assert sorted(await consumed(cluster, 20)) == sorted(first)
    sent = await send(cluster, 300, "broker-a")
    keys = await unique_keys(cluster, "broker-a")
    drained = await run(cluster, *DRAIN, "broker-a", "--move")
    assert (drained["isDrained"], drained["moved"]) == (True, 300)
    cluster.brokers[0].stop()
    found = await consumed(cluster, 300)
    assert Counter(found) == Counter(sent)
    assert sorted(await unique_keys(cluster, "broker-b")) == sorted(keys[20:])


async def test_all_topics_move_though_a_status_lists_some_of_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.admin.draining.MOST_ROWS", 1)
    topics = ["first", "second", "third"]
    async with Producer(cluster.nameserver, group="p") as producer:
        for topic in topics:
            cluster.create_topic(topic)
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 0))
    drained = await run(cluster, *DRAIN, "broker-a", "--move")
    assert (drained["isDrained"], drained["moved"], drained["unclaimed"]) == (True, 3, [])


async def test_a_drain_ends_when_somebody_undrains_the_broker(cluster: Cluster) -> None:
    async with trio.open_nursery() as nursery:
        found: list[dict[str, Any]] = []

        async def drain() -> None:
            words = ("drain", "-b", "broker-a", "--settle", "3600")
            found.append(await run(cluster, *words, ends_with=1))

        nursery.start_soon(drain)
        await until_writes(cluster, {"broker-a": 0, "broker-b": 4})
        await run(cluster, "undrain", "-b", "broker-a")
        await until_writes(cluster, {"broker-a": 4, "broker-b": 4})
    assert (found[0]["isDrained"], found[0]["drainedSince"]) == (False, 0)


async def unique_keys(cluster: Cluster, broker_name: str) -> list[str]:
    """The unique keys of all messages of a broker, in their order in each queue."""
    found = []
    async with PullConsumer(cluster.nameserver, group="looking") as consumer:
        for number in range(4):
            offset = 0
            queue = MessageQueue(TOPIC, broker_name, number)
            while messages := (await consumer.pull(queue, offset, wait_ms=0)).messages:
                found += [(message.queue_offset, message.msg_id) for message in messages]
                offset = messages[-1].queue_offset + 1
    return [key for _, key in sorted(found)]


async def test_a_topic_shrinks_under_its_producers_and_consumers(cluster: Cluster) -> None:
    """Nothing is refused, and every message is consumed once."""
    found: list[bytes] = []
    sent: list[bytes] = []
    done = False

    async def handle(message: Any) -> None:
        found.append(message.body)

    async def produce(number: int) -> None:
        async with Producer(cluster.nameserver, group="p") as producer:
            while not done:
                body = b"%d %d" % (number, len(sent))
                await producer.send(Message(TOPIC, body))
                sent.append(body)
                await trio.sleep(0.001)

    async with (
        PushConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(produce, 1)
        nursery.start_soon(produce, 2)
        words = ["-t", TOPIC, "-c", "DefaultCluster", "--settle", "0.5"]
        shrunk = await run(cluster, "shrinkTopic", *words, "-w", "1")
        assert [(row["write"], row["newRead"]) for row in shrunk["plan"]] == [(4, 1), (4, 1)]
        assert (await run(cluster, "shrinkTopic", *words, "-w", "1"))["plan"] == []
        await run(cluster, "rebalanceTopic", *words, "-w", "5")
        done = True
    await until_writes(cluster, {"broker-a": 3, "broker-b": 2})
    async with PushConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle):
        await until(lambda: len(found) >= len(sent))
    assert Counter(found) == Counter(sent)


async def test_the_queues_that_stay_get_what_nobody_has_read(cluster: Cluster) -> None:
    first = await send(cluster, 20, "broker-b")
    assert sorted(await consumed(cluster, 20)) == sorted(first)
    sent = await send(cluster, 300, "broker-b")
    words = ["shrinkTopic", "-t", TOPIC, "-c", "DefaultCluster", "-w", "1", "--settle", "0"]
    dry = await run(cluster, *words, "--dryRun")
    assert [row["messages"] for row in dry["plan"]] == [0, 240]
    await until_writes(cluster, {"broker-a": 4, "broker-b": 4})
    assert (await run(cluster, *words, "--move"))["moved"] == 225
    found = await consumed(cluster, 300)
    assert Counter(found) == Counter(sent)


async def test_a_broker_that_gets_a_topic_has_it_as_the_others(cluster: Cluster) -> None:
    a, b = [broker.address for broker in cluster.brokers]
    async with Admin(cluster.nameserver) as admin:
        await admin.create_topic(a, TopicConfig("typed", 4, 4, 4, attributes={"+message.type": "FIFO"}))
        await until_known(admin, "typed")
        await run(cluster, "rebalanceTopic", "-t", "typed", "-c", "DefaultCluster", "--settle", "0")
        assert await admin.topic_config(b, "typed") == await admin.topic_config(a, "typed")
        made = await admin.topic_config(b, "typed")
    assert (made.write_queue_nums, made.perm, made.attributes) == (2, 4, {"message.type": "FIFO"})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["shrinkTopic", "-t", TOPIC, "-w", "8"], "has fewer queues than that"),
        (["shrinkTopic", "-t", TOPIC, "-w", "2", "-r", "1"], "nobody can read"),
        (["shrinkTopic", "-t", "none", "-w", "2"], "there is no topic none"),
        (["shrinkTopic", "-t", TOPIC, "-w", "1", "--settle", "0"], "no group reads topic orders on broker-"),
        (["rebalanceTopic", "-t", TOPIC, "-w", "1"], "2 brokers have the topic"),
    ],
)
async def test_refusals(cluster: Cluster, words: list[str], why: str) -> None:
    await send(cluster, 8)
    assert why in (await run(cluster, *words, "-c", "DefaultCluster", ends_with=1))["error"]


async def test_a_drain_is_refused_when_a_topic_has_no_other_broker(cluster: Cluster) -> None:
    await run(cluster, "updateTopic", "-t", "lonely", "-b", cluster.brokers[0].address, "-w", "1", "-r", "1")
    async with Admin(cluster.nameserver) as admin:
        await until(lambda: _lists(admin, "lonely"))
    assert "lonely" in (await run(cluster, *DRAIN, "broker-a", ends_with=1))["error"]
    assert (await run(cluster, *DRAIN, "broker-a", "--force"))["isDrained"]
    assert "no broker 'broker-x'" in (await run(cluster, *DRAIN, "broker-x", ends_with=1))["error"]


async def _lists(admin: Admin, topic: str) -> bool:
    return topic in await admin.topic_list()


async def test_ordered_topics_are_not_reshaped(cluster: Cluster) -> None:
    words = ["-t", "ordered", "-c", "DefaultCluster"]
    await run(cluster, "updateTopic", *words, "-w", "4", "-r", "4", "-o", "true")
    assert "is ordered" in (await run(cluster, "shrinkTopic", *words, "-w", "2", ends_with=1))["error"]


async def test_what_would_fail_keys_of_ordered_topics_is_refused(cluster: Cluster) -> None:
    a = cluster.brokers[0].address
    words = ["-t", "ordered", "-c", "DefaultCluster"]
    await run(cluster, "updateTopic", *words, "-w", "4", "-r", "4", "-o", "true")
    async with Admin(cluster.nameserver) as admin:
        await until(lambda: _has_brokers(admin, "ordered", 2))
    why = "has queues of ordered topics: ordered"
    refused = (
        [*DRAIN, "broker-a"],
        ["wipeWritePerm", "-b", "broker-a"],
        ["updateTopicPerm", "-b", a, "-t", "ordered", "-p", "4"],
        ["updateBrokerConfig", "-b", a, "-k", "brokerPermission", "-v", "4"],
    )
    for line in refused:
        assert why in (await run(cluster, *line, ends_with=1))["error"]
    fewer = ["updateTopic", "-t", "ordered", "-b", a, "-w", "2", "-r", "4"]
    assert "its record has more queues than that" in (await run(cluster, *fewer, ends_with=1))["error"]
    async with Admin(cluster.nameserver) as admin:
        assert (await admin.topic_config(a, "ordered")).write_queue_nums == 4
        assert (await admin.broker_config(a))["brokerPermission"] == "6"
    for line in refused[1:]:
        assert "error" not in await run(cluster, *line, "--force")
    await run(cluster, "updateBrokerConfig", "-b", a, "-k", "brokerPermission", "-v", "6")
    # The order may end: then its brokers are like others.
    await run(cluster, "updateTopic", *words, "-w", "4", "-r", "4")
    assert why in (await run(cluster, *DRAIN, "broker-a", ends_with=1))["error"], "its record is left"
    await run(cluster, "updateOrderConf", "-t", "ordered", "-m", "delete")
    assert (await run(cluster, *DRAIN, "broker-a"))["isDrained"]


async def test_doctor_and_deletions_look_at_the_records_of_ordered_topics(cluster: Cluster) -> None:
    words = ["-t", "ordered", "-c", "DefaultCluster"]
    await run(cluster, "updateTopic", *words, "-w", "4", "-r", "4", "-o", "true")
    await run(cluster, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    async with Admin(cluster.nameserver) as admin:
        await until(lambda: _has_brokers(admin, "ordered", 2))
        assert ("OK", "the routes of 1 ordered topics are whole") in await orders_in_doctor(cluster)
        await run(cluster, *DRAIN, "broker-a", "--force")
        await until(lambda: _takes_no_messages(admin, "ordered", "broker-a"))
        [(state, text)] = await orders_in_doctor(cluster, ends_with=1)
        assert state == "FAIL"
        assert text.endswith("its order is broker-a:4;broker-b:4, but broker-a: it takes no messages")
        await run(cluster, "undrain", "-b", "broker-a")
        await until(lambda: _all_write(admin, "ordered"))
        await run(cluster, "updateOrderConf", "-t", "ordered", "-m", "put", "-v", "broker-a:4;broker-b:5;broker-c:4")
        [(state, text)] = await orders_in_doctor(cluster, ends_with=1)
        assert text.endswith("but broker-b: it has 4 queues, not 5; broker-c: the route lacks it")
        # A topic that is made anew must not get the order of the old one.
        await run(cluster, "deleteTopic", *words)
        assert await admin.get_kv("ORDER_TOPIC_CONFIG", "ordered") is None
        await run(cluster, "updateOrderConf", "-t", "gone", "-m", "put", "-v", "broker-a:4")
        [(state, text)] = await orders_in_doctor(cluster)
        assert (state, text) == ("WARN", "there is no such topic, but a record of its order: broker-a:4")


async def orders_in_doctor(cluster: Cluster, ends_with: int = 0) -> list[tuple[str, str]]:
    found = await run(cluster, "doctor", ends_with=ends_with)
    return [(row["state"], row["text"]) for row in found["findings"] if row["check"] == "order"]


async def _has_brokers(admin: Admin, topic: str, count: int) -> bool:
    return await _lists(admin, topic) and len((await admin.topic_route(topic)).queue_datas) == count


async def _takes_no_messages(admin: Admin, topic: str, broker: str) -> bool:
    queues = (await admin.topic_route(topic)).queue_datas
    return not any(queue.perm & 2 for queue in queues if queue.broker_name == broker)


async def _all_write(admin: Admin, topic: str) -> bool:
    return all(queue.perm & 2 for queue in (await admin.topic_route(topic)).queue_datas)


async def test_pops_of_queues_that_stay_hold_up_nothing() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.create_topic(TOPIC)
        async with (
            Producer(cluster.nameserver, group="p") as producer,
            SimpleConsumer(
                cluster.nameserver, group="pops", subscriptions={TOPIC: "*"}, invisible_ms=60_000
            ) as consumer,
        ):
            await producer.send(Message(TOPIC, b"kept"), queue=MessageQueue(TOPIC, cluster.brokers[0].name, 0))
            (held,) = await consumer.receive()
            await run(cluster, "shrinkTopic", "-t", TOPIC, "-c", "DefaultCluster", "-w", "1", "--settle", "0",
                      "--deadline", "10")  # fmt: skip
            await consumer.ack(held)


async def test_a_drain_waits_for_messages_that_come_back_to_pops() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.create_topic(TOPIC)
        addr = cluster.brokers[0].address
        async with (
            Producer(cluster.nameserver, group="p") as producer,
            Admin(cluster.nameserver) as admin,
            SimpleConsumer(cluster.nameserver, group="pops", subscriptions={TOPIC: "*"}) as consumer,
        ):
            await producer.send(Message(TOPIC, b"x"))
            await consumer.receive(invisible_ms=1_000)
            await admin.drain_broker(addr, settle_ms=0)

            async def is_back() -> bool:
                status = await admin.drain_status(addr)
                assert not status.is_over
                return [(row.topic, row.group) for row in status.unread] == [(f"%RETRY%pops_{TOPIC}", "pops")]

            await until(is_back, "the message is in the retry topic, and counts as unread", 30)
            while not (again := await consumer.receive()):
                pass
            await consumer.ack(again)

            async def is_over() -> bool:
                return (await admin.drain_status(addr)).is_over

            await until(is_over, "the drain is over", 30)
