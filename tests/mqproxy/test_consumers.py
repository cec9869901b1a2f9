"""The official consumers receive through the proxy what the other protocol has sent."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import trio

from skylark import Admin, Message, blocking
from skylark.mqcommon.errors import RouteNotFound
from skylark.remoting.protocol.requests.groups import ExponentialRetryPolicy, GroupRetryPolicy
from skylark.sdk.testing import Cluster
from tests.mqproxy.conftest import EVERY_SECOND, NODE_AT_NIGHT
from tests.mqproxy.test_producer import Client, Got, read
from tests.support.proxies import NODE, Proxy, proxy
from tests.support.waiting import until


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy whose times are short."""
    short = {
        "min_invisible_time_mills_for_recv": 1_000,
        "grpc_client_consumer_min_long_polling_timeout_millis": 100,
        "grpc_client_consumer_max_long_polling_timeout_millis": 1_000,
        "topic_config_cache_refresh_seconds": 1,
    }
    with proxy(cluster.nameserver, **short) as running:
        yield running


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
    client: Client,
    got: Got,
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
) -> None:
    topic = make_topic()
    group = make_group()
    message = Message(topic, b"a cup of tea", tags="tea", keys=["order-1", "ada"], properties={"shop": "north"})
    (sent,) = send(cluster, [message])
    received = client("receive", served.address, topic=topic, group=group, count=1)
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
    got("SimpleConsumer", f"{len(received[0])} fields as the SDK sent them")
    with blocking.SimpleConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}) as consumer:
        assert consumer.receive(wait_ms=0) == []


@NODE_AT_NIGHT
def test_a_message_that_is_given_back_comes_again_until_it_is_acknowledged(
    client: Client,
    got: Got,
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
) -> None:
    topic = make_topic()
    group = make_group()
    send(cluster, [Message(topic, b"not yet")])
    received = client("receive", served.address, topic=topic, group=group, count=2, give_back=1)
    assert [(message["body"], message["attempt"]) for message in received] == [("not yet", 1), ("not yet", 2)]
    got("SimpleConsumer: given back", f"{len(received)} deliveries, the second after a second")


@NODE_AT_NIGHT
@pytest.mark.parametrize(("kind", "expression"), [("tag", "tea || milk"), ("sql", "TAGS IN ('tea', 'milk')")])
def test_a_filter_selects_messages(
    client: Client,
    got: Got,
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
    received = client("receive", served.address, topic=topic, group=group, count=2, kind=kind, expression=expression)
    assert sorted(message["body"] for message in received) == ["milk", "tea"]
    got(f"SimpleConsumer: {kind} filter", f"{len(received)} of 4")


def test_a_push_consumer_gets_each_message_once(
    client: Client,
    got: Got,
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
) -> None:
    topic = make_topic()
    group = make_group()
    others = [Message(topic, b"cold", tags="milk")]
    send(cluster, [*(Message(topic, b"%d" % number, tags="tea") for number in range(50)), *others])
    consumed = client("push", served.address, topic=topic, group=group, count=50, expression="tea")
    assert sorted(int(message["body"]) for message in consumed) == list(range(50))
    got("PushConsumer: tag filter", f"{len(consumed)} of 51, each once")


@NODE_AT_NIGHT
def test_a_message_stays_hidden_while_a_handler_takes_long(
    client: Client, got: Got, cluster: Cluster, make_topic: Callable[..., str], make_group: Callable[..., str]
) -> None:
    topic = make_topic()
    group = make_group()
    send(cluster, [Message(topic, b"slow")])
    short = {
        "default_invisible_time_mills": 1_000,
        "renew_ahead_time_millis": 800,
        "renew_schedule_period_millis": 50,
        "grpc_client_consumer_min_long_polling_timeout_millis": 100,
        "grpc_client_consumer_max_long_polling_timeout_millis": 1_000,
    }
    with proxy(cluster.nameserver, **short) as running:
        # Without renewals it would come again after a second, twice before the first handler ends.
        consumed = client("push", running.address, topic=topic, group=group, count=1, handler_s=3)
    assert [(message["body"], message["attempt"]) for message in consumed] == [("slow", 1)]
    got("PushConsumer: handler slower than the time", f"{len(consumed)} delivery")
    with blocking.SimpleConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}) as consumer:
        assert consumer.receive(wait_ms=0) == []


@NODE_AT_NIGHT
def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    client: Client,
    got: Got,
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
) -> None:
    topic = make_topic()
    group = make_group(most_retries=1)
    send(cluster, [Message(topic, body.encode(), tags=body) for body in ("poison", "milk", "tea")])
    sql = {"kind": "sql", "expression": "TAGS <> 'milk'"}
    consumed = client("push", served.address, topic=topic, group=group, count=3, failing=["poison"], **sql)
    assert sorted({message["body"] for message in consumed}) == ["poison", "tea"]
    assert [message["attempt"] for message in consumed if message["body"] == "poison"] == [1, 2]
    # The broker makes it one when its time is over for the last time.
    trio.run(route_is_there, cluster, f"%DLQ%{group}")
    (dead,) = read(cluster, f"%DLQ%{group}", 1)
    assert dead.body == b"poison"
    got("PushConsumer: SQL filter, failing", "2 deliveries, then a dead letter")


def test_an_ordered_group_gets_the_messages_of_a_key_in_their_order(
    language: str,
    client: Client,
    got: Got,
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
) -> None:
    topic = make_topic("FIFO")
    # Each client knows one kind of policy only; with the other kind Python tries 17 times, and Node once.
    growing = GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(1_000, 1_000, 1), None)
    group = make_group(is_ordered=True, most_retries=1, policy=growing if language == NODE else EVERY_SECOND)
    keys = ("ada", "bob", "eve")
    send(cluster, [Message(topic, f"{key} {step}".encode(), sharding_key=key) for step in range(5) for key in keys])
    consumed = client("push", served.address, topic=topic, group=group, count=16, failing=["bob 2"])
    assert [message["body"] for message in consumed].count("bob 2") == 2
    for key in keys:
        bodies = list(dict.fromkeys(message["body"] for message in consumed if message["group"] == key))
        assert bodies == [f"{key} {step}" for step in range(5)]
    (dead,) = read(cluster, f"%DLQ%{group}", 1)
    assert dead.body == b"bob 2"
    got("PushConsumer: in order", f"{len(keys)} keys in order, a dead letter after 2 tries")
