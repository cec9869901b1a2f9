"""Commands that set or show the offsets of groups, and what consumers and producers are doing."""

import json
from pathlib import Path

import pytest

from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.commands.groups import lag_text
from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStatus,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    ProducerConnection,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.groups import (
    ConsumeOffset,
    ConsumeStats,
    QueueTimeSpan,
    SubscriptionGroupConfig,
)
from skylark.sdk.admin.reports.members import disagreements
from tests.mqadmin.fake import MASTER, World, route, run
from tests.mqadmin.test_golden import golden, printed

pytestmark = pytest.mark.usefixtures("utc")
QUEUES = [MessageQueue("AdminT", "broker-a", number) for number in range(4)]


def world_with_offsets() -> World:
    return World(offsets=dict(zip(QUEUES, (0, 0, 0, 1), strict=True)))


# --- setting offsets


def test_reset_prints_what_rocketmq_prints() -> None:
    world = world_with_offsets()
    command_line = "resetOffsetByTime -g admin_group -t AdminT -s -1"
    assert printed(world, *command_line.split()) == golden(command_line)
    assert world.called("reset_offsets") == [("admin_group", "AdminT", -1, True, None)]


def test_reset_to_a_time_without_force() -> None:
    world = world_with_offsets()
    first, *_ = printed(
        world, *["resetOffsetByTime", "-g", "G", "-t", "AdminT", "-s", "2026-11-21#08:00:00:000", "-f", "false"]
    )
    assert world.called("reset_offsets") == [("G", "AdminT", 1795248000000, False, None)]
    assert first.endswith("force[false], timestamp(string)[2026-11-21 08:00:00,000], timestamp(long)[1795248000000]")


def test_reset_of_one_queue() -> None:
    world = world_with_offsets()
    lines = printed(world, *["resetOffsetByTime", "-g", "G", "-t", "AdminT", "-b", "a:1", "-q", "3", "-o", "1"])
    assert lines[1] == "reset consumer offset to 1"
    assert json.loads(
        run(
            world,
            *["resetOffsetByTime", "-g", "G", "-t", "AdminT", "-b", "a:1", "-q", "3", "-s", "0", "--output", "json"],
        ).stdout
    ) == [{"topic": "AdminT", "brokerName": "broker-a", "queueId": 3, "offset": 1}]
    assert world.called("reset_queue") == [
        ("a:1", "G", "AdminT", 3, -1, 1, True),
        ("a:1", "G", "AdminT", 3, 0, None, True),
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-s yesterday", "'yesterday' is not a time"),
        ("-s -2", "'-2' is not a time"),
        ("", "give a time"),
        ("-s 0 -q 1", "belong together"),
        ("-s 0 -b a:1", "belong together"),
        ("-s 0 -o 1", "needs -q/--queue"),
    ],
)
def test_bad_resets(arguments: str, text: str) -> None:
    world = world_with_offsets()
    result = run(world, "resetOffsetByTime", "-g", "G", "-t", "AdminT", *arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert not world.calls


def test_a_refused_reset_is_one_line() -> None:
    world = World(errors={("reset_offsets",): BrokerError(26, "Group G does not exist", MASTER)})
    result = run(world, *["skipAccumulatedMessage", "-g", "G", "-t", "AdminT"])
    assert result.exit_code == 1
    assert "Group G does not exist" in result.stderr and result.stderr.count("\n") == 1


def test_skip_and_roll_back() -> None:
    world = world_with_offsets()
    head, *rows = printed(world, *["skipAccumulatedMessage", "-g", "G", "-t", "AdminT"])
    assert head.split() == ["#brokerName", "#queueId", "#offset"]
    assert len(rows) == 4
    assert world.called("reset_offsets") == [("G", "AdminT", -1, True, None)]
    world.routes["AdminT"], world.group_configs["G"] = route(), SubscriptionGroupConfig("G")
    _, head, *rows = printed(world, *["resetOffsetByTimeOld", "-g", "G", "-t", "AdminT", "-s", "5"])
    assert head.split()[-1] == "#rollbackOffset"
    assert rows[3].split() == ["broker-a", "3", "9", "8", "1", "1"]
    assert world.called("roll_back_offsets") == [("G", "AdminT", 5, True)]


def test_clone() -> None:
    world = World()
    [line] = printed(world, *["cloneGroupOffset", "-s", "G", "-d", "H", "-t", "T", "-o"])
    assert line == "clone group offset success. srcGroup[G], destGroup=[H], topic[T]"
    assert world.called("clone_group_offsets") == [("G", "H", "T", True)]
    assert run(world, *["cloneGroupOffset", "-s", "G", "-d", "G", "-t", "T"]).exit_code == 2


# --- what consumers say


def test_offsets_of_consumers() -> None:
    world = world_with_offsets()
    world.running["c1"] = ConsumerRunningInfo()
    _, head, *rows = printed(world, *["getConsumerStatus", "-g", "G", "-t", "AdminT"])
    assert head.split() == ["#clientId", "#brokerName", "#queueId", "#offset"]
    assert rows[3].split() == ["c1", "broker-a", "3", "1"]
    nobody = run(World(), *["getConsumerStatus", "-g", "G", "-t", "AdminT"])
    assert nobody.exit_code == 1 and "no consumer of group G answered" in nobody.stderr


def consumers(**running: ConsumerRunningInfo) -> World:
    found = ConsumerConnection([Connection(name, "1.1.1.1:1", "JAVA", 479) for name in running])
    return World(consumers={"G": found}, running=running)


def info(*queues: MessageQueue, topic: str = "AdminT", expression: str = "*") -> ConsumerRunningInfo:
    return ConsumerRunningInfo(
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        [SubscriptionData(topic, expression)],
        {mq: ProcessQueueInfo(5, cached_msg_count=2, last_consume_timestamp=2**62) for mq in queues},
        {QUEUES[3]: PopProcessQueueInfo(wait_ack_count=7)},
        status_table={topic: ConsumeStatus(1.5, 20.0, 2.5, 30.0, 0.0, 4)},
        user_consumer_info={"mine": "yes"},
        jstack="stack",
    )


def test_consumers_of_a_sound_group() -> None:
    lines = printed(consumers(c1=info(*QUEUES[:2]), c2=info(*QUEUES[2:])), "consumerStatus", "-g", "G")
    assert lines[0].split() == ["#Index", "#ClientId", "#Version", "#Queues"]
    assert [line.split() for line in lines[1:3]] == [["1", "c1", "V5_3_3", "2"], ["2", "c2", "V5_3_3", "2"]]
    assert lines[-3:] == ["Same subscription in the same group of consumer", "", "Rebalance OK"]


def test_consumer_writes_a_file_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(
        consumers={
            "G": ConsumerConnection([Connection(name, "1.1.1.1:1", "JAVA", 479) for name in ("c1", "../../c2")])
        },
        running={"c1": info(QUEUES[0]), "../../c2": info(QUEUES[1])},
    )
    lines = printed(world, "consumer", "-g", "G")
    (folder,) = tmp_path.iterdir()
    assert folder.name.isdigit() and sorted(path.name for path in folder.iterdir()) == ["_.._c2", "c1"]
    assert [line.split() for line in lines[:2]] == [
        ["001", "../../c2", "V5_3_3", f"{folder.name}/_.._c2"], ["002", "c1", "V5_3_3", f"{folder.name}/c1"],
    ]  # fmt: skip
    assert lines[-3:] == ["Same subscription in the same group of consumer", "", "Rebalance OK"]
    assert (folder / "c1").read_text().splitlines() == printed(world, *["consumer", "-g", "G", "-i", "c1"])
    document = json.loads(run(world, *["consumer", "-g", "G", "--output", "json"]).stdout)
    assert len(document["consumers"]) == 2 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("orderly", "state", "stuck"),
    [
        ("false", ProcessQueueInfo(cached_msg_count=2), "can't consume for a while, maybe blocked, 100000ms"),
        ("false", ProcessQueueInfo(cached_msg_count=2, last_consume_timestamp=50_000), None),
        ("false", ProcessQueueInfo(cached_msg_count=0), None),
        ("true", ProcessQueueInfo(last_lock_timestamp=1_000), "can't lock for a while, 99000ms"),
        ("true", ProcessQueueInfo(locked=True, cached_msg_count=2), None),
        ("true", ProcessQueueInfo(locked=True, droped=True, try_unlock_times=3), "unlock 3 times, still failed"),
    ],
)
def test_a_queue_that_does_not_go_on(orderly: str, state: ProcessQueueInfo, stuck: str | None) -> None:
    properties = {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMEORDERLY": orderly}
    found = list(disagreements({"c1": ConsumerRunningInfo(properties, mq_table={QUEUES[0]: state})}, 100_000))
    queue = "MessageQueue [topic=AdminT, brokerName=broker-a, queueId=0]"
    assert found == ([] if stuck is None else [f"c1 {queue} {stuck}"])


def test_what_is_wrong_in_a_group() -> None:
    two_owners = printed(consumers(c1=info(QUEUES[0]), c2=info(QUEUES[0])), "consumerStatus", "-g", "G")
    assert two_owners[-1] == "Rebalance Failed: queue 0 of AdminT on broker-a has two owners, c1 and c2"
    different = printed(consumers(c1=info(QUEUES[0]), c2=info(expression="A")), "consumerStatus", "-g", "G")
    assert different[-1] == "WARN: Different subscription in the same group of consumer!!!"


def test_all_about_one_consumer() -> None:
    text = "\n".join(printed(consumers(c1=info(QUEUES[0])), *["consumerStatus", "-g", "G", "-i", "c1"]))
    for part in (
        "#Consumer Properties#\nPROP_CONSUME_TYPE                       : CONSUME_PASSIVELY",
        "#Consumer Subscription#\n001 Topic: AdminT",
        "#Consumer Offset#\n#Topic ",
        "commitOffset=5",
        "#Consumer Pop Detail#\n#Topic ",
        "waitAckCount=7",
        "#Consumer RT&TPS#",
        "#User Consume Info#\nmine ",
        "#Consumer jstack#\nstack",
    ):
        assert part in text


def test_a_consumer_that_does_not_answer_is_named() -> None:
    world = consumers(c1=info(QUEUES[0]), c2=info(QUEUES[1]))
    world.errors["consumer_running_info", "G"] = BrokerError(207, "Timeout", MASTER)
    result = run(world, "consumerStatus", "-g", "G")
    assert result.exit_code == 1 and "consumer c1" in result.stderr and "consumer c2" in result.stderr


def test_producers() -> None:
    found = ProducerConnection([Connection("p1", "1.1.1.1:1", "JAVA", 479)])
    [line] = printed(World(producers={"P": found}), "producer", "-b", MASTER)
    assert line == (
        "producer group (P) instance : clientId=p1,remoteIP=1.1.1.1:1, language=JAVA, version=479,"
        " lastUpdateTimestamp=5"
    )
    assert printed(World(), "producer", "-b", MASTER) == ["no producer is connected"]


# --- progress and settings


def test_the_settings_of_a_group() -> None:
    world = World(group_configs={"G": SubscriptionGroupConfig("G", retry_max_times=3)})
    lines = printed(world, "getConsumerConfig", "-g", "G")
    assert lines[0] == "=============================DefaultCluster:broker-a============================="
    assert "retryMaxTimes                           =  3" in lines
    unknown = run(world, "getConsumerConfig", "-g", "unknown")
    assert unknown.exit_code == 1 and "no broker knows group unknown" in unknown.stderr


def stats_of_golden() -> World:
    """The groups of the recorded cluster, by the lines that RocketMQ printed."""
    stats: dict[str, ConsumeStats] = {}
    for line in golden(f"brokerConsumeStats -b {MASTER}")[1:-2]:
        topic, group, broker, queue_id, end, consumed, *_ = line.split()
        table = stats.setdefault(group, ConsumeStats()).offset_table
        table[MessageQueue(topic, broker, int(queue_id))] = ConsumeOffset(int(end), int(consumed), 0, 1795229954000)
    return World(consume_stats=stats)


def test_the_progress_of_all_groups_of_a_broker() -> None:
    expected = golden(f"brokerConsumeStats -b {MASTER}")
    world = stats_of_golden()
    lines = printed(world, "brokerConsumeStats", "-b", MASTER)
    assert [line[:195] for line in lines] == [line[:195] for line in expected]
    assert len(printed(world, "brokerConsumeStats", "-b", MASTER, "-l", "1")) == 3 + 2
    printed(world, "brokerConsumeStats", "-b", MASTER, "-o", "true", "-t", "700")
    assert world.called("broker_consume_stats")[-1][:2] == (MASTER, True)
    assert world.opened[-1].timeout_ms == 700


def test_lag_in_time() -> None:
    row = ConsumeOffset(9, 8, 8, 1795229954000)
    world = World(
        consume_stats={"G": ConsumeStats({QUEUES[0]: row, QUEUES[1]: row})},
        spans=[QueueTimeSpan(QUEUES[0], delay_time=62_000)],
    )
    head, first, second, *_ = printed(world, "consumerProgress", "-g", "G", "-l")
    assert head.split()[-1] == "#Lag" and first.split()[-1] == "1m02s" and second.split()[-1] == "N/A"
    assert head.index("#Lag") == first.index("1m02s")
    assert "#Lag" not in printed(world, "consumerProgress", "-g", "G")[0]
    assert run(world, "consumerProgress", "-l").exit_code == 2


@pytest.mark.parametrize(
    ("lag_ms", "text"),
    [
        (None, "N/A"), (0, "0ms"), (999, "999ms"), (1_000, "1.0s"), (59_949, "59.9s"), (60_000, "1m00s"),
        (3_599_999, "59m59s"), (3_600_000, "1h00m"), (86_399_999, "23h59m"), (273_600_000, "3d04h"),
    ],
)  # fmt: skip
def test_lag_for_people(lag_ms: int | None, text: str) -> None:
    assert lag_text(lag_ms) == text


@pytest.mark.parametrize(("given", "watch"), [([], None), (["--watch"], 2.0), (["--watch", "0.5"], 0.5)])
def test_watch_takes_two_seconds_or_what_is_given(given: list[str], watch: float | None) -> None:
    for name in ("consumerProgress", "clusterList"):
        context = mqadmin.commands[name].make_context(name, [*given, "-n", "127.0.0.1:9876"])
        assert context.params["watch"] == watch


def test_watch_takes_no_zero() -> None:
    assert run(World(), "consumerProgress", "--watch", "0").exit_code == 2
