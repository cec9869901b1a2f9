"""The command line around the commands: names, help, usage errors, exit codes, JSON, completion."""

import json
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from skylark.mqadmin.cli import NOT_YET, mqadmin
from skylark.mqcommon.errors import BrokerError, ConnectFailed, RequestTimeout, RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicStatsTable
from tests.mqadmin.command_names import ROCKETMQ_NAMES
from tests.mqadmin.fake import MASTER, NAMESRV, SLAVE, FakeClients, World, message, route, run

OWN_NAMES = [
    "searchOffset", "setLogLevel", "doctor", "explainAcl", "controllerMembers", "dledgerMembers", "help", "completion",
    "drain", "undrain", "shrinkTopic", "rebalanceTopic", "forgetBroker", "cloneTopics", "routeDiff", "clusterTopology",
    "resendDlq", "exportDlq", "secureCluster", "backup", "scrub",
    "tierStatus", "tierVerify", "tierRestore", "tierPurge", "tierTakeOver",
]  # fmt: skip


def invoke(*arguments: str, **settings: Any) -> Any:
    return CliRunner().invoke(mqadmin, list(arguments), prog_name="mqadmin", **settings)


def test_commands_are_rocketmqs() -> None:
    assert sorted(mqadmin.commands) == sorted([*ROCKETMQ_NAMES, *OWN_NAMES])


@pytest.mark.parametrize("name", sorted(mqadmin.commands))
def test_help_of_each_command(name: str) -> None:
    by_flag, by_command = invoke(name, "--help"), invoke("help", name)
    assert by_flag.exit_code == by_command.exit_code == 0
    assert by_flag.output == by_command.output
    assert by_flag.output.startswith(f"Usage: mqadmin {name}")
    for param in mqadmin.commands[name].params:
        if isinstance(param, click.Option):
            assert all(spelling in by_flag.output for spelling in param.opts)


@pytest.mark.parametrize("name", [*ROCKETMQ_NAMES, "searchOffset"])
def test_every_command_has_the_common_options(name: str) -> None:
    options = {spelling for param in mqadmin.commands[name].params for spelling in param.opts}
    assert {"-n", "--namesrvAddr", "--timeout", "--output"} <= options


def test_letters_are_used_once_a_command() -> None:
    for name, command in mqadmin.commands.items():
        letters = [spelling for param in command.params for spelling in param.opts]
        assert len(letters) == len(set(letters)), name


@pytest.mark.parametrize("before", [["-n", NAMESRV], [f"--namesrvAddr={NAMESRV}"], ["--output", "json", "-n", NAMESRV]])
def test_common_options_may_stand_before_the_command(before: list[str]) -> None:
    world = World()
    result = run(world, *before, "deleteTopic", "-t", "t", "-c", "c", namesrv=None)
    assert "No such option" not in result.output
    assert result.output == run(World(), "deleteTopic", "-t", "t", "-c", "c", *before, namesrv=None).output


def test_the_option_behind_the_command_beats_the_one_before() -> None:
    result = invoke("--timeout", "-1", "topicList", "--timeout", "-2")
    assert "-2.0 is not in the range" in result.output


@pytest.mark.parametrize("arguments", [["-n", NAMESRV], ["-n"]])
def test_a_common_option_without_a_command_says_where_it_belongs(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "-n belongs to a command: mqadmin COMMAND -n" in result.output


def test_help_ignores_options_before_it() -> None:
    assert invoke("-n", NAMESRV, "help", "topicList").output == invoke("help", "topicList").output


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.output for name in mqadmin.commands)


def test_mistyped_commands_get_the_nearest() -> None:
    for arguments in (["updatTopic"], ["help", "updatTopic"]):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "No such command 'updatTopic'. Did you mean updateTopic" in result.stderr
    assert "See mqadmin help." in invoke("xyzzy").stderr


@pytest.mark.parametrize("name", ["exportMetrics", "dumpcompactionlog"])
def test_a_command_that_only_rocketmq_has_is_no_typo(name: str) -> None:
    for arguments in ([name], ["help", name], [name, "-n", NAMESRV]):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "is a command of RocketMQ's mqadmin that is not implemented here yet" in result.stderr
        assert "Did you mean" not in result.stderr


def test_what_is_not_there_yet_is_not_there() -> None:
    present = {name.lower() for name in mqadmin.commands}
    assert [name for name in NOT_YET if name.lower() in present] == []
    assert len(set(NOT_YET)) == len(NOT_YET)


def test_command_names_in_any_case() -> None:
    assert run(World(topics=["T"]), "TOPICLIST").stdout == "T\n"


def test_mistyped_options_get_the_nearest() -> None:
    result = run(World(), "topicRoute", "--topicc", "T")
    assert result.exit_code == 2
    assert "--topic" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["topicRoute"],
        ["clusterList", "-i", "0"],
        ["updateTopicPerm", "-p", "99"],
        ["topicRoute", "-t", "T", "--topic", "U"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert run(World(), *arguments).exit_code == 2


@pytest.mark.parametrize(
    "command", ["updateTopic -t T", "brokerStatus", "getBrokerConfig", "updateSubGroup -g G", "deleteSubGroup -g G"]
)
def test_broker_or_cluster(command: str) -> None:
    neither = run(World(), *command.split())
    both = run(World(), *command.split(), "-b", MASTER, "-c", "DefaultCluster")
    assert (neither.exit_code, both.exit_code) == (2, 2)
    assert "give --brokerAddr or --clusterName" in neither.stderr
    assert "only one of --brokerAddr or --clusterName" in both.stderr


def test_the_nameserver_must_be_given() -> None:
    result = run(World(), "topicList", namesrv=None)
    assert result.exit_code == 2
    assert "give -n HOST:PORT or set NAMESRV_ADDR" in result.stderr


def test_the_nameserver_from_the_environment() -> None:
    world = World(topics=["T"])
    result = invoke("topicList", obj=FakeClients(world), env={"NAMESRV_ADDR": "a:1, b:2;"})
    assert (result.exit_code, result.stdout) == (0, "T\n")
    assert [settings.namesrv for settings in world.opened] == ["a:1;b:2"]


@pytest.mark.parametrize("addr", ["localhost", "localhost:x", "localhost:0", "a:70000", "a b:1", ";", "http://a:1"])
def test_bad_addresses(addr: str) -> None:
    result = run(World(), "topicList", namesrv=addr)
    assert result.exit_code == 2
    assert "host:port" in result.stderr


@pytest.mark.parametrize("addr", ["[::1]:9876", "a:1;b:2", "broker-1.example.com:10911"])
def test_good_addresses(addr: str) -> None:
    assert run(World(), "topicList", namesrv=addr).exit_code == 0


def test_timeout_in_seconds() -> None:
    world = World()
    run(world, "topicList", "--timeout", "1.5")
    assert world.opened[0].timeout_ms == 1500


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ConnectFailed(NAMESRV, "connection refused"),
            f"mqadmin: cannot connect to {NAMESRV}: connection refused; check",
        ),
        (RequestTimeout(MASTER, 105, 5000), "--timeout"),
        (
            RouteNotFound("T", "broker b has no master in its route", is_passing=True),
            "no route for topic T: broker b has no master in its route; look at the brokers with mqadmin clusterList",
        ),
        (RouteNotFound("T"), "no NameServer knows topic T; check the topic's name with mqadmin topicList"),
        (
            BrokerError(1, "no\nSee https://example.org for further details.", MASTER),
            f"{MASTER} refused with code 1: no\n",
        ),
    ],
)
def test_failures_say_what_to_do(error: Exception, text: str) -> None:
    result = run(World(errors={("topic_route",): error}), "topicRoute", "-t", "T")  # type: ignore[dict-item]
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert text in result.stderr


def test_failures_as_json() -> None:
    refused = BrokerError(16, "forbidden", MASTER)
    result = run(World(errors={("topic_route",): refused}), "topicRoute", "-t", "T", "--output", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr) == {
        "error": f"{MASTER} refused with code 16: forbidden; no permission: check the permissions of the topic, "
        "the group and the broker, and who you are (--credentials)",
        "code": 16,
        "addr": MASTER,
    }
    lost = ConnectFailed("b:1", "refused")
    world = World(brokers={"a": {0: "a:1"}, "b": {0: "b:1"}}, errors={("broker_runtime_info", "b:1"): lost})
    result = run(world, "brokerStatus", "-c", "DefaultCluster", "--output", "json")
    assert (result.exit_code, len(json.loads(result.stdout))) == (1, 1)
    document = json.loads(result.stderr)
    assert (document["code"], document["addr"]) == (None, "b:1")
    assert document["error"].startswith("broker b:1: cannot connect to b:1")


@pytest.mark.parametrize("arguments", [["topicRoute"], ["topicList", "-x"], ["topiclst"], ["copyAcl"]])
@pytest.mark.parametrize("output", [["--output", "json"], ["--output=json"]])
def test_usage_errors_as_json(arguments: list[str], output: list[str]) -> None:
    result = invoke(*arguments, *output, "-n", NAMESRV)
    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]


def test_warnings_as_json() -> None:
    world = World(
        brokers={"a": {0: "a:1"}}, errors={("delete_topic_in_broker", "a:1"): ConnectFailed("a:1", "refused")}
    )
    result = run(world, "deleteTopic", "-c", "DefaultCluster", "-t", "T", "--output", "json")
    first, second = map(json.loads, result.stderr.splitlines())
    assert "delete topic T: cannot connect" in first["error"]
    assert "run this again" in second["warning"]


def test_a_bug_keeps_its_traceback() -> None:
    result = run(World(), "topicStatus", "-t", "unknown to the fake")
    assert isinstance(result.exception, (KeyError, BaseExceptionGroup))


def test_errors_in_groups_are_found() -> None:
    class Grouping(FakeClients):
        def admin(self, settings: Any) -> Any:
            raise ExceptionGroup("a nursery's", [ValueError(), ExceptionGroup("another's", [RouteNotFound("T")])])

    result = invoke("topicList", "-n", NAMESRV, obj=Grouping(World()))
    assert result.exit_code == 1
    assert "no NameServer knows topic T" in result.stderr


def test_failures_at_some_brokers_let_the_others_have_their_turn() -> None:
    world = World(brokers={"a": {0: "a:1"}, "b": {0: "b:1"}, "c": {0: "c:1"}})
    world.errors["create_topic", "b:1"] = ConnectFailed("b:1", "connection refused")
    arguments = ["updateTopic", "-c", "DefaultCluster", "-t", "T"]
    result = run(world, *arguments)
    assert result.exit_code == 1
    assert "create topic to a:1 success.\ncreate topic to c:1 success.\nTopicConfig [" in result.stdout
    assert result.stderr.count("\n") == 1
    assert "create topic T: cannot connect to b:1" in result.stderr
    document = json.loads(run(world, *arguments, "--output", "json").stdout)
    assert [(one["brokerAddr"], one["ok"]) for one in document["results"]] == [
        ("a:1", True),
        ("b:1", False),
        ("c:1", True),
    ]
    assert "connection refused" in document["results"][1]["error"]


def test_an_unknown_cluster_names_the_known_ones() -> None:
    result = run(World(), "updateTopic", "-c", "Nowhere", "-t", "T")
    assert result.exit_code == 1
    assert "no cluster 'Nowhere' at this NameServer (it knows: DefaultCluster)" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "updateTopic -c DefaultCluster -t AdminT",
        "deleteTopic -c DefaultCluster -t AdminT",
        "updateTopicPerm -c DefaultCluster -t AdminT -p 4",
        "topicList",
        "topicList -c",
        "topicRoute -t AdminT",
        "topicStatus -t AdminT",
        "topicClusterList -t AdminT",
        "clusterList",
        "clusterList -m",
        "brokerStatus -c DefaultCluster",
        f"getBrokerConfig -b {MASTER}",
        f"updateBrokerConfig -b {MASTER} -k k -v v",
        "updateSubGroup -c DefaultCluster -g G",
        "deleteSubGroup -c DefaultCluster -g G",
        "consumerProgress",
        "consumerProgress -g G -l",
        "consumerStatus -g G",
        "consumerStatus -g G -i c1",
        "resetOffsetByTime -g G -t AdminT -s -1",
        "resetOffsetByTime -g G -t AdminT -b a:1 -q 3 -o 7",
        "resetOffsetByTimeOld -g G -t AdminT -s 0",
        "skipAccumulatedMessage -g G -t AdminT",
        "cloneGroupOffset -s G -d H -t AdminT",
        "getConsumerConfig -g G",
        "getConsumerStatus -g G -t AdminT",
        f"brokerConsumeStats -b {MASTER}",
        f"producer -b {MASTER}",
        "sendMessage -t AdminT -p x",
        "consumeMessage -t AdminT",
        "queryMsgById -i 7F000001000078BF0000000000001016",
        "queryMsgByKey -t AdminT -k adminkey",
        "queryMsgByUniqueKey -t AdminT -i FD00000000000000000000000000000249904E0E2F2A67A392290000",
        "queryMsgByOffset -t AdminT -b broker-a -i 3 -o 0",
        "wipeWritePerm -b broker-a",
        "addWritePerm -b broker-a",
        "getNamesrvConfig",
        "updateNamesrvConfig -k k -v v",
        "updateKvConfig -s n -k k -v v",
        "deleteKvConfig -s n -k k",
    ],
)
def test_json_is_one_document_with_rocketmqs_names(command: str) -> None:
    world = World(
        topics=["AdminT"],
        routes={"AdminT": route()},
        topic_configs={"AdminT": TopicConfig("AdminT", 8, 8)},
        topic_stats={"AdminT": TopicStatsTable()},
        configs={MASTER: {"a": "b"}, SLAVE: {}, NAMESRV: {"c": "d"}},
        messages=[message()],
        group_configs={"G": SubscriptionGroupConfig("G")},
        kv={("n", "k"): "v"},
        consumers={"G": ConsumerConnection([Connection("c1", "1.1.1.1:1", "JAVA", 479)])},
        running={"c1": ConsumerRunningInfo(mq_table={MessageQueue("AdminT", "broker-a", 3): ProcessQueueInfo()})},
        offsets={MessageQueue("AdminT", "broker-a", 3): 7},
        consume_stats={"G": ConsumeStats({MessageQueue("AdminT", "broker-a", 3): ConsumeOffset(9, 8, 8, 1)})},
    )
    result = run(world, *command.split(), "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert all("_" not in key for key in keys_of(json.loads(result.stdout)))


def keys_of(document: Any) -> set[str]:
    """Every member name, except names of a message's own properties."""
    if isinstance(document, list):
        return set().union(*(keys_of(item) for item in document))
    if isinstance(document, dict):
        return set(document).union(*(keys_of(item) for key, item in document.items() if key != "properties"))
    return set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_MQADMIN_COMPLETE" in result.stdout


def test_completing_a_command_and_an_option() -> None:
    def complete(*words: str) -> list[str]:
        environment = {
            "_MQADMIN_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["mqadmin", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return [line.split(",")[1] for line in invoke(env=environment).output.splitlines()]

    assert complete("topicR") == ["topicRoute"]
    assert complete("topicRoute", "--to") == ["--topic"]
    assert complete("topicRoute", "--output", "j") == ["json"]


def test_help_loads_neither_the_event_loop_nor_the_codecs() -> None:
    code = (
        "import sys; from skylark.mqadmin.cli import mqadmin\n"
        "mqadmin(['--help'], standalone_mode=False)\n"
        "print(sorted({'trio', 'orjson', 'cbor2', 'skylark.remoting', 'skylark.sdk.client'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
