"""kombu's own classes over a cluster of ours: queues, exchanges, acknowledgements, prefetch counts, forks."""

import json
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
import trio
from celery import Celery
from celery.worker.consumer.connection import Connection as ConnectionStep
from kombu import Connection, Consumer, Exchange, Producer, Queue, binding
from kombu.common import maybe_declare
from kombu.exceptions import ChannelError, OperationalError
from kombu.pools import producers
from kombu.utils import compat

from skylark import blocking
from skylark.mqcommon.errors import BrokerError, InvalidArgument, NoNameServer, RouteNotFound, UserError
from skylark.mqcommon.names import is_retry_topic
from skylark.sdk.integrations.kombu import Transport, feed, session, stream
from skylark.sdk.integrations.kombu.feed import Feed
from skylark.sdk.integrations.kombu.names import queue_topic
from skylark.sdk.integrations.kombu.session import ClusterSession
from skylark.sdk.integrations.kombu.sessions import SESSIONS
from skylark.sdk.testing import Cluster
from tests.support.forks import in_child
from tests.support.waiting import until_true

PATIENCE_S = 30
# For what must not come. A longer time would not find more: it has come, or it is hidden for a minute.
NOTHING_S = 0.3


class Reader:
    """A consumer of its own channel, and what it got."""

    def __init__(self, connection: Any, *queues: Any, prefetch: int = 0, **options: Any) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.messages: list[Any] = []
        self._consumer = Consumer(
            self.channel, [each if isinstance(each, Queue) else Queue(each) for each in queues],
            on_message=self.messages.append, prefetch_count=prefetch or None, **options,
        )  # fmt: skip
        self._consumer.consume()

    def until(self, reached: Callable[[], bool]) -> list[Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            self.connection.drain_events(timeout=max(deadline - time.monotonic(), 0))
        return self.messages

    def get(self, count: int) -> list[Any]:
        """The next ``count`` messages."""
        self.until(lambda: len(self.messages) >= count)
        found, self.messages[:] = self.messages[:count], self.messages[count:]
        return found

    def gets_nothing(self) -> bool:
        try:
            self.connection.drain_events(timeout=NOTHING_S)
        except TimeoutError:
            return not self.messages
        return False

    def cancel(self) -> None:
        self._consumer.cancel()

    def close(self) -> None:
        self.channel.close()


def send(connection: Any, queue: str, *bodies: Any, **options: Any) -> None:
    producer = Producer(connection, auto_declare=False)
    for body in bodies:
        producer.publish(body, routing_key=queue, declare=[Queue(queue)], **options)


def bodies(messages: list[Any]) -> list[Any]:
    return sorted(message.payload for message in messages)


def test_messages_go_to_one_consumer_each_and_are_gone_when_acknowledged(connection: Any, queue: str) -> None:
    send(connection, queue, *range(20), {"a": ["b", None]}, headers={"trace": "x"})
    with connection.clone() as other:
        readers = [Reader(connection, queue, prefetch=5), Reader(other, queue, prefetch=5)]
        seen: list[Any] = []
        while len(seen) < 21:
            for reader in readers:
                try:
                    reader.connection.drain_events(timeout=0.05)
                except TimeoutError:
                    continue
                for message in reader.messages:
                    seen.append(message.payload)
                    assert message.headers == {"trace": "x"} and not message.delivery_info["redelivered"]
                    message.ack()
                reader.messages.clear()
        assert sorted(map(str, seen)) == sorted(map(str, [*range(20), {"a": ["b", None]}]))
        for reader in readers:
            reader.close()
    # The offset of popped messages is committed once a second.
    until_true(lambda: connection.default_channel.queue_declare(queue, passive=True).message_count == 0)


def test_a_prefetch_count_bounds_what_a_channel_has(connection: Any, queue: str) -> None:
    others = f"{queue}.others"
    send(connection, queue, *range(10))
    send(connection, others, *range(10))
    reader = Reader(connection, queue, others, prefetch=3)
    first = reader.get(3)
    assert reader.gets_nothing()
    first[0].ack()
    second = reader.get(1)
    assert reader.gets_nothing()
    for message in [*first[1:], *second]:
        message.ack()
    reader.channel.basic_qos(0, 20, False)
    rest = reader.get(16)
    assert bodies(first + second + rest) == sorted([*range(10)] * 2)
    reader.close()


def test_what_is_rejected_comes_again_at_once_or_never(connection: Any, queue: str) -> None:
    send(connection, queue, "again")
    reader = Reader(connection, queue)
    (message,) = reader.get(1)
    message.requeue()
    (message,) = reader.get(1)
    assert message.payload == "again" and message.delivery_info["redelivered"]
    message.reject()
    assert reader.gets_nothing()
    reader.close()


def test_a_closed_channel_gives_back_what_it_has(connection: Any, queue: str) -> None:
    send(connection, queue, *range(6))
    reader = Reader(connection, queue)
    handed_out = reader.get(2)
    handed_out[0].ack()
    reader.cancel()
    # A cancelled consumer gets nothing more, and may still acknowledge.
    assert reader.gets_nothing()
    reader.close()
    other = Reader(connection, queue)
    assert len({message.payload for message in [handed_out[0], *other.get(5)]}) == 6
    other.close()


def test_a_message_that_is_worked_on_is_hidden_for_longer_than_its_time(url: str, queue: str) -> None:
    options = {"visibility_timeout": 0.5}
    with Connection(url, transport_options=options) as busy, Connection(url, transport_options=options) as idle:
        send(busy, queue, "long")
        worker, other = Reader(busy, queue), Reader(idle, queue)
        found: list[Any] = []
        while not found:
            for reader in (worker, other):
                try:
                    reader.connection.drain_events(timeout=0.05)
                except TimeoutError:
                    continue
                found = reader.messages
        with pytest.raises(TimeoutError):
            # Three times as long as the message would be hidden without renewals.
            idle.drain_events(timeout=1.5)
        found[0].ack()
        worker.close()
        other.close()


def test_one_message_can_be_asked_for(connection: Any, queue: str) -> None:
    with connection.SimpleQueue(queue) as simple:
        simple.put("one")
        message = simple.get(timeout=PATIENCE_S)
        message.ack()
        assert message.payload == "one"
    bound = Queue(queue)(connection.default_channel)
    assert bound.get() is None
    send(connection, queue, "two")
    assert bound.get(no_ack=True).payload == "two"


def test_what_was_given_back_is_there_for_the_next_get(
    connection: Any, url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same channel and on other channels of the process, after requeue, recover, cancel and close."""
    monkeypatch.setattr(feed, "RETURN_S", PATIENCE_S)
    send(connection, queue, "one")
    with Connection(url) as other:
        channel, others = connection.channel(), other.default_channel
        message = Queue(queue)(channel).get()
        message.requeue()
        message = Queue(queue)(channel).get()
        channel.basic_recover(requeue=True)
        message = Queue(queue)(others).get()
        assert message.delivery_info["redelivered"]
        message.requeue()
        # What the consumer has got and the program has not.
        reader = Reader(connection, queue)
        until_true(lambda: len(connection.transport.mailbox))
        reader.cancel()
        message = Queue(queue)(channel).get()
        channel.close()
        message = Queue(queue)(others).get()
        message.ack()
        assert message.payload == "one" and Queue(queue)(others).get() is None
        reader.close()


def test_an_expired_message_is_left_out(connection: Any, queue: str) -> None:
    exchange = Exchange(f"x.{queue}", type="fanout")
    readers = [Reader(connection, queue), Reader(connection, Queue(f"{queue}.now", exchange, auto_delete=True))]
    for options in ({"routing_key": queue}, {"exchange": exchange}):
        producer = Producer(connection)
        producer.publish("late", expiration=0, **options)
        producer.publish("in time", expiration=PATIENCE_S, **options)
    assert [bodies(reader.get(1)) for reader in readers] == [["in time"], ["in time"]]
    assert all(reader.gets_nothing() for reader in readers)
    for reader in readers:
        reader.close()
    with pytest.raises(InvalidArgument, match="a number of ms as text, not 'soon'"):
        channel = connection.default_channel
        channel.basic_publish(channel.prepare_message("x", properties={"expiration": "soon"}), "", queue)


def test_consumers_that_come_and_go_on_a_channel_leave_nothing(connection: Any, queue: str) -> None:
    channel = connection.default_channel
    for number in range(2):
        with connection.SimpleQueue(queue) as simple:
            simple.put(number)
            message = simple.get(timeout=PATIENCE_S)
        # It is acknowledged after its consumer is gone.
        assert message.payload == number and len(channel._feeds) == 1
        message.ack()
        until_true(lambda: not channel._feeds)
    until_true(lambda: not connection.transport.shared.opened.client._consumers)


def test_queues_that_nobody_has_any_more_are_forgotten(
    connection: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_GROUPS", 2)

    async def groups(of: ClusterSession) -> int:
        return len(of._taken)

    for number in range(4):
        with connection.SimpleQueue(f"{queue}-{number}") as simple:
            simple.put(number)
            simple.get(timeout=PATIENCE_S).ack()
        until_true(lambda: not connection.transport.shared.opened.client._consumers)
    assert connection.transport.shared.call(groups) == 2


def test_acknowledging_by_receiving(connection: Any, queue: str) -> None:
    send(connection, queue, "once")
    reader = Reader(connection, queue, no_ack=True)
    assert bodies(reader.get(1)) == ["once"]
    reader.close()
    other = Reader(connection, queue)
    assert other.gets_nothing()
    other.close()


def test_a_queue_is_counted_and_purged(connection: Any, queue: str) -> None:
    channel = connection.default_channel
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare(queue, passive=True)
    send(connection, queue, *range(7))
    assert channel.queue_declare(queue, passive=True).message_count == 7
    assert channel.queue_purge(queue) == 7
    send(connection, queue, "after")
    reader = Reader(connection, queue)
    assert bodies(reader.get(1)) == ["after"]
    reader.close()


@pytest.mark.parametrize("namespace", ["", "counted"])
def test_what_was_given_back_is_counted_and_purged_and_what_is_timed_is_named(
    cluster: Cluster, url: str, queue: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Connection(url + namespace) as connection:
        channel = connection.default_channel
        send(connection, queue, *range(6))
        reader = Reader(connection, queue, prefetch=4)
        reader.get(4)
        # Gives them back.
        reader.close()
        with blocking.Admin(cluster.nameserver, namespace=namespace) as admin:
            until_true(lambda: _came_back(admin, queue_topic(queue)) == 4)
        # The offset of popped messages is committed once a second: until then they count twice.
        until_true(lambda: channel.queue_declare(queue, passive=True).message_count == 6)
        assert channel.queue_purge(queue) == 6
        assert channel.queue_declare(queue, passive=True).message_count == 0
        send(connection, queue, "later", headers=eta(3600))
        until_true(lambda: channel.queue_purge(queue) == 0 and "until they are due" in caplog.text)
        caplog.clear()
        Queue(f"{queue}.now", auto_delete=True)(channel).declare()
        channel.queue_delete(f"{queue}.now")
        assert "until they are due" not in caplog.text
        send(connection, queue, "after")
        reader = Reader(connection, queue)
        assert bodies(reader.get(1)) == ["after"] and reader.gets_nothing()
        reader.close()


def _came_back(admin: Any, group: str) -> int:
    """How many messages the brokers have moved to the group's retry topics."""
    found = [topic for topic in admin.topic_list() if is_retry_topic(topic) and topic.endswith(group)]
    return sum(offset.max_offset for topic in found for offset in admin.topic_stats(topic).offset_table.values())


def test_fanout_reaches_all_who_listen_and_only_from_then_on(connection: Any, url: str, queue: str) -> None:
    exchange = Exchange(f"news.{queue}", type="fanout")
    publish = partial(Producer(connection, exchange=exchange).publish, routing_key="")
    publish("before")
    with Connection(url) as first, Connection(url) as second:
        readers = [
            Reader(each, Queue(f"{queue}.{number}", exchange, auto_delete=True))
            for number, each in enumerate((first, second))
        ]
        publish("now")
        assert [bodies(reader.get(1)) for reader in readers] == [["now"], ["now"]]
        assert all(reader.gets_nothing() for reader in readers)
        for reader in readers:
            reader.close()


def test_a_listener_that_is_slow_leaves_messages_at_the_broker(
    connection: Any, url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST", 20)
    monkeypatch.setattr(stream, "POLL_COUNT", 10)
    exchange = Exchange(f"slow-{queue}", type="fanout")
    with connection.clone() as listening:
        reader = Reader(listening, Queue(queue, exchange, auto_delete=True))
        producer = Producer(connection, exchange)
        for number in range(200):
            producer.publish(number)
        mailbox = listening.transport.mailbox
        until_true(lambda: len(mailbox) >= 20)
        while len(reader.messages) < 200:
            assert len(mailbox) < 20 + 10
            reader.connection.drain_events(timeout=PATIENCE_S)
        assert bodies(reader.messages) == list(range(200))


def test_of_many_reply_queues_those_are_read_that_were_used_last(
    connection: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.sdk.integrations.kombu.session.MOST_REPLIES", 2)
    replies = [str(uuid.UUID(int=number)) for number in range(3)]
    for queue in (replies[0], replies[1], replies[0], replies[2]):
        Queue(queue, auto_delete=True)(connection.default_channel).declare()
    with Connection(url) as other:
        for queue in replies:
            Producer(other).publish(queue, routing_key=queue)
    readers = [Reader(connection, Queue(queue, auto_delete=True), no_ack=True) for queue in (replies[0], replies[2])]
    assert [bodies(reader.get(1)) for reader in readers] == [[replies[0]], [replies[2]]]
    late = Reader(connection, Queue(replies[1], auto_delete=True), no_ack=True)
    assert late.gets_nothing()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("", {"auto_delete": True}),
        ("", {"exclusive": True}),
        ("same", {"auto_delete": True}),
        ("direct", {"auto_delete": True}),
        ("topic", {"exclusive": True}),
        ("fanout", {"auto_delete": True, "exclusive": True}),
    ],
)
def test_what_is_sent_to_an_auto_deleted_queue_by_its_name_goes_to_one_of_its_consumers(
    connection: Any, url: str, queue: str, kind: str, options: dict[str, bool]
) -> None:
    exchange = {"": None, "same": Exchange(queue)}.get(kind, Exchange(f"x.{queue}", type=kind))
    made = partial(Queue, queue, exchange, queue if kind == "same" else "key", **options)
    assert made()(connection.default_channel).queue_declare(passive=False).message_count == 0
    with Connection(url) as publisher, Connection(url) as listening:
        readers = [Reader(each, made(), prefetch=1) for each in (connection, listening)]
        assert readers[0].gets_nothing()
        for number in range(2):
            Producer(publisher).publish(number, routing_key=queue)
        first = [reader.get(1)[0] for reader in readers]
        assert bodies(first) == [0, 1]
        first[0].requeue()
        (again,) = readers[0].get(1)
        assert again.payload == first[0].payload and again.delivery_info["redelivered"]
        again.ack()
        first[1].ack()
        if kind not in ("", "same"):
            Producer(publisher, exchange).publish("to all", routing_key="key")
            assert [bodies(reader.get(1)) for reader in readers] == [["to all"], ["to all"]]
        for reader in readers:
            reader.close()


@pytest.mark.parametrize("prefix", ["", "amq.gen-"])
def test_a_queue_with_a_name_of_its_own_listens_to_an_exchange_and_is_sent_to(
    connection: Any, url: str, queue: str, prefix: str
) -> None:
    exchange = Exchange(f"news.{queue}", type="fanout")
    made = Queue(f"{prefix}{uuid.uuid4()}", exchange, exclusive=True)
    reader = Reader(connection, made)
    with Connection(url) as other:
        made(other.default_channel).declare()
        Producer(other, exchange).publish("to all")
        Producer(other).publish("by name", routing_key=made.name)
    assert bodies(reader.get(2)) == ["by name", "to all"] and reader.gets_nothing()
    with blocking.Admin(url[len("rocketmq://") : -1]) as admin:
        assert not any(made.name[-12:] in topic for topic in admin.topic_list())
    reader.close()


def test_an_auto_deleted_queue_is_asked_counted_and_purged(connection: Any, url: str, queue: str) -> None:
    with Connection(url) as publisher, connection.SimpleBuffer(queue) as buffer, publisher.SimpleBuffer(queue) as other:
        other.close()
        for number in range(3):
            other.put(number)
        assert buffer.get(timeout=PATIENCE_S).payload in range(3)
        buffer.consumer.cancel()
        channel = connection.channel()
        made = Queue(f"{queue}.counted", auto_delete=True)(channel)
        made.declare()
        assert made.get() is None
        for number in range(3):
            Producer(publisher).publish(number, routing_key=made.name)
        assert made.get(no_ack=True).payload in range(3)
        until_true(lambda: channel.queue_declare(made.name, passive=True).message_count == 2)
        assert made.purge() == 2 and made.get() is None
        made.delete()
        channel.close()


def test_durable_queues_of_an_exchange_keep_what_they_are_bound_to(connection: Any, url: str, queue: str) -> None:
    """By keys and patterns, also when the publisher does not know the queues."""
    topics, direct = Exchange(f"t.{queue}", type="topic"), Exchange(f"d.{queue}", type="direct")
    stock, all_of_it = Queue(f"{queue}.stock", topics, "stock.#"), Queue(f"{queue}.all", topics, "#")
    paid = Queue(f"{queue}.paid", direct, "paid")
    for each in (stock, all_of_it, paid):
        each(connection.default_channel).declare()
    with Connection(url) as publisher:
        for key in ("stock.tea", "news.tea"):
            Producer(publisher, exchange=topics).publish(key, routing_key=key)
        for key in ("paid", "open"):
            Producer(publisher, exchange=direct).publish(key, routing_key=key)
    readers = [Reader(connection, each) for each in (stock, all_of_it, paid)]
    expected = [["stock.tea"], ["news.tea", "stock.tea"], ["paid"]]
    for reader, keys in zip(readers, expected, strict=True):
        assert bodies(reader.until(lambda reader=reader, keys=keys: len(reader.messages) == len(keys))) == keys
        for message in reader.messages:
            message.ack()
        reader.messages.clear()
    assert readers[0].gets_nothing()
    for reader in readers:
        reader.close()


def test_a_key_with_the_name_of_its_exchange_reaches_queues_of_all_names(connection: Any, url: str, queue: str) -> None:
    exchange = Exchange(queue, type="direct")
    same, other = Queue(queue, exchange, queue), Queue(f"{queue}.other", exchange, queue)
    listener = Queue(f"{queue}.now", exchange, queue, auto_delete=True)
    readers = [Reader(connection, each) for each in (same, other, listener)]
    with Connection(url) as publisher:
        # Who publishes need not know the queues.
        Producer(publisher).publish("for the queue of this name only", routing_key=queue)
        Producer(publisher, exchange).publish("for all", routing_key=queue)
        readers[0].until(lambda: sum(len(reader.messages) for reader in readers) == 4)
    expected = [["for all", "for the queue of this name only"], ["for all"], ["for all"]]
    assert [bodies(reader.messages) for reader in readers] == expected
    for reader in readers:
        reader.close()


def test_a_queue_may_be_bound_to_an_exchange_with_several_keys(connection: Any, queue: str) -> None:
    exchange = Exchange(f"d.{queue}", type="direct")
    keys = ["red", "blue", exchange.name]
    reader = Reader(connection, Queue(queue, [binding(exchange, key) for key in keys]))
    for key in ("green", *keys):
        Producer(connection, exchange).publish(key, routing_key=key)
    assert bodies(reader.get(3)) == sorted(keys) and reader.gets_nothing()
    reader.close()


def eta(after_s: float) -> dict[str, str]:
    """The headers of a task of Celery."""
    return {"task": "t", "eta": (datetime.now(UTC) + timedelta(seconds=after_s)).isoformat()}


def test_a_task_with_an_eta_comes_by_steps_and_waits_at_the_broker(url: str, queue: str) -> None:
    with Connection(url, transport_options={"eta_lead": 0, "max_delay": 0.4}) as connection:
        headers = eta(1.5)
        send(connection, queue, "later", headers=headers)
        reader = Reader(connection, queue)
        (message,) = reader.get(1)
        assert message.payload == "later" and datetime.now(UTC).isoformat() >= headers["eta"]
        message.ack()
        assert reader.gets_nothing()
        reader.close()


@pytest.mark.parametrize("kind", ["topic", "fanout"])
def test_each_queue_of_an_exchange_gets_a_task_once_that_comes_by_steps(url: str, queue: str, kind: str) -> None:
    with Connection(url, transport_options={"eta_lead": 0, "max_delay": 0.3}) as connection:
        exchange = Exchange(f"steps.{queue}", type=kind)
        bound = [Queue(f"{queue}.{number}", exchange, "a.#") for number in range(2)]
        for each in bound:
            each(connection.default_channel).declare()
        Producer(connection, exchange).publish("later", routing_key="a.b", headers=eta(0.8))
        reader = Reader(connection, *bound)
        found = reader.get(2)
        assert {message.delivery_info["routing_key"] for message in found} == {"a.b"}
        for message in found:
            message.ack()
        assert reader.gets_nothing()
        reader.close()


def test_a_task_comes_before_its_eta_by_the_lead_at_most(connection: Any, queue: str) -> None:
    send(connection, queue, "soon", headers=eta(0.9))
    send(connection, queue, "next year", headers=eta(365 * 24 * 3600))
    reader = Reader(connection, queue)
    assert bodies(reader.get(1)) == ["soon"] and reader.gets_nothing()
    reader.close()


def publish(connection: Any, queue: Queue, *priorities: int | None, **options: Any) -> None:
    """A message for each priority, which is its body, too."""
    producer = Producer(connection, auto_declare=False)
    for priority in priorities:
        more = {} if priority is None else {"priority": priority}
        producer.publish(
            priority, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **more, **options
        )


def received(connection: Any, queue: Queue, count: int) -> list[Any]:
    """The payloads of so many messages, which are acknowledged one by one, in their order."""
    reader, found = Reader(connection, queue, prefetch=1), []
    while len(found) < count:
        (message,) = reader.get(1)
        assert message.properties["priority"] == (message.payload or 0)
        found.append(message.payload)
        message.ack()
    reader.close()
    return found


@pytest.mark.parametrize(("exchange", "auto_delete"), [("", False), ("", True), ("direct", False), ("topic", False)])
def test_the_most_urgent_message_comes_first(connection: Any, queue: str, exchange: str, auto_delete: bool) -> None:
    bound = Exchange(f"{queue}-x", exchange) if exchange else Exchange("")
    urgent = Queue(queue, bound, routing_key=queue, max_priority=9, auto_delete=auto_delete)
    publish(connection, urgent, 0, None, 9, 3, 20, 9)
    assert received(connection, urgent, 6) == [9, 20, 9, 3, 0, None]


def test_a_task_with_an_eta_is_as_urgent_when_it_is_due(url: str, queue: str, cluster: Cluster) -> None:
    urgent = Queue(queue, Exchange(""), routing_key=queue, max_priority=9)
    # The second task reaches its time in steps.
    with Connection(url, transport_options={"eta_lead": 0, "max_delay": 0.4}) as connection:
        publish(connection, urgent, 7, headers=eta(0.5))
        publish(connection, urgent, 8, headers=eta(1.0))
        reader = Reader(connection, urgent)
        assert [message.payload for message in reader.get(2)] == [7, 8]
        reader.close()
    with blocking.PullConsumer(cluster.nameserver, group=f"readers-{queue_topic(queue)}") as consumer:
        used = [each.queue_id for each in consumer.message_queues(queue_topic(queue)) if consumer.max_offset(each)]
    assert used == [7, 8]


def test_a_message_that_comes_back_keeps_its_priority(connection: Any, queue: str) -> None:
    urgent = Queue(queue, Exchange(""), routing_key=queue, max_priority=9)
    publish(connection, urgent, 5)
    reader = Reader(connection, urgent, prefetch=1)
    (message,) = reader.get(1)
    publish(connection, urgent, 1, 9)
    message.requeue()
    found = []
    while len(found) < 3:
        (message,) = reader.get(1)
        found.append(message.payload)
        message.ack()
    assert found[0] == 9 and sorted(found) == [1, 5, 9]
    reader.close()


def test_a_queue_gets_priorities_when_it_is_declared_with_them(connection: Any, queue: str, cluster: Cluster) -> None:
    publish(connection, Queue(queue, Exchange(""), routing_key=queue), 1)
    # kombu declares a queue once for each connection.
    with connection.clone() as other:
        publish(other, Queue(queue, Exchange(""), routing_key=queue, max_priority=9), 9)
    with blocking.Admin(cluster.nameserver) as admin:
        config = admin.topic_config(cluster.brokers[0].address, queue_topic(queue))
    assert (config.attributes, config.read_queue_nums) == ({"message.type": "PRIORITY"}, 10)


def test_a_priority_without_effect_is_told_once(connection: Any, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    publish(connection, Queue(queue, Exchange(""), routing_key=queue), 5, 5, 0)
    (told,) = [record.getMessage() for record in caplog.records if "has no priorities" in record.getMessage()]
    assert told.startswith("priority 5 of a message has no effect") and "task_queue_max_priority = 9" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_priority": 256}, "max_priority of a queue must be 1 to 255, not 256"),
        ({"queue_arguments": {"x-max-priority": "high"}}, "must be 1 to 255, not 'high'"),
        ({"max_priority": -1}, "must be 1 to 255, not -1"),
    ],
)
def test_a_queue_that_cannot_have_priorities_is_refused(
    connection: Any, queue: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Queue(queue, **options)(connection.default_channel).declare()


def test_green_threads_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_environment", "gevent")
    with pytest.raises(UserError, match=r"does not work in gevent: .*prefork, threads or solo"):
        Connection(url).connect()


def test_no_nameserver_is_a_connection_error() -> None:
    with Connection("rocketmq://127.0.0.1:1/", connect_timeout=0.3) as connection:
        with pytest.raises(OperationalError, match=r"no NameServer of 127\.0\.0\.1:1 answers") as raised:
            connection.ensure_connection(max_retries=1, interval_start=0)
        assert isinstance(raised.value.__cause__, NoNameServer)


def test_a_refusal_is_raised_at_once_and_brokers_that_are_away_are_waited_for(url: str, queue: str) -> None:
    """Both hold without a limit of tries, which is how Celery declares its reply queue."""
    with Connection(url) as connection, pytest.raises(RouteNotFound, match="refuses to make it"):
        maybe_declare(Queue("rmq_sys_mine")(connection.default_channel), retry=True)
    with Cluster(brokers=0) as empty, Connection(f"rocketmq://{empty.nameserver}/") as connection:
        policy = {"max_retries": 1, "interval_start": 0}
        with pytest.raises(OperationalError, match="no broker with a master yet"):
            send(connection, queue, 1, retry=True, retry_policy=policy)


def test_a_body_that_is_not_kombus_is_left_out(
    connection: Any, cluster: Cluster, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(connection, queue, "good")
    foreign = [
        b"junk", b"{}", b"[1]", b'{"properties": []}', b'{"properties": {"delivery_info": null}}',
        b'{"properties": {"body_encoding": "rot13"}, "body": "x"}', b'{"properties": {}, "headers": [1]}',
        b'{"properties": {"body_encoding": "base64"}, "body": "x"}',
    ]  # fmt: skip
    with blocking.Producer(cluster.nameserver) as producer:
        producer.send_many(queue_topic(queue), foreign)
    reader = Reader(connection, queue)
    reader.until(lambda: len(reader.messages) + caplog.text.count("is not kombu's") == 1 + len(foreign))
    assert bodies(reader.messages) == ["good"]
    reader.close()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("rocketmq://", "rocketmq://"),
        ("rocketmq://a", "rocketmq://a"),
        ("rocketmq://a:1,b:2/", "rocketmq://a:1,b:2/"),
        ("rocketmq://a:1;b:2/", "rocketmq://a:1;b:2/"),
        ("rocketmq://[::1]:1,[::2]:1/ns", "rocketmq://[::1]:1,[::2]:1/ns"),
        ("rocketmq://key:s%403@a:1,b/ns?eta_lead=0", "rocketmq://key:**@a:1,b/ns?eta_lead=0"),
        ("rocketmq://key:s%403@a:1;b:2/", "rocketmq://key:**@a:1;b:2/"),
        (["rocketmq://key:s3@a:1,b:2/ns", "rocketmq://key:s3@c:3/"], "rocketmq://key:**@a:1,b:2/ns;rocketmq://c:3/"),
    ],
)
def test_all_forms_of_addresses_are_shown_without_the_secret(
    given: Any, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By workers, ``celery report``, ``celery inspect stats``, and in logs."""
    # The report has this, too, and Python starts a process to find it out.
    monkeypatch.setattr(platform, "architecture", lambda: ("64bit", "ELF"))
    connection = Connection(given)
    settings = connection.transport.settings
    # After a failure kombu would go on with the next of its own hosts.
    connection.maybe_switch_next()
    assert connection.as_uri() == shown and shown in repr(connection)
    for again in (Connection(connection.as_uri(include_password=True)), connection.clone()):
        assert again.transport.settings == settings
    with Celery(broker=given, set_as_current=False) as app:
        assert repr(shown.replace("**", "*" * 8)) in app.bugreport()
    consumer = SimpleNamespace(connection=None)
    step = ConnectionStep(consumer)
    consumer.connection = connection
    told = step.info(consumer)["broker"]
    assert told["hostname"] == shown.replace("key:**@", "") and "s%403" not in repr(told) and "s3" not in repr(told)


@pytest.mark.parametrize("joined", [";".join, list])
def test_a_connection_with_several_urls_connects_again(cluster: Cluster, joined: Any) -> None:
    urls = [f"rocketmq://{cluster.nameserver}/", "rocketmq://127.0.0.1:1/"]
    with Connection(joined(urls)) as connection:
        settings = connection.transport.settings
        for _ in range(2):
            connection.connect()
            assert connection.transport.settings == settings
            connection.close()


def test_the_environment_says_where_nameservers_are(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Connection("rocketmq://").transport.settings.nameservers == ("127.0.0.1:9876",)
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)
    with Connection("rocketmq://") as connection:
        connection.connect()


def test_access_keys_of_the_url_sign_requests(queue: str) -> None:
    with cluster_with_users() as secured:
        for keys, refused in (("root:a%20secret@", ""), ("root:wrong@", "check signature failed"), ("", "username")):
            with Connection(f"rocketmq://{keys}{secured.nameserver}/") as connection:
                if not refused:
                    send(connection, queue, "signed")
                    reader = Reader(connection, queue)
                    assert bodies(reader.get(1)) == ["signed"]
                    reader.close()
                    continue
                with pytest.raises(BrokerError, match=refused):
                    connection.connect()


def cluster_with_users() -> Cluster:
    options = {
        "authenticationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": "root", "password": "a secret"}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "another secret"}),
    }
    return Cluster(options=options)


def test_a_namespace_and_a_prefix_keep_projects_apart(cluster: Cluster, queue: str) -> None:
    urls = [f"rocketmq://{cluster.nameserver}/{place}" for place in ("", f"ns{queue[6:]}", "?queue_name_prefix=p-")]
    made = [Connection(url) for url in urls]
    for connection in made:
        send(connection, queue, connection.as_uri())
    for connection in made:
        reader = Reader(connection, queue)
        assert bodies(reader.get(1)) == [connection.as_uri()] and reader.gets_nothing()
        reader.close()
        connection.release()


@pytest.mark.process
def test_a_child_of_a_fork_has_a_session_of_its_own(connection: Any, queue: str) -> None:
    """Celery's pools close their connections after a fork; other programs go on with theirs."""
    send(connection, queue, "parent")

    def child() -> str:
        send(connection, queue, "child")
        with producers[connection].acquire(block=True) as producer:
            producer.publish("child's pool", routing_key=queue)
        connection.close()
        return str(len(SESSIONS._shared))

    # Not the session of the parent, which is not in the child's table; its own ones are closed, or in the pool.
    assert in_child(child) == "1"
    reader = Reader(connection, queue)
    assert bodies(reader.get(3)) == ["child", "child's pool", "parent"]
    for message in reader.messages:
        message.ack()
    reader.close()


def test_connections_share_a_session_and_the_last_one_closes_it(url: str, queue: str) -> None:
    threads = threading.active_count()
    first, second = Connection(url), Connection(url)
    send(first, queue, 1)
    send(second, queue, 2)
    assert threading.active_count() <= threads + 1
    first.release()
    send(second, queue, 3)
    second.release()
    assert threading.active_count() <= threads


def test_messages_survive_a_broker_that_is_killed(cluster: Cluster, url: str, queue: str) -> None:
    with Connection(url, transport_options={"visibility_timeout": 1}) as connection:
        send(connection, queue, *range(8))
        reader = Reader(connection, queue, prefetch=4)
        first = reader.get(4)
        cluster.brokers[0].kill()
        for message in first:
            message.ack()
        cluster.brokers[0].start()
        seen = [message.payload for message in first]
        while len(set(seen)) < 8:
            (message,) = reader.get(1)
            seen.append(message.payload)
            message.ack()
        reader.close()


def test_what_a_process_has_does_not_come_to_it_again_when_its_lease_was_not_renewed_in_time(
    url: str, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a broker was away for a while."""

    async def never(*_: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Feed, "_renew_leases", never)
    with Connection(url, transport_options={"visibility_timeout": 0.5}) as connection:
        send(connection, queue, *range(6))
        readers = [Reader(connection, queue)]
        found = readers[0].get(6)
        readers.append(Reader(connection, queue))
        until_true(lambda: caplog.text.count("was delivered again") >= 6)
        assert readers[0].gets_nothing() and not readers[1].messages
        for message in found:
            message.ack()
        until_true(lambda: connection.default_channel.queue_declare(queue, passive=True).message_count == 0)
        assert readers[0].gets_nothing() and not readers[1].messages
        for reader in readers:
            reader.close()


def test_a_session_that_ends_by_an_error_is_a_lost_connection(
    connection: Any, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then kombu connects again, and what was not acknowledged comes again."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    reader = Reader(connection, queue)
    monkeypatch.setattr(Feed, "_hold", broken)
    send(connection, queue, "one")
    with pytest.raises(connection.recoverable_connection_errors, match="the session with the cluster has ended"):
        connection.drain_events(timeout=PATIENCE_S)
    monkeypatch.undo()
    assert not connection.connected and "ZeroDivisionError" in caplog.text
    connection.collect()
    send(connection, queue, "two")
    reader = Reader(connection, queue)
    assert bodies(reader.get(1)) == ["two"]
    reader.close()


def test_a_connection_that_is_made_again_binds_its_queues_again(connection: Any, url: str, queue: str) -> None:
    exchange = Exchange(f"news.{queue}", type="fanout")
    news = Queue(queue, exchange, auto_delete=True)
    Reader(connection, news)

    async def broken() -> None:
        raise ZeroDivisionError

    async def end(session: Any) -> None:
        session.nursery.start_soon(broken)

    connection.transport.shared.call(end)
    until_true(lambda: not connection.connected)
    reader = Reader(connection, news)
    with Connection(url) as other:
        Producer(other, exchange).publish("news")
    assert bodies(reader.get(1)) == ["news"]
    reader.close()


@pytest.mark.parametrize("deliveries", [1, 2])
def test_a_task_that_is_given_back_too_often_is_a_dead_letter(
    url: str, cluster: Cluster, queue: str, deliveries: int
) -> None:
    with Connection(url, transport_options={"max_deliveries": deliveries}) as connection:
        send(connection, queue, "poison")
        reader = Reader(connection, queue)
        seen = 0
        with blocking.Admin(cluster.nameserver) as admin:
            while not (letters := _dead_letters(admin, queue_topic(queue))):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)
                for message in reader.messages:
                    seen += 1
                    message.requeue()
                reader.messages.clear()
        assert (seen, len(letters)) == (deliveries + 1, 1)
        reader.close()


def _dead_letters(admin: Any, group: str) -> Any:
    try:
        return admin.dead_letters(group)
    except RouteNotFound:
        return []


def test_a_broker_that_is_away_holds_up_no_acknowledgements_of_the_others(queue: str) -> None:
    """Otherwise their messages would come again when their time is over."""
    with (
        Cluster(brokers=2) as pair,
        Connection(f"rocketmq://{pair.nameserver}/", transport_options={"visibility_timeout": 1}) as connection,
    ):
        pair.create_topic(queue_topic(queue))
        send(connection, queue, *range(20))
        reader = Reader(connection, queue)
        found = reader.get(20)
        brokers = {tag: each.message.broker_name for tag, each in reader.channel._deliveries.items()}
        assert set(brokers.values()) == {"broker-a", "broker-b"}
        pair.brokers[0].kill()
        # Messages of the broker that is away are the first to wait.
        for message in sorted(found, key=lambda message: brokers[message.delivery_tag]):
            message.ack()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=2)
        pair.brokers[0].start()
        reader.close()


@pytest.mark.process
def test_a_program_with_another_broker_does_not_load_the_sdk() -> None:
    code = "import kombu.serialization, sys; assert 'kombu_rocketmq' in sys.modules and 'skylark' not in sys.modules"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


def test_the_serializer_cbor(connection: Any, queue: str) -> None:
    body = {"raw": b"\x00\xff", "at": datetime(2026, 1, 2, tzinfo=UTC)}
    send(connection, queue, body, serializer="cbor")
    reader = Reader(connection, queue, accept=["application/cbor"])
    assert reader.get(1)[0].payload == body
    reader.close()


def test_the_transport_is_found_by_its_scheme(url: str) -> None:
    assert Connection(url).transport_cls == "rocketmq"
    assert isinstance(Connection(url).transport, Transport)
    assert kombu.transport.resolve_transport("rocketmq") is Transport
