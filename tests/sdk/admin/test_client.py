import pytest

from mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    InvalidArgument,
    ProtocolError,
    RemotingError,
    RouteNotFound,
    UserError,
)
from remoting.protocol.body import Body, KVTable
from remoting.protocol.command import Command
from remoting.protocol.dialect import decode_body
from remoting.protocol.requests.brokers import BrokerStatsData, BrokerStatsItem
from remoting.protocol.requests.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    QuerySubscriptionResponseBody,
    SubscriptionData,
)
from remoting.protocol.requests.groups import (
    ConsumeOffset,
    ConsumeStats,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from remoting.protocol.requests.routes import BrokerData
from remoting.protocol.requests.topics import (
    GroupList,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from sdk import Client, Producer, PullConsumer
from sdk.admin.client import Admin
from tests.sdk.admin.two_brokers import cluster, ext, mq
from tests.sdk.fakes import FakeBroker, serving

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


async def test_a_server_that_is_not_there() -> None:
    async with cluster() as it:
        it.a.stop()
        with pytest.raises(ConnectFailed, match=it.a.addr):
            await it.admin.broker_config(it.a.addr)


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
