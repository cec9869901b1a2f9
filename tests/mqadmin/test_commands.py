"""What commands ask of the servers, and what they print where golden has no example."""

import json
from typing import Any

import pytest

from skylark.mqadmin.render import to_json
from skylark.mqcommon.errors import BrokerError, ConnectFailed, RequestTimeout
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    ProducerConnection,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.routes import STOPPED, AbsentBroker, BrokerData, QueueData, TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicStatsTable
from tests.mqadmin.fake import MASTER, NAMESRV, SLAVE, World, message, route, run

OTHER_NAMESRV = "127.0.0.1:29878"
JSON = ("--output", "json")


def document(world: World, *arguments: str) -> Any:
    result = run(world, *arguments, *JSON)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- topics


def test_update_topic_sends_what_was_given() -> None:
    world = World()
    arguments = "-b a:1 -t T -r 3 -w 2 -p 4 -u true -s true -a +message.type=FIFO,-old"
    assert run(world, "updateTopic", *arguments.split()).exit_code == 0
    [(addr, config)] = world.called("create_topic")
    assert addr == "a:1"
    assert config == TopicConfig("T", 3, 2, 4, "SINGLE_TAG", 3, False, {"+message.type": "FIFO", "-old": ""})


def test_update_topic_makes_8_queues_on_masters_only() -> None:
    world = World()
    run(world, "updateTopic", "-c", "DefaultCluster", "-t", "T")
    assert world.called("create_topic") == [(MASTER, TopicConfig("T", 8, 8, 6))]


@pytest.mark.parametrize("attributes", ["a=b", "+a", "-a=b", "+=b", "-", "+a=b,,+c=d"])
def test_bad_attributes(attributes: str) -> None:
    result = run(World(), "updateTopic", "-b", "a:1", "-t", "T", f"--attributes={attributes}")
    assert result.exit_code == 2
    assert "neither +name=value nor -name" in result.stderr


def test_ordered_topic_of_a_cluster() -> None:
    world = World(brokers={"a": {0: "a:1"}, "b": {0: "b:1"}})
    result = run(world, "updateTopic", "-c", "DefaultCluster", "-t", "T", "-o", "true", "-w", "4")
    assert world.called("put_kv") == [(NAMESRV, "ORDER_TOPIC_CONFIG", "T", "a:4;b:4")]
    assert "set cluster orderConf. isOrder=true, orderConf=[a:4;b:4]\n" in result.stdout


def test_ordered_topic_of_one_broker_keeps_the_others_entries() -> None:
    world = World(brokers={"a": {0: "a:1"}, "b": {0: "b:1"}}, kv={("ORDER_TOPIC_CONFIG", "T"): "a:4;b:4"})
    run(world, "updateTopic", "-b", "b:1", "-t", "T", "-o", "true", "-w", "2")
    assert world.called("put_kv") == [(NAMESRV, "ORDER_TOPIC_CONFIG", "T", "a:4;b:2")]


def test_the_order_of_a_topic_needs_a_broker_that_is_known() -> None:
    world = World()
    result = run(world, "updateTopic", "-b", "b:1", "-t", "T", "-o", "true")
    told = "no NameServer knows a broker at b:1, so the order of T is not recorded"
    assert (result.exit_code, told in result.stderr, world.called("put_kv")) == (1, True, [])


def test_delete_topic_at_all_brokers_and_each_nameserver() -> None:
    world = World(topic_configs={"T": TopicConfig("T")})
    run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T", namesrv=OTHER_NAMESRV)
    assert world.called("delete_topic_in_broker") == [(MASTER, "T"), (SLAVE, "T")]
    both = run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T", namesrv=f"{NAMESRV};{OTHER_NAMESRV}")
    assert both.exit_code == 0
    # Other clusters of these NameServers keep the route.
    where = "T", "DefaultCluster"
    assert world.called("delete_topic_in_namesrv")[-2:] == [(NAMESRV, *where), (OTHER_NAMESRV, *where)]


def test_a_name_stands_for_all_nameservers_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(host: str, port: int) -> list[str]:
        if host == "gone.example":
            raise OSError("not known")
        return ["10.0.0.1", "10.0.0.2"]

    monkeypatch.setattr("skylark.remoting.net.sockets.lookup", lookup)
    world = World(topic_configs={"T": TopicConfig("T")})
    run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T", namesrv=f"ns.example:1;gone.example:1;{NAMESRV}")
    assert [call[0] for call in world.called("delete_topic_in_namesrv")] == [
        "10.0.0.1:1", "10.0.0.2:1", "gone.example:1", NAMESRV,
    ]  # fmt: skip


def test_the_route_stays_while_a_broker_has_the_topic() -> None:
    world = World(errors={("delete_topic_in_broker", SLAVE): ConnectFailed(SLAVE, "refused")})
    result = run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{SLAVE} may still have topic T;" in result.stderr
    assert "run this again" in result.stderr
    assert world.called("delete_topic_in_namesrv") == []
    world = World(topic_configs={"T": TopicConfig("T")}, brokers={"broker-a": {1: SLAVE}})
    result = run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the master of broker-a is away" in result.stderr
    assert world.called("delete_topic_in_namesrv") == []


@pytest.mark.parametrize(
    ("command_line", "text"),
    [
        ("deleteTopic -c DefaultCluster -t typo", "there is no topic typo: check its name with mqadmin topicList"),
        (f"deleteSubGroup -b {MASTER} -g typo", "there is no group typo: check its name"),
        ("deleteKvConfig -s n -k typo", "namespace n has no key typo: check both names"),
        ("updateOrderConf -m delete -t typo", "topic typo has no orderConf: check its name"),
    ],
)
def test_deletes_of_names_that_never_were_fail(command_line: str, text: str) -> None:
    result = run(World(), *command_line.split())
    assert (result.exit_code, result.stdout) == (1, "")
    assert text in result.stderr


@pytest.mark.parametrize(
    "world",
    [
        World(routes={"T": route()}),
        World(errors={("topic_config", SLAVE): ConnectFailed(SLAVE, "refused")}),
    ],
    ids=["a NameServer knows it", "a broker cannot say"],
)
def test_a_topic_that_somebody_may_know_is_deleted(world: World) -> None:
    result = run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T")
    assert (result.exit_code, world.called("delete_topic_in_namesrv")) == (0, [(NAMESRV, "T", "DefaultCluster")])


def test_a_topic_of_another_cluster_only_is_not_known() -> None:
    found = route()
    found.broker_datas[0].cluster = "other"
    result = run(World(routes={"T": found}), "deleteTopic", "-c", "DefaultCluster", "-t", "T")
    assert (result.exit_code, "there is no topic T" in result.stderr) == (1, True)


def test_light_queues_have_nothing_that_could_be_looked_for() -> None:
    assert run(World(), "deleteTopic", "-c", "DefaultCluster", "-t", "%LMQ%a").exit_code == 0


def test_update_topic_perm_keeps_the_rest() -> None:
    world = World(topic_configs={"T": TopicConfig("T", 5, 7, 6, order=True, attributes={"message.type": "FIFO"})})
    assert run(world, "updateTopicPerm", "-b", MASTER, "-t", "T", "-p", "4").exit_code == 0
    assert world.called("create_topic") == [(MASTER, TopicConfig("T", 5, 7, 4, order=True))]


def test_update_topic_perm_to_the_same() -> None:
    world = World(topic_configs={"T": TopicConfig("T", perm=4)})
    assert (
        run(world, "updateTopicPerm", "-b", MASTER, "-t", "T", "-p", "4").stdout == "new perm equals to the old one!\n"
    )
    assert world.called("create_topic") == []


def test_topic_list_keeps_topics_that_cannot_be_looked_at() -> None:
    world = World(topics=["gone", "here"], routes={"here": route()}, groups={"here": ["g1", "g2"]})
    rows = run(world, "topicList", "-c").stdout.splitlines()[1:]
    assert [row.split() for row in rows] == [
        ["gone"],
        ["DefaultCluster", "here", "g1"],
        ["DefaultCluster", "here", "g2"],
    ]


# --- brokers


def test_broker_status_of_a_cluster_names_the_broker() -> None:
    world = World(infos={MASTER: {"a": "1"}, SLAVE: {"a": "2"}})
    lines = run(world, "brokerStatus", "-c", "DefaultCluster").stdout.splitlines()
    assert lines == [f"{MASTER:<24} {'a':<32}: 1", f"{SLAVE:<24} {'a':<32}: 2"]


def test_cluster_list_shows_a_broker_that_does_not_answer() -> None:
    world = World(errors={("broker_runtime_info", SLAVE): ConnectFailed(SLAVE, "refused")})
    result = run(world, "clusterList")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 3
    assert f"broker {SLAVE}: cannot connect" in result.stderr
    assert [row["ok"] for row in json.loads(run(world, "clusterList", *JSON).stdout)] == [True, False]


def test_cluster_list_names_two_brokers_of_one_name_and_id() -> None:
    world = World(contested={"broker-a": {0: "other:1"}})
    for options in ((), ("-m",)):
        result = run(world, "clusterList", *options)
        (warning,) = result.stderr.splitlines()
        assert f"broker-a with id 0 is registered from {MASTER} and from other:1: if both run, stop one" in warning
        master, slave = json.loads(run(world, "clusterList", *options, *JSON).stdout)
        assert (master["contestedBy"], slave.get("contestedBy")) == ("other:1", None)


def test_cluster_list_again_and_again_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.errors = {("cluster_info",): ConnectFailed(NAMESRV, "refused")} if len(slept) == 1 else {}
        if len(slept) == 3:
            raise KeyboardInterrupt

    for output, lines in (("table", 6), ("json", 2)):
        slept: list[float] = []
        monkeypatch.setattr("trio.sleep", sleep)
        result = run(world, "clusterList", "-i", "2", "--output", output)
        assert slept == [2, 2, 2]
        assert len(result.stdout.splitlines()) == lines
        assert result.stderr.count("cannot connect") == 1


def test_broker_config_of_one_and_of_a_cluster() -> None:
    world = World(configs={MASTER: {"b": "2", "a": "1"}, SLAVE: {"a": "3"}})
    one = run(world, "getBrokerConfig", "-b", MASTER).stdout.splitlines()
    assert one == [f"============{MASTER}============", f"{'a':<50}=  1", f"{'b':<50}=  2", ""]
    heads = [line for line in run(world, "getBrokerConfig", "-c", "DefaultCluster").stdout.splitlines() if "==" in line]
    assert heads == [
        f"============Master: {MASTER}============",
        f"============My Master: {MASTER}=====Slave: {SLAVE}============",
    ]


def test_update_broker_config_of_slaves_too() -> None:
    world = World()
    run(world, "updateBrokerConfig", "-c", "DefaultCluster", "-k", "k", "-v", " v ")
    run(world, "updateBrokerConfig", "-c", "DefaultCluster", "-k", "k", "-v", "", "-a", "true")
    assert world.called("update_broker_config") == [(MASTER, {"k": "v"}), (MASTER, {"k": ""}), (SLAVE, {"k": ""})]


# --- NameServers


def test_each_nameserver_is_told_and_may_refuse() -> None:
    world = World(errors={("wipe_write_perm", NAMESRV): BrokerError(1, "no", NAMESRV)})
    result = run(world, "wipeWritePerm", "-b", "broker-a", namesrv=f"{NAMESRV};{OTHER_NAMESRV}")
    assert result.exit_code == 1
    assert result.stdout == (
        f"wipe write perm of broker[broker-a] in name server[{OTHER_NAMESRV}] OK, 20\n"
        f"wipe write perm of broker[broker-a] in name server[{NAMESRV}] Failed\n"
    )


def test_each_nameserver_forgets_a_broker() -> None:
    world = World()
    result = run(world, "forgetBroker", "-b", "broker-b", namesrv=f"{NAMESRV};{OTHER_NAMESRV}")
    assert result.stdout == "broker broker-b is forgotten: what was on it only is not read any more.\n"
    assert world.called("forget_broker") == [(NAMESRV, "broker-b"), (OTHER_NAMESRV, "broker-b")]


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        ("topicRoute -t AdminT", 0, "broker broker-b has queues and is away"),
        ("topicStatus -t AdminT", 1, "broker-b has queues and is away (it was stopped): its queues are not"),
        ("topicStatus -t AdminT -c DefaultCluster", 0, ""),
        ("consumerProgress -g G", 1, "its queues are not shown"),
        ("consumerProgress", 0, "broker broker-b is away"),
        ("clusterList", 0, "mqadmin forgetBroker -b broker-b"),
        ("statsAll -t AdminT", 0, "is not counted: broker-b"),
        ("queryMsgByKey -t AdminT -k K1", 1, "its queues are not shown"),
        ("queryMsgByUniqueKey -t AdminT -i nobody", 1, "its queues are not shown"),
        ("printMsg -t AdminT", 1, "its queues are not shown"),
        ("consumeMessage -t AdminT", 1, "its queues are not shown"),
        ("consumeMessage -t AdminT -b broker-a", 0, ""),
    ],
)
def test_tables_that_lack_queues_say_so(command: str, exit_code: int, said: str) -> None:
    half = route()
    half.absent_brokers = [AbsentBroker("broker-b", "DefaultCluster", STOPPED, has_topic=True)]
    world = World(
        topics=["AdminT"],
        routes={"AdminT": half},
        topic_stats={"AdminT": TopicStatsTable()},
        messages=[message(keys="K1")],
        group_configs={"G": SubscriptionGroupConfig("G")},
        consume_stats={"G": ConsumeStats({MessageQueue("AdminT", "broker-a", 3): ConsumeOffset(9, 8, 8, 1)})},
        absent=half.absent_brokers,
    )
    result = run(world, *command.split())
    assert (result.exit_code, result.stderr.count("broker-b") > 0) == (exit_code, bool(said)), result.stderr
    assert said in result.stderr


def test_nameservers_config() -> None:
    world = World(configs={NAMESRV: {"listenPort": "9876"}})
    assert run(world, "getNamesrvConfig").stdout.splitlines() == [
        f"============{NAMESRV}============",
        f"{'listenPort':<50}=  9876",
    ]
    result = run(world, "updateNamesrvConfig", "-k", "k", "-v", "v")
    assert result.stdout == f"update name server config success![{NAMESRV}]\nk : v\n"
    assert world.called("update_namesrv_config") == [(NAMESRV, {"k": "v"}, None)]


def test_delete_kv_config() -> None:
    world = World(kv={("n", "k"): "v"})
    assert run(world, "deleteKvConfig", "-s", "n", "-k", "k").stdout == "delete kv config from namespace success.\n"
    assert world.called("delete_kv") == [(NAMESRV, "n", "k")]


# --- groups and connections


def test_update_sub_group_sends_what_was_given() -> None:
    world = World()
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5,"max":7,"multiplier":2}}'
    switches = {"-s": "false", "-m": "true", "-d": "true", "-o": "true", "-a": "false"}
    switches |= {"-q": "2", "-r": "3", "-i": "1", "-w": "0"}
    options = [word for pair in switches.items() for word in pair]
    result = run(world, "updateSubGroup", "-b", MASTER, "-g", "G", *options, "-p", policy, "--attributes", "+a=b")
    assert result.exit_code == 0
    [(addr, config)] = world.called("create_group")
    assert addr == MASTER
    assert (config.group_name, config.consume_enable, config.consume_from_min_enable) == ("G", False, True)
    assert (config.consume_broadcast_enable, config.consume_message_orderly) == (True, True)
    assert (config.retry_queue_nums, config.retry_max_times) == (2, 3)
    assert (config.broker_id, config.which_broker_when_consume_slowly) == (1, 0)
    assert config.notify_consumer_ids_changed_enable is False
    assert config.attributes == {"+a": "b"}
    assert config.group_retry_policy.exponential_retry_policy.initial == 5
    assert "exponentialRetryPolicy=ExponentialRetryPolicy{initial=5, max=7, multiplier=2}" in result.stdout


WRONG_MEMBER = '{"type":"EXPONENTIAL","exponentialRetryPolicy":7}'


@pytest.mark.parametrize("policy", ["{", "[]", '{"type":"NONE"}', "{}", WRONG_MEMBER])
def test_bad_retry_policies(policy: str) -> None:
    assert run(World(), "updateSubGroup", "-b", MASTER, "-g", "G", "-p", policy).exit_code == 2


def test_delete_sub_group_with_offsets() -> None:
    world = World(group_configs={"G": SubscriptionGroupConfig("G")})
    result = run(world, "deleteSubGroup", "-b", MASTER, "-g", "G", "-r", "true")
    assert world.called("delete_group") == [(MASTER, "G", True)]
    assert result.stdout == f"delete subscription group [G] from broker [{MASTER}] success.\n"


def consumer(kind: str = "CONSUME_PASSIVELY", **members: Any) -> ConsumerConnection:
    connections = [
        Connection("10.0.0.2@b", "10.0.0.2:5", "JAVA", 479),
        Connection("10.0.0.1@a", "10.0.0.1:4", "CPP", 63),
    ]
    table = {"T": SubscriptionData("T", "TagA || TagB", tags_set=["TagA", "TagB"])}
    return ConsumerConnection(connections, table, kind, **members)


def test_progress_of_a_group() -> None:
    stats = ConsumeStats(
        {
            MessageQueue("T", "broker-a", 1): ConsumeOffset(9, 7, 8, 1795229975854),
            MessageQueue("T", "broker-a", 0): ConsumeOffset(5, 5, 5, 0),
        },
        1.5,
    )
    world = World(consume_stats={"G": stats})
    head, *lines = run(world, "consumerProgress", "-g", "G").stdout.splitlines()
    assert head.split("#")[1:] == [
        "Topic".ljust(65), "Broker Name".ljust(33), "QID  ", "Broker Offset".ljust(21), "Consumer Offset".ljust(21),
        "Diff".ljust(20), "Inflight".ljust(19), "LastTime",
    ]  # fmt: skip
    assert [line.split()[:7] for line in lines[:2]] == [
        ["T", "broker-a", "0", "5", "5", "0", "0"],
        ["T", "broker-a", "1", "9", "7", "2", "1"],
    ]
    assert lines[0].endswith(" N/A")
    assert lines[2:] == ["", "Consume TPS: 1.50", "Consume Diff Total: 2", "Consume Inflight Total: 1"]


@pytest.mark.parametrize("stats", [{}, {MessageQueue("T", "broker-a", 0): ConsumeOffset(9, 0, 0, 0)}])
def test_progress_of_an_unknown_group_is_an_error(stats: dict[MessageQueue, ConsumeOffset]) -> None:
    world = World(consume_stats={"G": ConsumeStats(stats)}, group_configs={"idle": SubscriptionGroupConfig("idle")})
    for arguments in ([], ["-t", "T"]):
        unknown = run(world, "consumerProgress", "-g", "G", *arguments)
        assert (unknown.exit_code, unknown.stdout) == (1, "")
        assert "no broker knows group G; check its name" in unknown.stderr
    idle = run(world, "consumerProgress", "-g", "idle")
    assert (idle.exit_code, "Consume Diff Total: 0" in idle.stdout) == (0, True)


def test_a_cluster_is_asked_instead_of_the_route() -> None:
    world = World(
        topic_stats={"T": TopicStatsTable()},
        consume_stats={"G": ConsumeStats({MessageQueue("T", "broker-a", 0): ConsumeOffset(9, 7, 8, 0)})},
    )
    assert run(world, "topicStatus", "-t", "T", "-c", "C").exit_code == 0
    assert run(world, "consumerProgress", "-g", "G", "-t", "T", "-c", "C").exit_code == 0
    assert world.called("topic_stats") == [("T", "C")]
    assert world.called("consume_stats") == [("G", "T", "C")]


def test_consumers_connected_to_one_broker_need_no_nameserver() -> None:
    world = World(consumers={"G": consumer()})
    assert run(world, "consumerConnection", "-g", "G", "-b", MASTER, namesrv=None).exit_code == 0
    assert world.called("consumer_connection") == [("G", MASTER)]


def test_the_route_as_a_list() -> None:
    data = TopicRouteData(
        [QueueData("broker-b", 4, 8, 6, 0), QueueData("broker-a", 2, 3, 4, 0)],
        [BrokerData("C", "broker-b", {0: "b:1"}), BrokerData("C", "broker-a", {1: "a:2", 0: "a:1"})],
    )
    form = "%-45s %-32s %-50s %-10s %-11s %-5s"
    result = run(World(routes={"T": data}), "topicRoute", "-t", "T", "-l")
    assert result.stdout.splitlines() == [
        form % ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"),
        form % ("C", "broker-a", "{0=a:1, 1=a:2}", 2, 3, 4),
        form % ("C", "broker-b", "{0=b:1}", 4, 8, 6),
        "-" * 158,
        form % ("Total:", 2, "", 6, 11, ""),
    ]
    assert document(World(routes={"T": data}), "topicRoute", "-t", "T", "-l") == json.loads(to_json(data.to_wire()))


def test_progress_with_client_ips() -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(2)]
    world = World(
        consume_stats={"G": ConsumeStats({queue: ConsumeOffset(5, 1, 1) for queue in queues})},
        consumers={"G": ConsumerConnection([Connection("10.0.0.1@a")])},
        running={"10.0.0.1@a": ConsumerRunningInfo(mq_table={queues[0]: ProcessQueueInfo()})},
    )
    rows = document(world, "consumerProgress", "-g", "G", "-s", "true")["queues"]
    assert [row["clientIP"] for row in rows] == ["10.0.0.1", None]
    assert "#Client IP" in run(world, "consumerProgress", "-g", "G", "-s", "true").stdout


@pytest.mark.parametrize(
    ("kind", "text"), [("CONSUME_PASSIVELY", "PUSH   CLUSTERING"), ("CONSUME_ACTIVELY", "PULL                 ")]
)
@pytest.mark.parametrize("is_rocketmq", [True, False])
def test_progress_of_all_groups_that_are_online(kind: str, text: str, is_rocketmq: bool) -> None:
    world = World(
        topics=["%RETRY%G"], consume_stats={"G": ConsumeStats(consume_tps=2.7)}, consumers={"G": consumer(kind)},
        is_rocketmq=is_rocketmq,
    )  # fmt: skip
    [_, line] = run(world, "consumerProgress").stdout.splitlines()
    # Each broker is asked once for all of its groups.
    assert world.called("broker_consume_stats") == [(MASTER, False, True, False)] and not world.called("consume_stats")
    assert world.called("consumer_connection") == ([("G", MASTER)] if is_rocketmq else [])
    assert f"2       V3_1_8                   {text}" in line
    assert line.split()[-2:] == ["2", "0"]


def test_a_group_that_no_broker_lists_is_asked_for_and_one_whose_broker_is_away_is_not() -> None:
    world = World(topics=["%RETRY%G", "%RETRY%deleted"], consume_stats={"G": ConsumeStats()}, consumers={})
    lines = run(world, "consumerProgress").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["G", "deleted"] and world.called("consume_stats") == [
        ("deleted", None, None)
    ]
    away = World(topics=["%RETRY%G"], errors={("broker_consume_stats",): RequestTimeout(MASTER, 317, 3000)})
    result = run(away, "consumerProgress")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1) and "groups of broker" in result.stderr
    assert not away.called("consume_stats")


def test_what_is_too_large_for_one_answer_is_asked_for_group_by_group() -> None:
    world = World(topics=["%RETRY%G"], consume_stats={"G": ConsumeStats()}, consumers={"G": consumer()})
    whole, asked = BrokerError(1, "only 5 of 9 entries fit into a frame", MASTER), world.asked

    def refuse_more(method: str, *arguments: Any) -> None:
        asked(method, *arguments)
        if method == "broker_consume_stats" and arguments[-2:] != (False, False):
            raise whole

    world.asked = refuse_more  # type: ignore[method-assign]
    result = run(world, "consumerProgress")
    assert (result.exit_code, result.stderr) == (0, "") and "V3_1_8" in result.stdout
    assert world.called("broker_consume_stats")[-1] == (MASTER, False, False, False)
    assert world.called("consumer_connection") == [("G", MASTER)]


def test_members_of_a_group_at_several_brokers_are_counted_once() -> None:
    world = World(
        brokers={"broker-a": {0: MASTER}, "broker-b": {0: SLAVE}}, topics=["%RETRY%G"],
        consume_stats={"G": ConsumeStats()}, consumers={"G": consumer()},
    )  # fmt: skip
    [_, line] = run(world, "consumerProgress").stdout.splitlines()
    assert line.split()[1] == "2" and len(world.called("broker_consume_stats")) == 2


def test_producer_connection() -> None:
    world = World(producers={"G": ProducerConnection([Connection("10.0.0.1@a", "10.0.0.1:4", "JAVA", 479)])})
    line = run(world, "producerConnection", "-g", "G", "-t", "T").stdout
    assert line == f"0001  {'10.0.0.1@a':<32} {'10.0.0.1:4':<22} {'JAVA':<8} V5_3_3\n"


def test_consumer_connection() -> None:
    world = World(consumers={"G": consumer()})
    assert run(world, "consumerConnection", "-g", "G").stdout.splitlines() == [
        f"{'#ClientId':<36} {'#ClientAddr':<22} {'#Language':<10} #Version",
        f"{'10.0.0.1@a':<36} {'10.0.0.1:4':<22} {'CPP':<10} V3_1_8",
        f"{'10.0.0.2@b':<36} {'10.0.0.2:5':<22} {'JAVA':<10} V5_3_3",
        "",
        "Below is subscription:",
        f"{'#Topic':<20} #SubExpression",
        f"{'T':<20} TagA || TagB",
        "",
        "ConsumeType: CONSUME_PASSIVELY",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_LAST_OFFSET",
    ]
