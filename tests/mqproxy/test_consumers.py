"""The official Python consumers receive through the proxy what the other protocol has sent."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import trio

from mqcommon.errors import RouteNotFound
from remoting.protocol.requests.groups import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from sdk import Admin, Message, blocking
from sdk.testing import Cluster
from tests.mqproxy.test_producer import read
from tests.support.proxies import Proxy, official, proxy
from tests.support.waiting import until


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy whose times are short."""
    short = {
        "min_invisible_time_mills_for_recv": 1_000,
        "grpc_client_consumer_min_long_polling_timeout_millis": 100,
        "grpc_client_consumer_max_long_polling_timeout_millis": 2_000,
        "topic_config_cache_refresh_seconds": 1,
    }
    with proxy(cluster.nameserver, **short) as running:
        yield running


@pytest.fixture
def make_group(cluster: Cluster, topic: str) -> Callable[..., str]:
    """Make a group that has read the topic from its beginning on; returns its name."""

    def made(*, most_retries: int = 16, is_ordered: bool = False) -> str:
        policy = GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([1_000]))
        config = SubscriptionGroupConfig(
            f"group-{topic}"[-60:],
            consume_message_orderly=is_ordered,
            retry_max_times=most_retries,
            group_retry_policy=policy,
        )
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_group(cluster.brokers[0].address, config)
        # A group that begins to pop begins at the end of the topic.
        with blocking.SimpleConsumer(
            cluster.nameserver, group=config.group_name, subscriptions={topic: "*"}
        ) as consumer:
            consumer.receive(wait_ms=0)
        return config.group_name

    return made


async def route_is_there(cluster: Cluster, topic: str) -> None:
    """Wait until NameServers know the topic."""
    async with Admin(cluster.nameserver) as admin:

        async def is_there() -> bool:
            try:
                return bool((await admin.topic_route(topic)).queue_datas)
            except RouteNotFound:
                return False

        await until(is_there, f"a route of {topic}")


def send(cluster: Cluster, messages: Sequence[Message]) -> list[str]:
    with blocking.Producer(cluster.nameserver) as producer:
        return [producer.send(message).msg_id for message in messages]


def test_a_simple_consumer_gets_messages_with_all_that_they_have(
    cluster: Cluster, served: Proxy, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic()
    group = make_group()
    message = Message(topic, b"a cup of tea", tags="tea", keys=["order-1", "ada"], properties={"shop": "north"})
    (sent,) = send(cluster, [message])
    received = official("receive", served.address, topic=topic, group=group, count=1)
    assert received == [
        {
            "body": "a cup of tea",
            "id": sent,
            "tag": "tea",
            "keys": ["ada", "order-1"],
            "properties": {"shop": "north"},
            "attempt": 1,
            "group": None,
            "corrupted": False,
        }
    ]
    with blocking.SimpleConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}) as consumer:
        assert consumer.receive(wait_ms=0) == []


def test_a_message_that_is_given_back_comes_again_until_it_is_acknowledged(
    cluster: Cluster, served: Proxy, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic()
    group = make_group()
    send(cluster, [Message(topic, b"not yet")])
    received = official("receive", served.address, topic=topic, group=group, count=2, give_back=1)
    assert [(message["body"], message["attempt"]) for message in received] == [("not yet", 1), ("not yet", 2)]


@pytest.mark.parametrize(("kind", "expression"), [("tag", "tea || milk"), ("sql", "TAGS IN ('tea', 'milk')")])
def test_a_filter_selects_messages(
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
    kind: str,
    expression: str,
) -> None:
    topic = make_topic()
    group = make_group()
    send(cluster, [Message(topic, tag.encode(), tags=tag) for tag in ("tea", "coffee", "milk", "juice")])
    received = official("receive", served.address, topic=topic, group=group, count=2, kind=kind, expression=expression)
    assert sorted(message["body"] for message in received) == ["milk", "tea"]


def test_a_push_consumer_gets_each_message_once(
    cluster: Cluster, served: Proxy, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic()
    group = make_group()
    send(cluster, [Message(topic, b"%d" % number) for number in range(50)])
    consumed = official("push", served.address, topic=topic, group=group, count=50)
    assert sorted(int(message["body"]) for message in consumed) == list(range(50))


def test_a_message_stays_hidden_while_a_handler_takes_long(
    cluster: Cluster, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic()
    group = make_group()
    send(cluster, [Message(topic, b"slow")])
    short = {
        "default_invisible_time_mills": 1_000,
        "renew_ahead_time_millis": 800,
        "renew_schedule_period_millis": 50,
        "grpc_client_consumer_max_long_polling_timeout_millis": 5_000,
    }
    with proxy(cluster.nameserver, **short) as running:
        # Without renewals it would come again after a second, twice before the first handler ends.
        consumed = official("push", running.address, topic=topic, group=group, count=1, handler_s=3)
    assert [(message["body"], message["attempt"]) for message in consumed] == [("slow", 1)]
    with blocking.SimpleConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}) as consumer:
        assert consumer.receive(wait_ms=0) == []


def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    cluster: Cluster, served: Proxy, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic()
    group = make_group(most_retries=1)
    send(cluster, [Message(topic, b"poison"), Message(topic, b"tea")])
    consumed = official("push", served.address, topic=topic, group=group, count=3, failing=["poison"])
    assert [message["attempt"] for message in consumed if message["body"] == "poison"] == [1, 2]
    # The broker makes it one when its time is over for the last time.
    trio.run(route_is_there, cluster, f"%DLQ%{group}")
    (dead,) = read(cluster, f"%DLQ%{group}", 1)
    assert dead.body == b"poison"


def test_an_ordered_group_gets_the_messages_of_a_key_in_their_order(
    cluster: Cluster, served: Proxy, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic("FIFO")
    group = make_group(is_ordered=True, most_retries=1)
    keys = ("ada", "bob", "eve")
    send(cluster, [Message(topic, f"{key} {step}".encode(), sharding_key=key) for step in range(5) for key in keys])
    consumed = official("push", served.address, topic=topic, group=group, count=16, failing=["bob 2"])
    for key in keys:
        bodies = list(dict.fromkeys(message["body"] for message in consumed if message["group"] == key))
        assert bodies == [f"{key} {step}" for step in range(5)]
    (dead,) = read(cluster, f"%DLQ%{group}", 1)
    assert dead.body == b"bob 2"
