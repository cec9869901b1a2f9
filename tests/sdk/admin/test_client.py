"""Admin: each method against fakes of two NameServers and two brokers, and long lists against a broker of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark import Client, Producer, PullConsumer
from skylark.mqcommon.errors import (
    BrokerError,
    InvalidArgument,
    ProtocolError,
    RemotingError,
    RouteNotFound,
    UserError,
)
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.message import MessageExt
from skylark.remoting.protocol.body import Body, KVTable
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import BrokerStatsData, BrokerStatsItem
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from skylark.remoting.protocol.requests.offsets import GetConsumerStatusBody, ResetOffsetBody
from skylark.remoting.protocol.requests.query import ConsumeQueueData, ConsumeQueueEntries
from skylark.remoting.protocol.requests.routes import BrokerData
from skylark.remoting.protocol.requests.topics import (
    GroupList,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from skylark.sdk.admin.client import LIST_PART, LONG_MAX, Admin, rollback_of
from skylark.sdk.admin.reports.messages import messages_by_unique_key
from skylark.sdk.admin.reports.problems import ReportProblem
from tests.broker.running import pull_request, running, send_request
from tests.sdk.admin.two_brokers import cluster, ext, mq
from tests.sdk.fakes import FakeBroker, FakeNamesrv, record, serving

# --- routes and clusters


async def test_routes_and_clusters() -> None:
    async with cluster() as it:
        route = await it.admin.topic_route("t")
        assert [data.broker_name for data in route.broker_datas] == ["broker-a", "broker-b"]
        with pytest.raises(RouteNotFound):
            await it.admin.topic_route("u")
        info = await it.admin.cluster_info()
        assert info.cluster_addr_table == {"c1": ["broker-a", "broker-b"]}
        assert await it.admin.brokers_of_cluster("c1") == [it.a.addr, it.b.addr]
        assert await it.admin.broker_addr_of("broker-b") == it.b.addr


async def test_what_is_not_there_is_named_with_what_is() -> None:
    async with cluster() as it:
        with pytest.raises(UserError, match=r"'c2'.*c1"):
            await it.admin.brokers_of_cluster("c2")
        with pytest.raises(UserError, match=r"'broker-z'.*broker-a, broker-b"):
            await it.admin.broker_addr_of("broker-z")
        for namesrv in it.namesrvs:
            namesrv.routes["t"].broker_datas[0] = BrokerData("c1", "broker-a", {1: "h:1"})
        with pytest.raises(UserError, match="no master"):
            await it.admin.broker_addr_of("broker-a")
        assert await it.admin.brokers_of_cluster("c1") == [it.b.addr]


# --- topics


async def test_a_topic_is_created_and_deleted() -> None:
    async with cluster() as it:
        for code in (17, 215):
            it.a.on(code, lambda request: {})
        for namesrv in it.namesrvs:
            namesrv.on(216, lambda request: {})
        attributes = {"message.type": "FIFO", "+a": "b", "-gone": ""}
        await it.admin.create_topic(it.a.addr, TopicConfig("new", 3, 4, 6, order=True, attributes=attributes))
        assert ext(it.a.asked(17)[0]) == {
            "topic": "new", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "4", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "true", "force": "false",
            "attributes": "+message.type=FIFO,+a=b,-gone",
        }  # fmt: skip
        await it.admin.delete_topic_in_broker(it.a.addr, "new")
        assert ext(it.a.asked(215)[0]) == {"topic": "new"}
        await it.admin.delete_topic_in_namesrv("new")
        await it.admin.delete_topic_in_namesrv("new", "c1")
        for namesrv in it.namesrvs:
            assert [ext(request) for request in namesrv.asked(216)] == [
                {"topic": "new"},
                {"topic": "new", "clusterName": "c1"},
            ]


async def test_lists_of_topics() -> None:
    async with cluster() as it:
        for namesrv in it.namesrvs:
            namesrv.on(206, lambda request: TopicList(["t", "u"]))
            namesrv.on(224, lambda request: TopicList([ext(request)["cluster"]]))
            namesrv.on(304, lambda request: TopicList(["c1", "broker-a"], it.a.addr))
        it.a.on(305, lambda request: TopicList(["broker-a", "TBW102"]))
        assert await it.admin.topic_list() == ["t", "u"]
        assert await it.admin.topics_by_cluster("c1") == ["c1"]
        assert await it.admin.system_topics() == ["c1", "broker-a", "TBW102"]


async def test_one_topics_configuration_also_of_an_old_broker() -> None:
    async with cluster() as it:
        it.a.on(351, lambda request: TopicConfig(ext(request)["topic"], 5, 6))
        assert (await it.admin.topic_config(it.a.addr, "t")).write_queue_nums == 6
        it.b.on(21, lambda request: TopicConfigTable(topic_config_table={"t": TopicConfig("t", 7, 8)}))
        assert (await it.admin.topic_config(it.b.addr, "t")).read_queue_nums == 7
        assert (await it.admin.all_topic_config(it.b.addr)).topic_config_table["t"].write_queue_nums == 8
        with pytest.raises(BrokerError) as caught:
            await it.admin.topic_config(it.b.addr, "u")
        assert (caught.value.code, caught.value.addr) == (17, it.b.addr)


async def test_stats_of_a_topic_are_of_all_brokers() -> None:
    async with cluster() as it:
        it.a.on(202, lambda request: TopicStatsTable({mq("broker-a"): TopicOffset(0, 5, 9)}, 1.5))
        it.b.on(202, lambda request: TopicStatsTable({mq("broker-b"): TopicOffset(1, 6, 8)}, 2.0))
        stats = await it.admin.topic_stats("t")
        assert {key: value.max_offset for key, value in stats.offset_table.items()} == {
            mq("broker-a"): 5,
            mq("broker-b"): 6,
        }
        assert stats.topic_put_tps == 3.5


async def test_numbers_are_complete_or_an_error() -> None:
    async with cluster() as it:
        it.a.on(202, lambda request: TopicStatsTable({mq("broker-a"): TopicOffset(0, 5, 9)}))
        it.b.on(202, lambda request: request.respond(17, "topic[t] not exist"))
        assert list((await it.admin.topic_stats("t")).offset_table) == [mq("broker-a")]
        it.a.on(202, lambda request: request.respond(17, "topic[t] not exist"))
        with pytest.raises(BrokerError, match="not exist"):
            await it.admin.topic_stats("t")
        it.b.on(202, lambda request: TopicStatsTable())
        it.a.stop()
        with pytest.raises(RemotingError):
            await it.admin.topic_stats("t")


async def test_the_brokers_of_a_cluster_or_of_a_parent_topic() -> None:
    async with cluster() as it:
        it.a.on(202, lambda request: TopicStatsTable({mq("broker-a"): TopicOffset(0, 5, 9)}))
        it.b.on(202, lambda request: request.respond(17, "topic[t] not exist"))
        for namesrv in it.namesrvs:
            namesrv.add("parent", it.a)
        for name in ("c1", "parent"):
            # the topic itself has no route
            assert list((await it.admin.topic_stats("%LMQ%t", name)).offset_table) == [mq("broker-a")]
        assert len(it.b.asked(202)) == 1
        with pytest.raises(UserError, match="no cluster 'c2'; the NameServer knows: c1"):
            await it.admin.topic_stats("t", "c2")


# --- groups


async def test_whether_a_group_exists() -> None:
    async with cluster() as it:
        it.a.on(201, lambda request: SubscriptionGroupTable())
        it.b.on(201, lambda request: SubscriptionGroupTable({"g": SubscriptionGroupConfig("g")}))
        assert await it.admin.group_exists("g")
        assert not await it.admin.group_exists("h")
        it.a.stop()
        assert await it.admin.group_exists("g")
        with pytest.raises(RemotingError):
            await it.admin.group_exists("h")


async def test_a_subscription_is_that_of_any_broker_that_has_members() -> None:
    async with cluster() as it:
        body = QuerySubscriptionResponseBody("g", "t", SubscriptionData("t", "a || b"))
        it.a.on(345, lambda request: QuerySubscriptionResponseBody("g", "t"))
        it.b.on(345, lambda request: body)
        assert await it.admin.query_subscription("g", "t") == body.subscription_data
        assert ext(it.a.asked(345)[0]) == ext(it.b.asked(345)[0]) == {"group": "g", "topic": "t"}
        it.b.on(345, lambda request: QuerySubscriptionResponseBody("g", "t"))
        assert await it.admin.query_subscription("g", "t") is None


async def test_the_members_at_one_broker() -> None:
    async with cluster() as it:
        it.b.on(203, lambda request: ConsumerConnection([Connection("x", "h:2")]))
        found = await it.admin.consumer_connection("g", it.b.addr)
        assert [member.client_id for member in found.connection_set] == ["x"]
        assert it.a.asked(203) == []


async def test_a_group_is_created_and_deleted() -> None:
    async with cluster() as it:
        for code in (200, 207):
            it.a.on(code, lambda request: {})
        it.a.on(201, lambda request: SubscriptionGroupTable({"g": SubscriptionGroupConfig("g")}))
        await it.admin.create_group(it.a.addr, SubscriptionGroupConfig("g", retry_max_times=3))
        (request,) = it.a.asked(200)
        sent = decode_body(SubscriptionGroupConfig, request.body, request.codec)
        assert (sent.group_name, sent.retry_max_times) == ("g", 3)
        assert list((await it.admin.all_groups(it.a.addr)).subscription_group_table) == ["g"]
        await it.admin.delete_group(it.a.addr, "g", True)
        assert ext(it.a.asked(207)[0]) == {"groupName": "g", "cleanOffset": "true"}


async def test_progress_of_a_group() -> None:
    def stats(name: str) -> ConsumeStats:
        return ConsumeStats({mq(name): ConsumeOffset(10, 7, 8, 1)}, 0.5)

    async with cluster() as it:
        it.a.on(208, lambda request: stats("broker-a"))
        it.b.on(208, lambda request: stats("broker-b"))
        # the group never sent a heartbeat, so it has no retry topic: all brokers are asked
        merged = await it.admin.consume_stats("g")
        assert sorted(merged.offset_table) == [mq("broker-a"), mq("broker-b")]
        assert merged.consume_tps == 1.0
        assert ext(it.a.asked(208)[0]) == {"consumerGroup": "g"}
        await it.admin.consume_stats("g", "t")
        assert ext(it.a.asked(208)[1]) == {"consumerGroup": "g", "topic": "t"}
        with pytest.raises(RouteNotFound):
            await it.admin.consume_stats("g", "u")
        for namesrv in it.namesrvs:
            namesrv.add("%RETRY%g", it.b)
        assert list((await it.admin.consume_stats("g")).offset_table) == [mq("broker-b")]


async def test_members_of_a_group_are_of_all_brokers() -> None:
    async with cluster() as it:
        offline: Body | None = None
        it.a.on(203, lambda request: offline or request.respond(206, "the consumer group[g] not online"))
        it.b.on(
            203,
            lambda request: ConsumerConnection(
                [Connection("y", "h:1"), Connection("x", "h:2")], {"t": SubscriptionData("t")}, "CONSUME_PASSIVELY"
            ),
        )
        found = await it.admin.consumer_connection("g")
        assert [member.client_id for member in found.connection_set] == ["x", "y"]
        assert found.consume_type == "CONSUME_PASSIVELY"
        offline = ConsumerConnection([Connection("x", "h:3"), Connection("z", "h:4")], {"u": SubscriptionData("u")})
        both = await it.admin.consumer_connection("g")
        assert [member.client_id for member in both.connection_set] == ["x", "y", "z"]
        assert sorted(both.subscription_table) == ["t", "u"]
        it.a.on(203, lambda request: request.respond(206, "not online"))
        it.b.on(203, lambda request: request.respond(206, "not online"))
        with pytest.raises(BrokerError) as caught:
            await it.admin.consumer_connection("g")
        assert caught.value.code == 206


async def test_producers_of_a_group() -> None:
    async with cluster() as it:
        it.a.on(204, lambda request: ProducerConnection([Connection("x", "h:1")]))
        it.b.on(204, lambda request: request.respond(1, "the producer group[g] not exist"))
        assert [member.client_id for member in (await it.admin.producer_connection("g", "t")).connection_set] == ["x"]


async def test_what_a_consumer_does_is_asked_where_it_is() -> None:
    async with cluster() as it:
        it.a.on(307, lambda request: request.respond(1, "The Consumer <g> <x> not online"))
        it.b.on(307, lambda request: ConsumerRunningInfo(properties={"k": "v"}))
        assert (await it.admin.consumer_running_info("g", "x")).properties == {"k": "v"}
        assert ext(it.b.asked(307)[0]) == {"consumerGroup": "g", "clientId": "x", "jstackEnable": "false"}


async def test_groups_of_a_topic() -> None:
    async with cluster() as it:
        it.a.on(300, lambda request: GroupList(["g2", "g1"]))
        it.b.on(300, lambda request: GroupList(["g3", "g1"]))
        assert await it.admin.groups_of_topic("t") == ["g1", "g2", "g3"]
        it.b.stop()
        assert await it.admin.groups_of_topic("t") == ["g1", "g2"]


# --- brokers and NameServers


async def test_without_a_nameserver_brokers_are_asked_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    async with serving(FakeBroker()) as broker, Admin(timeout_ms=2000) as admin:
        broker.on(28, lambda request: KVTable({"a": "b"}))
        assert await admin.broker_runtime_info(broker.addr) == {"a": "b"}
        for ask in (
            admin.cluster_info,
            lambda: admin.topic_route("t"),
            lambda: admin.max_offset(mq("broker-a")),
            lambda: admin.put_kv("n", "k", "v"),
            lambda: admin.namesrv_config(),
        ):
            with pytest.raises(UserError, match="no NameServer is given"):
                await ask()


async def test_brokers() -> None:
    async with cluster() as it:
        it.a.on(28, lambda request: KVTable({"putTps": "1 2 3"}))
        it.a.on(26, lambda request: request.respond(body=b"a=b=c\npath=C:\\x\n#no\nempty=\n"))
        it.a.on(25, lambda request: {})
        it.a.on(315, lambda request: BrokerStatsData(BrokerStatsItem(5, 0.5, 1.0)))
        assert await it.admin.broker_runtime_info(it.a.addr) == {"putTps": "1 2 3"}
        assert await it.admin.broker_config(it.a.addr) == {"a": "b=c", "path": "C:\\x", "empty": ""}
        await it.admin.update_broker_config(it.a.addr, {"path": "C:\\x", "n": "1"})
        assert it.a.asked(25)[0].body == b"path=C\\:\\\\x\nn=1\n"
        assert (await it.admin.broker_stats(it.a.addr, "TOPIC_PUT_NUMS", "t")).stats_minute.sum == 5


async def test_write_permission_is_changed_in_every_nameserver() -> None:
    async with cluster() as it:
        for count, namesrv in enumerate(it.namesrvs, 1):
            namesrv.on(205, lambda request, count=count: {"wipeTopicCount": count})  # type: ignore[misc]
            namesrv.on(327, lambda request, count=count: {"addTopicCount": 10 * count})  # type: ignore[misc]
        one, two = (namesrv.addr for namesrv in it.namesrvs)
        assert await it.admin.wipe_write_perm("broker-a") == {one: 1, two: 2}
        assert await it.admin.add_write_perm("broker-a") == {one: 10, two: 20}
        it.namesrvs[1].stop()
        with pytest.raises(RemotingError):
            await it.admin.wipe_write_perm("broker-a")


async def test_nameserver_configuration() -> None:
    async with cluster() as it:
        for namesrv in it.namesrvs:
            namesrv.on(319, lambda request: request.respond(body=b"listenPort=9876\n"))
            namesrv.on(318, lambda request: {})
        one, two = (namesrv.addr for namesrv in it.namesrvs)
        assert await it.admin.namesrv_config() == {one: {"listenPort": "9876"}, two: {"listenPort": "9876"}}
        assert list(await it.admin.namesrv_config([two])) == [two]
        await it.admin.update_namesrv_config({"a": "b"}, [one])
        assert it.namesrvs[0].asked(318)[0].body == b"a=b\n" and not it.namesrvs[1].asked(318)


async def test_key_values_are_written_to_all_and_read_from_one() -> None:
    async with cluster() as it:
        table: dict[str, str] = {}
        for namesrv in it.namesrvs:
            namesrv.on(100, lambda request: table.update({ext(request)["key"]: ext(request)["value"]}) or {})
            namesrv.on(101, lambda request: _value(request, table))
            namesrv.on(102, lambda request: {"gone": table.pop(ext(request)["key"], "")})
            namesrv.on(219, lambda request: KVTable(dict(table)) if table else request.respond(22, "No config item"))
        await it.admin.put_kv("ns", "k", "v")
        assert [len(namesrv.asked(100)) for namesrv in it.namesrvs] == [1, 1]
        assert await it.admin.get_kv("ns", "k") == "v"
        assert await it.admin.kv_list("ns") == {"k": "v"}
        await it.admin.delete_kv("ns", "k")
        assert await it.admin.get_kv("ns", "k") is None
        assert await it.admin.kv_list("ns") == {}


def _value(request: Command, table: dict[str, str]) -> Command:
    value = table.get(ext(request)["key"])
    return request.respond(22, "No config item") if value is None else request.respond(ext={"value": value})


async def test_an_answer_in_another_shape_is_an_error() -> None:
    async with cluster() as it:
        it.a.on(28, lambda request: request.respond(body=b"[1,2"))
        with pytest.raises(ProtocolError):
            await it.admin.broker_runtime_info(it.a.addr)


async def test_what_is_no_nameserver_is_the_same_error_everywhere() -> None:
    for cls in (Admin, Producer, PullConsumer, Client):
        with pytest.raises(InvalidArgument, match="'nonsense' is not of the form host:port"):
            cls("nonsense")
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(InvalidArgument, match="'nonsense' is not of the form host:port"):
            await admin.namesrv_config(["127.0.0.1:1", "nonsense"])
        with pytest.raises(InvalidArgument, match="'nonsense' is not of the form host:port"):
            await admin.update_namesrv_config({"k": "v"}, ["nonsense"])


# --- Admin's messages, offsets, queues and stores, against fakes


# Where a record has it.
STORE_HOST = slice(64, 72)


async def test_messages_by_key() -> None:
    async with cluster() as it:
        late, early = record("t", 0, 9, b"late", KEYS="k x"), record("t", 0, 1, b"early", KEYS="k")
        clash, other = record("t", 0, 2, b"clash", KEYS="kk"), record("u", 0, 3, b"other", KEYS="k")
        it.a.on(12, lambda request: request.respond(body=late + clash + other))
        it.b.on(12, lambda request: request.respond(body=early))
        found = await it.admin.query_message_by_key("t", "k", 10, 5, 6)
        assert [message.body for message in found] == [b"early", b"late"]
        assert [message.broker_name for message in found] == ["broker-b", "broker-a"]
        assert ext(it.a.asked(12)[0]) == {
            "topic": "t", "key": "k", "maxNum": "10", "beginTimestamp": "5", "endTimestamp": "6",
            "_UNIQUE_KEY_QUERY": "false",
        }  # fmt: skip
        assert [message.body for message in await it.admin.query_message_by_key("t", "k", 1)] == [b"early"]
        it.b.on(12, lambda request: request.respond(remark="only the newest"))
        why: list[str] = []
        assert len(await it.admin.query_message_by_key("t", "k", on_partial=why.append)) == 1
        assert why == ["broker-b: only the newest"]
        it.b.on(12, lambda request: request.respond(22, "can not find message, maybe time range not correct"))
        assert [message.body for message in await it.admin.query_message_by_key("t", "k")] == [b"late"]


async def test_messages_by_unique_key() -> None:
    async with cluster() as it:
        it.a.on(12, lambda request: request.respond(body=record("t", 0, 1, b"hit", UNIQ_KEY="A1")))
        it.b.on(12, lambda request: request.respond(body=record("t", 0, 1, b"clash", UNIQ_KEY="B2")))
        assert [message.body for message in await it.admin.query_by_unique_key("t", "A1")] == [b"hit"]
        asked = ext(it.a.asked(12)[0])
        assert (asked["_UNIQUE_KEY_QUERY"], asked["endTimestamp"]) == ("true", str(LONG_MAX))
        it.b.on(12, lambda request: request.respond(remark="only some files"))
        problems: list[ReportProblem] = []
        assert await messages_by_unique_key(it.admin, "t", "A1", on_problem=problems.append) and not problems
        assert not await messages_by_unique_key(it.admin, "t", "B2", on_problem=problems.append)
        partial, missing = [str(problem) for problem in problems[:2]]
        assert "not all messages were searched. broker-b: only some files" in partial
        assert "has the unique key B2" in missing


async def test_a_strict_search_by_unique_key_lets_brokers_search_the_rest_of_their_buckets() -> None:
    async with cluster() as it:
        hit = record("t", 0, 1, b"hit", UNIQ_KEY="A1")
        ends: list[int] = []

        def answer(request: Command) -> Command:
            end = int(ext(request)["endTimestamp"])
            ends.append(end)
            if end <= 7:
                return request.respond(body=hit)
            index = {"indexLastUpdateTimestamp": 0, "indexLastUpdatePhyoffset": 0}
            return request.respond(remark="the time was over", ext={**index, "nextEndTimestamp": min(end - 1, 9)})

        it.a.on(12, answer)
        it.b.on(12, lambda request: request.respond(22))
        why: list[str] = []
        found = await it.admin.query_by_unique_key("t", "A1", begin=5, strict=True, on_partial=why.append)
        assert [message.body for message in found] == [b"hit"] and not why
        assert ends == [LONG_MAX, 9, 8, 7] and ext(it.a.asked(12)[-1])["beginTimestamp"] == "5"
        assert await it.admin.query_by_unique_key("t", "A1", on_partial=why.append) == []
        assert why == ["broker-a: the time was over"]


async def test_a_message_by_its_offset_id() -> None:
    async with cluster() as it:
        it.a.on(33, lambda request: request.respond(body=record("t", 0, 1, b"hit")))
        port = int(it.a.addr.rpartition(":")[2])
        message = await it.admin.view_message(f"7F000001{port:08X}{1000:016X}")
        assert message.body == b"hit"
        assert ext(it.a.asked(33)[0])["offset"] == "1000"
        for text in ("", "7F", "Z" * 32):
            with pytest.raises(UserError):
                await it.admin.view_message(text)


async def test_a_message_is_given_to_a_consumer_by_its_broker() -> None:
    result = ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS", spent_time_mills=3)
    async with cluster() as it:
        host, _, port = it.b.addr.rpartition(":")
        raw = bytearray(record("t", 1, 0, b"x"))
        raw[STORE_HOST] = encode_host(host, int(port))
        stored = MessageExt(bytes(raw), 0, "broker-b")
        it.b.on(309, lambda request: result)
        assert await it.admin.consume_message_directly("g", "c@1", stored) == result
        [request] = it.b.asked(309)
        assert ext(request) == {
            "consumerGroup": "g", "clientId": "c@1", "topic": "t", "msgId": stored.offset_msg_id,
        }  # fmt: skip


async def test_offsets_of_a_queue() -> None:
    async with cluster() as it:
        it.b.put("t", 1, b"x", b"y")
        assert await it.admin.max_offset(mq("broker-b", 1)) == 2
        assert await it.admin.min_offset(mq("broker-b", 1)) == 0
        assert await it.admin.search_offset(mq("broker-b", 1), 4000) == 4
        await it.admin.search_offset(mq("broker-b", 1), 4000, "UPPER")
        assert [ext(request)["boundaryType"] for request in it.b.asked(29)] == ["LOWER", "UPPER"]
        times = iter([7, -1])
        it.b.on(32, lambda request: {"timestamp": next(times)})
        assert await it.admin.earliest_store_time(mq("broker-b", 1)) == 7
        assert await it.admin.earliest_store_time(mq("broker-b", 1)) is None


async def test_entries_of_a_queue() -> None:
    stored = ConsumeQueueEntries(queue_data=[ConsumeQueueData(5, 100, 7)], max_queue_index=4, min_queue_index=3)
    async with cluster() as it:
        it.a.on(321, lambda request: stored)
        assert await it.admin.query_consume_queue(it.a.addr, "t", 1, 3) == stored
        await it.admin.query_consume_queue(it.a.addr, "t", 1, 3, 2, "g")
        first, second = it.a.asked(321)
        assert ext(first) == {"topic": "t", "queueId": "1", "index": "3", "count": "10"}
        assert ext(second) == {"topic": "t", "queueId": "1", "index": "3", "count": "2", "consumerGroup": "g"}


async def test_a_brokers_store_is_cleaned() -> None:
    async with cluster() as it:
        for code in (306, 316, 329):
            it.a.on(code, lambda request: {})
        await it.admin.clean_expired_consume_queue(it.a.addr)
        assert [len(it.a.asked(code)) for code in (306, 316, 329)] == [1, 0, 0]
        await it.admin.clean_unused_topic(it.a.addr)
        assert [len(it.a.asked(code)) for code in (306, 316, 329)] == [1, 1, 0]
        await it.admin.delete_expired_commit_log(it.a.addr)
        assert [len(it.a.asked(code)) for code in (306, 316, 329)] == [1, 1, 1]


# --- `OffsetAdmin` against fakes of brokers, also of those that cannot reset offsets while no consumer is connected


async def test_both_brokers_reset() -> None:
    config = b"a=b\n"
    async with cluster() as it:
        it.a.on(222, lambda request: ResetOffsetBody({mq("broker-a"): 1}))
        it.b.on(222, lambda request: ResetOffsetBody({mq("broker-b"): 2}))
        assert await it.admin.reset_offsets("g", "t", 5, force=False) == {mq("broker-a"): 1, mq("broker-b"): 2}
        assert ext(it.a.asked(222)[0]) == {
            "group": "g", "topic": "t", "timestamp": "5", "isForce": "false", "queueId": "-1", "offset": "-1",
        }  # fmt: skip
        it.a.on(26, lambda request: request.respond(ext={"version": "1"}, body=config))
        with pytest.raises(UserError, match="cannot reset one queue"):
            await it.admin.reset_queue(it.a.addr, "g", "t", 0, -1, 7)
        config = b"a=b\nuseServerSideResetOffset=true\n"
        assert await it.admin.reset_queue(it.a.addr, "g", "t", 0, -1, 7) == {mq("broker-a"): 1}
        asked = ext(it.a.asked(222)[1])
        assert (asked["queueId"], asked["offset"]) == ("0", "7")


async def test_a_broker_that_only_tells_consumers_has_its_offsets_committed() -> None:
    async with cluster() as it:
        for broker in (it.a, it.b):
            broker.on(222, lambda request: request.respond(206, "Consumer not online, so can not reset offset"))
            broker.on(29, lambda request: {"offset": "3"})
            broker.on(15, lambda request: request.respond())
        it.a.on(208, lambda request: ConsumeStats({mq("broker-a"): ConsumeOffset(10, 7, 8, 1)}))
        it.b.on(208, lambda request: ConsumeStats({mq("broker-b"): ConsumeOffset(10, 2, 8, 1)}))
        assert await it.admin.reset_offsets("g", "t", 5) == {mq("broker-a"): 3, mq("broker-b"): 3}
        assert await it.admin.reset_offsets("g", "t", 5, force=False) == {mq("broker-a"): 3, mq("broker-b"): 2}
        assert await it.admin.reset_offsets("g", "t", -1) == {mq("broker-a"): 10, mq("broker-b"): 10}
        assert [ext(request)["commitOffset"] for request in it.b.asked(15)] == ["3", "2", "10"]
        rows = await it.admin.roll_back_offsets("g", "t", 5)
        assert [(row.consumer_offset, row.timestamp_offset, row.rollback_offset) for row in rows] == [
            (7, 3, 3),
            (2, 3, 3),
        ]


async def test_another_refusal_is_an_error() -> None:
    async with cluster() as it:
        it.a.on(222, lambda request: ResetOffsetBody({}))
        it.b.on(222, lambda request: request.respond(26, "Group g does not exist"))
        with pytest.raises(BrokerError, match="Group g does not exist"):
            await it.admin.reset_offsets("g", "t", 5)


async def test_what_clients_and_brokers_say_is_merged() -> None:
    async with cluster() as it:
        it.a.on(223, lambda request: GetConsumerStatusBody(consumer_table={"c": {mq("broker-a"): 1}}))
        it.b.on(223, lambda request: GetConsumerStatusBody(consumer_table={"c": {mq("broker-b"): 2}, "d": {}}))
        assert await it.admin.consumer_status("g", "t") == {"c": {mq("broker-a"): 1, mq("broker-b"): 2}, "d": {}}
        for broker in (it.a, it.b):
            broker.on(303, lambda request: QueryConsumeTimeSpanBody([QueueTimeSpan(mq("x"), delay_time=9)]))
            broker.on(314, lambda request: request.respond())
        assert [span.delay_time for span in await it.admin.consume_time_spans("g", "t")] == [9, 9]
        await it.admin.clone_group_offsets("g", "h", "t")
        assert len(it.a.asked(314)) == len(it.b.asked(314)) == 1


async def test_one_broker() -> None:
    async with cluster() as it:
        it.a.on(317, lambda request: ConsumeStatsList([{"g": [ConsumeStats()]}], it.a.addr, 7))
        it.a.on(201, lambda request: SubscriptionGroupTable({"g": SubscriptionGroupConfig("g")}))
        it.a.on(328, lambda request: ProducerTableInfo({"p": [ProducerInfo("c")]}))
        assert (await it.admin.broker_consume_stats(it.a.addr)).total_diff == 7
        assert (await it.admin.group_config(it.a.addr, "g")).group_name == "g"
        with pytest.raises(BrokerError, match="Group h does not exist"):
            await it.admin.group_config(it.a.addr, "h")
        assert list((await it.admin.all_producers(it.a.addr)).data) == ["p"]


async def test_arguments_are_checked() -> None:
    async with cluster() as it:
        with pytest.raises(ValueError, match="group"):
            await it.admin.reset_offsets("a b", "t", 5)
        with pytest.raises(TypeError, match="timestamp_ms"):
            await it.admin.reset_offsets("g", "t", "now")  # type: ignore[arg-type]


OFFSETS = st.integers(0, 1 << 62)


@given(OFFSETS, OFFSETS, st.integers(-1, 1 << 62), st.booleans())
def test_a_group_is_moved_to_the_time_or_stays(end: int, consumed: int, by_time: int, force: bool) -> None:
    row = rollback_of(mq("a"), ConsumeOffset(end, consumed, consumed, 0), by_time, force=force)
    assert row.rollback_offset in (max(by_time, 0), consumed)
    assert row.rollback_offset <= consumed or force
    assert not force or row.rollback_offset == row.timestamp_offset


# --- Admin's requests for many rows, modes and counters, answered by a broker of ours


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


async def test_without_brokers_nothing_is_known_of_a_group() -> None:
    async with serving(FakeNamesrv()) as namesrv, Admin(namesrv.addr) as admin:
        for ask in (admin.consumer_connection, admin.consume_stats):
            with pytest.raises(UserError, match="no broker is registered: start one"):
                await ask("g")
