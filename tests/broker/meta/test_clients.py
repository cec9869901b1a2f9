"""Who is connected: groups, subscriptions, coming and going."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skylark.broker.meta import clients as module
from skylark.broker.meta.clients import KEPT_MS, MAX_LEFT, MAX_LEFT_CHARS, MAX_LEFT_TOPICS, Clients
from skylark.mqcommon.message.javahash import java_hash
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData

ONE: Any = "one connection"
TWO: Any = "another connection"


def subscription(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version)


def consume(
    clients: Clients,
    channel: Any,
    *subscriptions: SubscriptionData,
    group: str = "g",
    now_ms: int = 0,
    without_sub: bool = False,
    consume_type: str = "CONSUME_PASSIVELY",
) -> bool:
    heartbeat = HeartbeatData(f"client of {channel}", without_sub=without_sub)
    data = ConsumerData(group, consume_type, subscription_data_set=list(subscriptions))
    return clients.join_consumer_group(channel, heartbeat, data, "JAVA", 479, now_ms)


def test_remembered_subscriptions_of_groups_that_left_are_bounded() -> None:
    clients = Clients()
    for number in range(MAX_LEFT + 2):
        consume(clients, ONE, subscription("T", "a"), group=f"g{number}")
        clients.close(ONE)
    assert [clients.last_subscription(f"g{number}", "T") is None for number in (0, 1, 2, MAX_LEFT + 1)] == [
        True, True, False, False,
    ]  # fmt: skip
    consume(clients, ONE, subscription("T", "x" * MAX_LEFT_CHARS), group="large")
    consume(clients, ONE, *(subscription(f"T{number}") for number in range(MAX_LEFT_TOPICS + 1)), group="many")
    clients.close(ONE)
    assert clients.last_subscription("large", "T") is clients.last_subscription("many", "T0") is None
    consume(clients, ONE, group="g2")
    clients.close(ONE)
    assert clients.last_subscription("g2", "T") is None, "the group was there again, without this topic"


def test_topics_that_come_and_go_are_changes() -> None:
    clients = Clients()
    consume(clients, ONE, subscription("T"))
    assert consume(clients, ONE, subscription("T"), subscription("U"))
    assert consume(clients, ONE, subscription("U"))
    assert clients.subscription("g", "T") is None
    assert clients.consumers_of("U") == ["g"]
    assert clients.consumers_of("T") == []


def test_a_newer_expression_replaces_an_older_one() -> None:
    clients = Clients()
    consume(clients, ONE, subscription("T", "a", 5))
    assert not consume(clients, ONE, subscription("T", "old", 4))
    assert not consume(clients, ONE, subscription("T", "b", 6))
    found = clients.subscription("g", "T")
    assert found is not None
    assert found.sub_string == "b"


def test_tag_codes_are_recomputed() -> None:
    clients = Clients()
    wrong = SubscriptionData("T", "TagA || 中文", tags_set=["TagA", "中文"], code_set=[0, 0], sub_version=1)
    consume(clients, ONE, wrong, SubscriptionData("U", "", tags_set=["x"], code_set=[]), SubscriptionData("V", "||"))
    found = clients.subscription("g", "T")
    assert found is not None
    assert found.code_set == [2598919, 646394]
    of_tags = clients.subscription("g", "U")
    assert of_tags is not None
    assert of_tags.code_set == [java_hash("x")]
    assert clients.subscription("g", "V") is not None


def test_a_heartbeat_without_subscriptions_keeps_those_of_before() -> None:
    clients = Clients()
    consume(clients, ONE, subscription("T"))
    assert not consume(clients, ONE, without_sub=True)
    assert clients.subscription("g", "T") is not None


def test_only_members_leave_a_group() -> None:
    clients = Clients()
    consume(clients, ONE, subscription("T"))
    assert not clients.leave_consumer_group(TWO, "g")
    assert not clients.leave_consumer_group(ONE, "another")
    assert clients.leave_consumer_group(ONE, "g")
    assert not clients.leave_consumer_group(ONE, "g")


def test_members_with_different_subscriptions_are_noticed_until_they_are_equal_again() -> None:
    clients = Clients()
    consume(clients, ONE, subscription("T", "red"))
    assert clients.divided_groups() == []
    consume(clients, TWO, subscription("T", "blue"))
    (group,) = clients.divided_groups()
    assert group.differences == (
        "topic T is subscribed to as 'blue' by client of another connection, as 'red' by client of one connection"
    )
    consume(clients, TWO, without_sub=True)
    assert clients.divided_groups() == [group]
    consume(clients, TWO, subscription("T", "red"))
    assert clients.divided_groups() == [] and group.differences == ""
    consume(clients, ONE, subscription("T", "*"))
    clients.close(TWO)
    assert clients.divided_groups() == [] and group.differences == ""


def test_consumers_that_choose_their_queues_themselves_may_differ() -> None:
    clients = Clients()
    for channel, topic in ((ONE, "T"), (TWO, "U")):
        consume(clients, channel, subscription(topic), consume_type="CONSUME_ACTIVELY")
    assert clients.divided_groups() == []


def test_silent_clients_are_found_by_their_last_heartbeat_in_any_group() -> None:
    clients = Clients()
    consume(clients, ONE, subscription("T"), now_ms=0)
    clients.join_producer_group(ONE, HeartbeatData("c"), "p", "JAVA", 479, 100_000)
    consume(clients, TWO, subscription("T"), now_ms=50_000)
    assert clients.expired_channels(120_000, 120_000) == []
    assert clients.expired_channels(170_001, 120_000) == [TWO]
    assert clients.expired_channels(300_000, 120_000) == [ONE, TWO]


CHANNELS = st.sampled_from(["c1", "c2", "c3"])
GROUPS = st.sampled_from(["g", "h"])


class ClientsModel(RuleBasedStateMachine):
    """The index of groups by connection agrees with the groups, whatever happens."""

    @initialize()
    def start(self) -> None:
        self.clients = Clients()
        self.consumers: set[tuple[str, str]] = set()
        self.producers: set[tuple[str, str]] = set()

    @rule(channel=CHANNELS, group=GROUPS)
    def consume(self, channel: Any, group: str) -> None:
        consume(self.clients, channel, subscription("T"), group=group)
        self.consumers.add((channel, group))

    @rule(channel=CHANNELS, group=GROUPS)
    def produce(self, channel: Any, group: str) -> None:
        self.clients.join_producer_group(channel, HeartbeatData(channel), group, "JAVA", 479, 0)
        self.producers.add((channel, group))

    @rule(channel=CHANNELS, group=GROUPS)
    def leave(self, channel: Any, group: str) -> None:
        assert self.clients.leave_consumer_group(channel, group) == ((channel, group) in self.consumers)
        assert self.clients.leave_producer_group(channel, group) == ((channel, group) in self.producers)
        self.consumers.discard((channel, group))
        self.producers.discard((channel, group))

    @rule(channel=CHANNELS)
    def close(self, channel: Any) -> None:
        assert set(self.clients.close(channel)) == {group for one, group in self.consumers if one == channel}
        self.consumers = {pair for pair in self.consumers if pair[0] != channel}
        self.producers = {pair for pair in self.producers if pair[0] != channel}

    @invariant()
    def agrees(self) -> None:
        found: set[Any] = {
            (member.channel, name)
            for name in ("g", "h")
            if (group := self.clients.consumer_group(name)) is not None
            for member in group.members.values()
        }
        assert found == self.consumers
        producing: set[Any] = {(m.channel, g) for g in ("g", "h") for m in self.clients.producers(g)}
        assert producing == self.producers


TestClientsModel = ClientsModel.TestCase


def test_the_connection_of_a_producer_is_known_by_the_client_id() -> None:
    clients, one, two = Clients(), ONE, TWO

    def beat(channel: Any, client_id: str, group: str) -> None:
        data = HeartbeatData(client_id, producer_data_set=[ProducerData(group)])
        clients.join_producer_group(channel, data, group, "JAVA", 1, 0)

    beat(one, "a", "g")
    beat(one, "a", "h")
    beat(two, "a", "g")
    assert clients.producer_channel("a") is two
    clients.close(two)
    assert clients.producer_channel("a") is one
    clients.leave_producer_group(one, "g")
    assert clients.producer_channel("a") is one
    beat(one, "b", "h")
    assert (clients.producer_channel("a"), clients.producer_channel("b")) == (None, one)
    clients.close(one)
    assert clients.producer_channel("b") is None
    # An id that only one of several groups had does not keep the connection.
    beat(one, "a", "g")
    beat(one, "b", "h")
    assert (clients.producer_channel("a"), clients.producer_channel("b")) == (None, one)
    clients.close(one)
    assert not clients._holders and not clients._ids


def test_an_id_waits_some_minutes_for_its_user() -> None:
    clients = Clients()

    def beat(channel: Any, client_id: str, user: str, now_ms: int) -> None:
        data = HeartbeatData(client_id, producer_data_set=[ProducerData("g")])
        clients.join_producer_group(channel, data, "g", "JAVA", 1, now_ms, user)

    beat(ONE, "a", "shop", 1_000)
    assert (clients.user_of("a", 1_000), clients.user_of("b", 1_000)) == ("shop", None)
    clients.close(ONE)
    assert clients.user_of("a", 1_000 + KEPT_MS - 1) == "shop"
    assert clients.user_of("a", 1_000 + KEPT_MS) is None
    # The user comes back.
    beat(TWO, "a", "shop", 2_000)
    assert clients.user_of("a", 2_000 + KEPT_MS) == "shop" and not clients._kept
    # Without access control nothing is kept.
    clients.close(TWO)
    beat(ONE, "c", "", 3_000)
    clients.close(ONE)
    assert clients.user_of("c", 3_000) is None


def test_the_ids_that_wait_are_bounded_in_all_and_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 5)
    monkeypatch.setattr(module, "MAX_KEPT_OF_USER", 3)
    clients = Clients()

    def leave(client_id: str, user: str, now_ms: int = 0) -> None:
        data = HeartbeatData(client_id, producer_data_set=[ProducerData("g")])
        clients.join_producer_group(ONE, data, "g", "JAVA", 1, now_ms, user)
        clients.close(ONE)

    leave("of-the-shop", "shop")
    for number in range(10):
        leave(f"greedy-{number}", "greedy")
    assert list(clients._kept) == ["of-the-shop", "greedy-0", "greedy-1", "greedy-2"]
    leave("a", "other")
    leave("b", "other")
    assert list(clients._kept) == ["greedy-0", "greedy-1", "greedy-2", "a", "b"]
    # Those whose time is over make room.
    leave("c", "greedy", KEPT_MS)
    assert list(clients._kept) == ["c"] and clients._kept_of == {"greedy": 1}
