"""Each queue has exactly one owner; the strategies agree with RocketMQ's; a consistent hash moves little."""

from collections.abc import Sequence
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.allocate import STRATEGIES, Strategy, averagely, circle, consistent_hash, fixed

CLIENTS = st.lists(st.text("ab19.@#", min_size=1, max_size=12), min_size=1, max_size=12, unique=True).map(sorted)
QUEUES = st.integers(0, 40).map(lambda count: queues(count))


def queues(count: int) -> list[MessageQueue]:
    return sorted(MessageQueue("t", f"broker-{number % 3}", number // 3) for number in range(count))


def owners(strategy: Strategy, some: Sequence[MessageQueue], clients: Sequence[str]) -> dict[MessageQueue, str]:
    """Queue → owner; fails when a queue has two."""
    found: dict[MessageQueue, str] = {}
    for client in clients:
        for mq in strategy(some, clients, client):
            assert mq not in found
            found[mq] = client
    return found


@pytest.mark.parametrize("name", STRATEGIES)
@given(some=QUEUES, clients=CLIENTS)
def test_every_queue_has_one_owner(name: str, some: list[MessageQueue], clients: list[str]) -> None:
    assert sorted(owners(STRATEGIES[name], some, clients)) == some


@pytest.mark.parametrize("strategy", [averagely, circle])
@given(some=QUEUES, clients=CLIENTS)
def test_shares_differ_by_one_at_most(strategy: Strategy, some: list[MessageQueue], clients: list[str]) -> None:
    counts = [len(strategy(some, clients, client)) for client in clients]
    assert max(counts) - min(counts) <= 1


@given(some=QUEUES, clients=CLIENTS, left=st.integers(0, 11))
def test_with_a_consistent_hash_only_the_queues_of_who_left_move(
    some: list[MessageQueue], clients: list[str], left: int
) -> None:
    gone = clients[left % len(clients)]
    before = owners(consistent_hash, some, clients)
    after = owners(consistent_hash, some, [client for client in clients if client != gone])
    assert all(after[mq] == owner for mq, owner in before.items() if owner != gone)


def test_the_shares_of_rocketmqs_java_client() -> None:
    some, clients = queues(10), ["c0", "c1", "c2", "c3"]
    assert [averagely(some, clients, client) for client in clients] == [some[:3], some[3:6], some[6:8], some[8:]]
    assert [circle(some, clients, client) for client in clients] == [some[number::4] for number in range(4)]


def test_the_ring_of_rocketmqs_java_client() -> None:
    """A point is the first four bytes of an MD5 (ConsistentHashRouter); "c0-0" is the name of a virtual node."""
    mq = MessageQueue("t", "b", 0)
    # md5("MessageQueue [topic=t, brokerName=b, queueId=0]") and the next of the 20 points of both clients after it.
    assert [client for client in ("c0", "c1") if consistent_hash([mq], ["c0", "c1"], client)] == [_by_hand(mq)]


def _by_hand(mq: MessageQueue) -> str:
    def point(text: str) -> str:
        return md5(text.encode()).hexdigest()[:8]

    ring = sorted((point(f"{client}-{number}"), client) for client in ("c0", "c1") for number in range(10))
    at = point(f"MessageQueue [topic={mq.topic}, brokerName={mq.broker_name}, queueId={mq.queue_id}]")
    return next((client for where, client in ring if where >= at), ring[0][1])


def test_fixed_queues_and_strangers() -> None:
    some = queues(4)
    assert fixed([some[1], MessageQueue("u", "b", 0)])(some, ["a", "b"], "a") == [some[1]]
    assert [strategy(some, ["a"], "stranger") for strategy in STRATEGIES.values()] == [[], [], []]
