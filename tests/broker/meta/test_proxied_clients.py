"""7140: the clients of gRPC proxies, and what lists and asks them."""

from typing import Any

import pytest

from skylark.broker.meta import proxied_clients
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.clients import (
    GET_ALL_PRODUCER_INFO,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_CONSUMER_RUNNING_INFO,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    QUERY_SUBSCRIPTION_BY_CONSUMER,
    ConsumerConnection,
    ConsumerData,
    ProducerConnection,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import ConsumerIdList
from skylark.remoting.protocol.requests.proxied import PROXY_HEART_BEAT, ProxiedClient, ProxyHeartbeatData
from tests.broker.desk import Desk
from tests.broker.meta.test_client_handlers import beat, notices
from tests.support.caller import Answers, Caller


def consumer(client_id: str, group: str = "g", topic: str = "T") -> ProxiedClient:
    data = ConsumerData(group, "CONSUME_PASSIVELY", subscription_data_set=[SubscriptionData(topic, "*")])
    return ProxiedClient(client_id, "10.0.0.9:5", "PYTHON", 479, consumer_data_set=[data])


def producer(client_id: str, *groups: str) -> ProxiedClient:
    return ProxiedClient(client_id, "10.0.0.9:6", "NODE_JS", 479, list(groups))


async def tell(desk: Desk, proxy: Caller, *clients: ProxiedClient, left: tuple[str, ...] = ()) -> int:
    body = ProxyHeartbeatData(list(clients), list(left))
    return (await desk.ask(PROXY_HEART_BEAT.code, body=body, channel=proxy.channel)).code


async def members(desk: Desk, group: str = "g") -> list[tuple[str, str, str]]:
    """(id, address, language) of the members of a consumer group, as tools list them."""
    answer = await desk.ask(GET_CONSUMER_CONNECTION_LIST.code, {"consumerGroup": group})
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return []
    connections = decode_body(ConsumerConnection, answer.body, answer.codec).connection_set
    return sorted((one.client_id, one.client_addr, one.language) for one in connections)


async def producers(desk: Desk, group: str) -> list[str]:
    answer = await desk.ask(GET_PRODUCER_CONNECTION_LIST.code, {"producerGroup": group})
    if answer.code:
        return []
    return sorted(one.client_id for one in decode_body(ProducerConnection, answer.body, answer.codec).connection_set)


async def test_clients_of_a_proxy_are_listed_with_the_others() -> None:
    desk, proxy, direct = Desk(), Caller(), Caller()
    assert await tell(desk, proxy, consumer("c1"), producer("p1", "orders", "bills")) == 0
    assert await members(desk) == [("c1", "10.0.0.9:5", "PYTHON")]
    await desk.ask(HEART_BEAT.code, body=beat("c2"), channel=direct.channel)
    assert [name for name, _, _ in await members(desk)] == ["c1", "c2"]
    assert await producers(desk, "orders") == await producers(desk, "bills") == ["p1"]
    table = decode_body(ProducerTableInfo, (await desk.ask(GET_ALL_PRODUCER_INFO.code)).body, 0).data
    assert [(one.client_id, one.remote_ip) for one in table["orders"]] == [("p1", "10.0.0.9:6")]
    asked = await desk.ask(QUERY_SUBSCRIPTION_BY_CONSUMER.code, {"group": "g", "topic": "T"})
    found = decode_body(QuerySubscriptionResponseBody, asked.body, asked.codec).subscription_data
    assert found is not None and found.sub_string == "*"
    # The group is there, with its retry topic, for tools that look for its brokers.
    assert desk.meta.groups.get("g") is not None and desk.meta.topics.get("%RETRY%g") is not None


async def test_members_divide_queues_without_the_clients_of_proxies() -> None:
    desk, proxy, direct = Desk(), Caller(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat("c2"), channel=direct.channel)
    notices(direct)
    await tell(desk, proxy, consumer("c1"))
    answer = await desk.ask(GET_CONSUMER_LIST_BY_GROUP.code, {"consumerGroup": "g"})
    assert decode_body(ConsumerIdList, answer.body, answer.codec).consumer_id_list == ["c2"]
    assert notices(direct) == notices(proxy) == []


async def test_a_client_is_forgotten_when_it_leaves_or_its_proxy_does() -> None:
    desk, proxy, other = Desk(), Caller(), Caller()
    await tell(desk, proxy, consumer("c1"), consumer("c2"), producer("p1", "orders"))
    await tell(desk, other, consumer("c2"), consumer("c3"))
    # A client that uses two proxies is listed once.
    assert [name for name, _, _ in await members(desk)] == ["c1", "c2", "c3"]
    await tell(desk, proxy, left=("c1", "unknown"))
    assert [name for name, _, _ in await members(desk)] == ["c2", "c3"]
    desk.proxy_handlers.channel_closed(proxy.channel)
    assert [name for name, _, _ in await members(desk)] == ["c2", "c3"]
    assert await producers(desk, "orders") == []
    desk.proxy_handlers.channel_closed(other.channel)
    assert (await members(desk), desk.proxied.count) == ([], 0)


async def test_a_client_that_no_heartbeat_names_is_forgotten_in_time() -> None:
    desk, proxy = Desk(), Caller()
    await tell(desk, proxy, consumer("c1"), consumer("c2"))
    desk.clock.advance(desk.meta.options.channel_expired_timeout)
    await tell(desk, proxy, consumer("c2"))
    desk.clock.advance(1)
    desk.proxy_handlers.tick()
    assert [name for name, _, _ in await members(desk)] == ["c2"]


async def test_a_client_with_other_groups_leaves_the_old_ones() -> None:
    desk, proxy = Desk(), Caller()
    await tell(desk, proxy, consumer("c1", "g"), producer("p1", "orders"))
    await tell(desk, proxy, consumer("c1", "h"), producer("p1", "bills", "bills"))
    assert (await members(desk, "g"), [name for name, _, _ in await members(desk, "h")]) == ([], ["c1"])
    assert (await producers(desk, "orders"), await producers(desk, "bills")) == ([], ["p1"])
    await tell(desk, proxy, left=("c1", "p1"))
    assert (await members(desk, "h"), await producers(desk, "bills")) == ([], [])


async def test_what_tools_ask_goes_to_the_proxy() -> None:
    desk, proxy = Desk(), Caller()
    await tell(desk, proxy, consumer("c1"))
    client = Answers(b'{"properties":{"a":"b"}}')
    ext = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}
    async with proxy.answering(client.answer):
        answer = await desk.ask(GET_CONSUMER_RUNNING_INFO.code, ext)
    assert (answer.code, answer.body, client.asked[-1].ext) == (0, client.body, ext)
    answer = await desk.ask(GET_CONSUMER_RUNNING_INFO.code, {**ext, "clientId": "c2"})
    assert (answer.code, "not online" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_the_number_of_listed_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_clients, "MAX_CLIENTS", 2)
    desk, proxy = Desk(), Caller()
    clients: list[Any] = [consumer(f"c{number}") for number in range(3)]
    assert await tell(desk, proxy, *clients) == ResponseCode.SYSTEM_BUSY
    assert len(await members(desk)) == desk.proxied.count == 2
    # Those that are listed stay.
    assert await tell(desk, proxy, *clients[:2]) == 0
    assert await tell(desk, proxy, ProxiedClient()) == ResponseCode.INVALID_PARAMETER
