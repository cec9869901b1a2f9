"""Admin's requests for many rows, modes and counters, answered by a broker of ours."""

import pytest

from mqcommon.errors import BrokerError
from remoting.protocol.requests.groups import SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig
from sdk.admin.client import LIST_PART, Admin
from tests.broker.running import pull_request, running, send_request


async def test_lists_of_any_length() -> None:
    count = 2 * LIST_PART + 1
    names = [f"name-{'x' * 80}-{number}" for number in range(count)]
    async with running() as (_, addr), Admin("") as admin:
        await admin.create_topics(addr, [TopicConfig(name, 2, 2) for name in names])
        await admin.create_groups(addr, [SubscriptionGroupConfig(name, retry_max_times=2) for name in names])
        topics = (await admin.all_topic_config(addr)).topic_config_table
        assert [topics[name].read_queue_nums for name in names] == [2] * count
        groups = (await admin.all_groups(addr)).subscription_group_table
        assert [groups[name].retry_max_times for name in names] == [2] * count


async def test_a_mistake_is_refused() -> None:
    async with running() as (_, addr), Admin("") as admin:
        with pytest.raises(BrokerError, match="perm is 0 to 7, not 8"):
            await admin.create_topics(addr, [TopicConfig("A"), TopicConfig("B", perm=8)])
        await admin.set_consume_mode(addr, "A", "g", "PULL")
        await admin.set_consume_mode(addr, "A", "g", "POP", 4)


async def test_counters_of_a_topic_and_a_group() -> None:
    async with running() as (client, addr), Admin("") as admin:
        for _ in range(3):
            await client.invoke(addr, send_request("T", b"x"))
        await client.invoke(addr, pull_request("T", 0))
        put = await admin.broker_stats(addr, "TOPIC_PUT_NUMS", "T")
        got = await admin.broker_stats(addr, "GROUP_GET_NUMS", "T@group")
        assert (put.stats_day.sum, put.stats_minute.sum, got.stats_hour.sum) == (3, 3, 3)
        assert (put.stats_minute.avgpt, got.stats_minute.avgpt) == (1.0, 3.0)
        with pytest.raises(BrokerError, match="SNDBCK_PUT_NUMS"):
            await admin.broker_stats(addr, "SNDBCK_PUT_NUMS", "T@group")
        await admin.delete_topic_in_broker(addr, "T")
        with pytest.raises(BrokerError, match="not exist"):
            await admin.broker_stats(addr, "TOPIC_PUT_NUMS", "T")
