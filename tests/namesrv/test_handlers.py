import zlib
from pathlib import Path

import pytest
import trio

from skylark.mqcommon.addresses import split_address
from skylark.namesrv.routes import CONTEST_MS
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, ROCKETMQ, Command
from skylark.remoting.protocol.dialect import decode_body, encode_body, loads
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    GET_BROKER_MEMBER_GROUP,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    RegisterBrokerBody,
    body_crc32,
    encode_compressed,
)
from skylark.remoting.protocol.requests.routes import (
    DELETE_TOPIC_IN_NAMESRV,
    GET_BROKER_CLUSTER_INFO,
    GET_HAS_UNIT_SUB_TOPIC_LIST,
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST_FROM_NS,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    REGISTER_TOPIC_IN_NAMESRV,
    ClusterInfo,
    MemberGroupAnswer,
    QueueData,
    TopicRouteData,
)
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable
from tests.namesrv.peer import V4_9_3, V5_3_3, Peer, Served, serve
from tests.namesrv.registrations import configs_of, version
from tests.support.waiting import DEADLINE_S

ONE_BROKER = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "DefaultCluster", "brokerId": 0}


async def test_a_registered_broker_is_found(peer: Peer) -> None:
    answer = await peer.register("127.0.0.1:10911", "t1", "t2")
    assert (answer.code, answer.ext, answer.body) == (0, {}, b"")
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})
    route = decode_body(TopicRouteData, answer.body)
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
    assert route.queue_datas == [QueueData("broker-a", 4, 4, 6, 0)]
    answer = await peer.ask(GET_BROKER_CLUSTER_INFO.code)
    info = decode_body(ClusterInfo, answer.body)
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "127.0.0.1:10911"}


async def test_a_client_is_given_the_address_of_its_network(served: Served, peer: Peer) -> None:
    async def seen(by: Peer) -> tuple[dict[int, str], dict[str, list[str]], dict[int, str]]:
        route = decode_body(TopicRouteData, (await by.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})).body)
        info = decode_body(ClusterInfo, (await by.ask(GET_BROKER_CLUSTER_INFO.code)).body)
        of_cluster = info.broker_addr_table["broker-a"].broker_addrs
        return route.broker_datas[0].broker_addrs, route.filter_server_table, of_cluster

    host, port = split_address(served.address)
    near = Peer(await trio.open_tcp_stream(host, port, local_address="127.0.0.2"))
    plain, networks = "10.0.0.1:10911", "127.0.0.0/8=1.1.1.1,127.0.0.2/32=ns.example:7,10.0.0.0/8=[fd00::5]"
    assert (await peer.register(plain)).code == 0
    assert await seen(near) == ({0: plain}, {}, {0: plain})
    assert (await peer.register(plain, counter=1, advertisedAddresses=networks)).code == 0
    await peer.register("10.0.0.9:10911", broker_id=1)
    there = {0: "1.1.1.1:10911", 1: "10.0.0.9:10911"}
    assert await seen(peer) == (there, {}, there)
    assert (await seen(near))[0] == {0: "ns.example:7", 1: "10.0.0.9:10911"}
    # Members of the set, and a broker that stops to advertise.
    group = await near.ask(GET_BROKER_MEMBER_GROUP.code, {"clusterName": "DefaultCluster", "brokerName": "broker-a"})
    assert decode_body(MemberGroupAnswer, group.body).broker_member_group.broker_addrs[0] == plain
    await peer.register(plain, counter=2)
    assert (await seen(near))[0] == {0: plain, 1: "10.0.0.9:10911"}
    refused = await peer.register(plain, counter=3, advertisedAddresses="10.0.0.0/8")
    assert (refused.code, "advertisedAddresses: '10.0.0.0/8' is not of the form" in (refused.remark or "")) == (1, True)
    await near.stream.aclose()


async def test_two_brokers_of_one_name_and_id_are_told_of_each_other(served: Served, peer: Peer) -> None:
    async def contested() -> dict[str, dict[int, str]] | None:
        return decode_body(ClusterInfo, (await peer.ask(GET_BROKER_CLUSTER_INFO.code)).body).contested

    one, two, other = "10.0.0.1:10911", "10.0.0.2:10911", await served.peer()
    assert (await peer.register(one)).ext == {}
    assert (await other.register(two, broker_id=1)).ext is not None
    assert await contested() is None
    assert ((await other.register(two)).ext or {})["contestedBy"] == one
    assert await contested() == {"broker-a": {0: one}}
    served.clock.advance(30_000)
    assert ((await peer.register(one)).ext or {})["contestedBy"] == two
    assert await contested() == {"broker-a": {0: two}}
    assert (await peer.register(one)).ext == {}
    served.clock.advance(CONTEST_MS + 1)
    assert await contested() is None


async def test_a_contest_ends_when_one_of_the_two_says_good_bye(served: Served, peer: Peer) -> None:
    one, two = "10.0.0.1:10911", "10.0.0.2:10911"
    await peer.register(one)
    await peer.register(two)
    await peer.ask(UNREGISTER_BROKER.code, {**ONE_BROKER, "brokerAddr": one})
    assert served.namesrv.state.routes.rivals.contested(served.clock.monotonic_ms()) == {}
    assert (await peer.register(two)).ext == {}


@pytest.mark.parametrize(
    ("ext", "client", "key"),
    [
        ({}, V4_9_3, b"{0:"),
        ({}, 401, b'{"0":'),
        ({}, V5_3_3, b'{"0":'),
        ({"acceptStandardJsonOnly": "true"}, V4_9_3, b'{"0":'),
        ({"acceptStandardJsonOnly": "false"}, V4_9_3, b"{0:"),
    ],
)
async def test_number_keys_are_quoted_for_those_who_can_read_it(
    peer: Peer, ext: dict[str, str], client: int, key: bytes
) -> None:
    await peer.register()
    route = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1", **ext}, version=client)
    assert b'"brokerAddrs":' + key + b'"127.0.0.1:10911"}' in route.body
    info = await peer.ask(GET_BROKER_CLUSTER_INFO.code, ext, version=client)
    assert b'"brokerAddrs":' + key + b'"127.0.0.1:10911"}' in info.body


async def test_binary_headers_are_answered_in_kind(peer: Peer) -> None:
    await peer.register()
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"}, codec=ROCKETMQ)
    assert answer.codec == ROCKETMQ
    assert b'"brokerAddrs":{"0":' in answer.body


async def test_a_skylark_client_speaks_cbor(served: Served, peer: Peer) -> None:
    await peer.register()
    async with open_client() as client:
        for _ in range(2):
            command = Command(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})
            answer = await client.invoke(served.address, command)
        assert answer.codec == CBOR
        route = decode_body(TopicRouteData, answer.body, answer.codec)
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
        body = RegisterBrokerBody(TopicConfigTable(DataVersion(0, 1, 1), configs_of("u1", "u2")))
        broker = {**ONE_BROKER, "brokerName": "broker-b", "brokerAddr": "127.0.0.1:20911", "haServerAddr": ""}
        answer = await client.invoke(served.address, Command(REGISTER_BROKER.code, broker), body=body)
        assert (answer.code, answer.codec) == (0, CBOR)
        assert await peer.topics() == ["t1", "t2", "u1", "u2"]


async def test_a_closed_connection_removes_the_broker_at_once(served: Served, peer: Peer) -> None:
    broker = await served.peer()
    await broker.register()
    assert await peer.topics() == ["t1", "t2"]
    await broker.stream.aclose()
    await until_topics(peer, [])


async def test_a_broker_that_reconnects_survives_the_end_of_its_old_connection(served: Served, peer: Peer) -> None:
    old, new = await served.peer(), await served.peer()
    await old.register(counter=3)
    await old.register("127.0.0.1:20911", "x1", "x2", name="stays-behind")
    answer = await new.ask(QUERY_DATA_VERSION.code, ONE_BROKER, encode_body(DataVersion(0, 1, 3)))
    assert answer.ext == {"changed": "false"}
    assert await peer.topics() == ["t1", "t2", "x1", "x2"]
    await old.stream.aclose()
    await until_topics(peer, ["t1", "t2"])
    await new.stream.aclose()


async def test_the_data_version_tells_whether_to_register(peer: Peer) -> None:
    asked = encode_body(DataVersion(0, 1, 3))
    answer = await peer.ask(QUERY_DATA_VERSION.code, ONE_BROKER, asked)
    assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
    await peer.register(counter=3)
    answer = await peer.ask(QUERY_DATA_VERSION.code, ONE_BROKER, asked)
    assert (answer.ext, answer.body) == ({"changed": "false"}, b'{"counter":3,"stateVersion":0,"timestamp":1}')
    answer = await peer.ask(QUERY_DATA_VERSION.code, ONE_BROKER, encode_body(DataVersion(0, 1, 4)))
    assert (answer.ext, answer.body) == ({"changed": "true"}, b'{"counter":3,"stateVersion":0,"timestamp":1}')
    other = {**ONE_BROKER, "clusterName": "other"}
    answer = await peer.ask(QUERY_DATA_VERSION.code, other, asked)
    assert answer.ext == {"changed": "true"}


async def test_the_same_question_for_the_version_is_answered_until_the_version_changes(
    peer: Peer,
) -> None:
    who = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "DefaultCluster", "brokerId": 0}
    await peer.register(counter=7)
    asked = [await peer.ask(322, who, DataVersion(0, 1, 7)) for _ in range(2)]
    # A longer question with the same version is decoded each time, and not kept.
    padded = encode_body(DataVersion(0, 1, 7)) + b" " * 10_000
    asked += [await peer.ask(322, who, padded), await peer.ask(322, who, DataVersion(0, 1, 7), version=V4_9_3)]
    assert {(answer.ext["changed"], answer.body) for answer in asked if answer.ext} == {("false", asked[0].body)}
    await peer.register(counter=8)
    changed = await peer.ask(322, who, DataVersion(0, 1, 7))
    assert changed.ext is not None
    assert (changed.ext["changed"], DataVersion.from_wire(loads(changed.body))) == ("true", DataVersion(0, 1, 8))


async def test_a_broker_that_still_has_a_deleted_topic_is_asked_to_register_again(peer: Peer) -> None:
    await peer.register(counter=7)
    asked = encode_body(DataVersion(0, 1, 7))
    assert (await peer.ask(QUERY_DATA_VERSION.code, ONE_BROKER, asked)).ext == {"changed": "false"}
    await peer.ask(DELETE_TOPIC_IN_NAMESRV.code, {"topic": "t1"})
    for _ in range(2):
        assert (await peer.ask(QUERY_DATA_VERSION.code, ONE_BROKER, asked)).ext == {"changed": "true"}
    await peer.register(counter=7)
    assert await peer.topics() == ["t1", "t2"]
    assert (await peer.ask(QUERY_DATA_VERSION.code, ONE_BROKER, asked)).ext == {"changed": "false"}


async def test_a_silent_broker_is_forgotten_and_its_connection_closed(served: Served, peer: Peer) -> None:
    silent = await served.peer()
    await silent.register()
    await silent.register("127.0.0.1:20911", "t3", "t4", name="broker-b", heartbeatTimeoutMillis=500_000)
    served.clock.advance(120_000)
    served.namesrv.forget_silent_brokers(served.clock.monotonic_ms())
    assert await peer.topics() == ["t1", "t2", "t3", "t4"]
    served.clock.advance(1)
    served.namesrv.forget_silent_brokers(served.clock.monotonic_ms())
    with trio.fail_after(DEADLINE_S):
        assert await silent.stream.receive_some() == b""
    assert await peer.topics() == []  # broker-b went with the connection


async def test_a_slave_is_told_its_master(peer: Peer) -> None:
    await peer.register("127.0.0.1:10911", ha="127.0.0.1:10912")
    answer = await peer.register("127.0.0.1:20911", broker_id=1)
    assert answer.ext == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}


async def test_a_broker_unregisters(peer: Peer) -> None:
    await peer.register()
    answer = await peer.ask(UNREGISTER_BROKER.code, {**ONE_BROKER, "clusterName": "other"})
    assert answer.code == 0
    assert await peer.topics() == ["t1", "t2"]
    answer = await peer.ask(UNREGISTER_BROKER.code, ONE_BROKER)
    assert (answer.code, answer.ext) == (0, None)
    assert await peer.topics() == []


async def test_a_registration_may_be_compressed(peer: Peer) -> None:
    topics = {**configs_of("t1"), "t2": TopicConfig("t2", 1, 2, 4, attributes={"message.type": "FIFO"})}
    for client in (V4_9_3, V5_3_3):
        body = encode_compressed(RegisterBrokerBody(TopicConfigTable(version(client), topics)), client)
        ext = {**ONE_BROKER, "haServerAddr": "", "compressed": "true", "bodyCrc32": body_crc32(body)}
        assert (await peer.ask(REGISTER_BROKER.code, ext, body, version=client)).code == 0
        answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t2"})
        assert decode_body(TopicRouteData, answer.body).queue_datas == [QueueData("broker-a", 1, 2, 4, 0)]


async def test_damaged_registrations_are_refused(peer: Peer) -> None:
    good = encode_body(RegisterBrokerBody(TopicConfigTable(version(0), configs_of("t1", "t2"))))
    ext = {**ONE_BROKER, "haServerAddr": ""}
    for fields, body, remark in (
        ({"bodyCrc32": "1"}, good, "crc32 not match"),
        ({}, good[:-1], "the body cannot be read: "),
        ({}, b"[]", "the body cannot be read: "),
        ({"compressed": "true"}, b"no zlib", "the body cannot be read: "),
        ({"compressed": "true"}, zlib.compress(b"\xff" * 9), "the body cannot be read: "),
        ({"brokerAddr": " "}, good, "brokerAddr is blank"),
        ({"brokerId": "-1"}, good, "brokerId -1 is negative"),
        ({"brokerId": "x"}, good, "org.apache.rocketmq.remoting.exception.RemotingCommandException: "),
    ):
        answer = await peer.ask(REGISTER_BROKER.code, {**ext, **fields}, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith(remark)
    answer = await peer.ask(REGISTER_BROKER.code)
    assert answer.remark is not None
    assert answer.remark.endswith("the custom field <brokerName> is null")
    assert await peer.topics() == []


async def test_a_first_registration_of_one_topic_is_refused(peer: Peer) -> None:
    answer = await peer.register("127.0.0.1:10911", "n")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    await peer.register()
    assert (await peer.register("127.0.0.1:10911", "n", counter=1)).code == 0
    assert await peer.topics() == ["n", "t1", "t2"]


async def test_topics_are_deleted_and_registered(peer: Peer) -> None:
    await peer.register()
    await peer.ask(DELETE_TOPIC_IN_NAMESRV.code, {"topic": "t1", "clusterName": "other"})
    assert await peer.topics() == ["t1", "t2"]
    await peer.ask(DELETE_TOPIC_IN_NAMESRV.code, {"topic": "t1"})
    assert await peer.topics() == ["t2"]
    for name, topics in (("absent", ["t2"]), ("broker-a", ["new", "t2"])):
        body = TopicRouteData(queue_datas=[QueueData(name, 1, 1, 6, 0)])
        assert (await peer.ask(REGISTER_TOPIC_IN_NAMESRV.code, {"topic": "new"}, body)).code == 0
        assert await peer.topics() == topics


async def test_topics_are_listed_by_cluster_and_by_flag(peer: Peer) -> None:
    await peer.register()
    await peer.register("127.0.0.1:20911", "t2", "t3", name="broker-b", cluster="other")

    async def names(code: int, **ext: str) -> list[str]:
        found: list[str] = loads((await peer.ask(code, ext)).body)["topicList"]
        return found

    assert await names(GET_TOPICS_BY_CLUSTER.code, cluster="other") == ["t2", "t3"]
    assert await names(GET_TOPICS_BY_CLUSTER.code, cluster="absent") == []
    answer = await peer.ask(GET_SYSTEM_TOPIC_LIST_FROM_NS.code)
    assert loads(answer.body) == {
        "brokerAddr": "127.0.0.1:10911",
        "topicList": ["DefaultCluster", "broker-a", "other", "broker-b"],
    }
    flags = {f"flag{flag}": TopicConfig(f"flag{flag}", topic_sys_flag=flag) for flag in range(4)}
    body = RegisterBrokerBody(TopicConfigTable(version(9), flags))
    await peer.ask(REGISTER_BROKER.code, {**ONE_BROKER, "haServerAddr": ""}, body)
    assert await names(GET_UNIT_TOPIC_LIST.code) == ["flag1", "flag3"]
    assert await names(GET_HAS_UNIT_SUB_TOPIC_LIST.code) == ["flag2", "flag3"]
    assert await names(GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.code) == ["flag2"]


async def test_topic_lists_can_be_disabled(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, enable_topic_list=False, enable_all_topic_list=False)
    peer = await served.peer()
    for code in (206, 224, 304, 311, 312, 313):
        answer = await peer.ask(code, {"cluster": "c"})
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "disable")
    await peer.stream.aclose()


async def test_absent_topics_go_when_the_option_says_so(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, delete_topic_with_broker_registration=True)
    peer = await served.peer()
    await peer.register()
    await peer.register("127.0.0.1:10911", "t2", "t3", counter=1)
    assert await peer.topics() == ["t2", "t3"]
    await peer.stream.aclose()


async def test_an_acting_master_is_shown_when_the_option_says_so(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, support_acting_master=True)
    peer = await served.peer()
    await peer.register("127.0.0.1:20911", broker_id=2, enableActingMaster=True)
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})
    route = decode_body(TopicRouteData, answer.body)
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:20911"}
    assert route.queue_datas[0].perm == 4
    await peer.stream.aclose()


async def test_the_members_of_a_set_are_listed(peer: Peer) -> None:
    await peer.register()
    await peer.register("127.0.0.1:20911", broker_id=1)
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    answer = await peer.ask(GET_BROKER_MEMBER_GROUP.code, ext)
    assert loads(answer.body) == {
        "brokerMemberGroup": {
            "brokerAddrs": {"0": "127.0.0.1:10911", "1": "127.0.0.1:20911"},
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
        }
    }
    answer = await peer.ask(GET_BROKER_MEMBER_GROUP.code, {**ext, "brokerName": "broker-b"})
    assert decode_body(MemberGroupAnswer, answer.body).broker_member_group.broker_addrs == {}


async def test_light_heartbeats_keep_a_broker(served: Served, peer: Peer) -> None:
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "brokerId": 0}
    answer = await peer.ask(BROKER_HEARTBEAT.code, ext)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "broker 127.0.0.1:10911 is not registered")
    await peer.register(heartbeatTimeoutMillis=10_000)
    for _ in range(3):
        served.clock.advance(9_000)
        served.namesrv.forget_silent_brokers(served.clock.monotonic_ms())
        assert (await peer.ask(BROKER_HEARTBEAT.code, ext)).code == 0
    served.clock.advance(10_001)
    served.namesrv.forget_silent_brokers(served.clock.monotonic_ms())
    other = await served.peer()
    assert await other.topics() == []
    await other.stream.aclose()


async def test_clients_wait_for_brokers_when_the_option_says_so(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, need_wait_for_service=True)
    peer = await served.peer()
    await peer.register()
    served.clock.advance(44_999)
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
    served.clock.advance(1)
    assert (await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})).code == 0
    await peer.stream.aclose()


async def test_other_requests_are_not_supported(peer: Peer) -> None:
    answer = await peer.ask(10, {"topic": "t1"})
    assert (answer.code, answer.remark) == (3, " request type 10 not supported")


async def until_topics(peer: Peer, topics: list[str]) -> None:
    """Returns when the NameServer has seen what was done on another connection."""
    with trio.fail_after(DEADLINE_S):
        while await peer.topics() != topics:
            await trio.lowlevel.checkpoint()
