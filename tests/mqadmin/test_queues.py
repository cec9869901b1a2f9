"""queryCq and searchOffset."""

import json

import pytest

from skylark.mqcommon.errors import ConnectFailed
from skylark.remoting.protocol.requests.clients import parse_subscription
from skylark.remoting.protocol.requests.query import ConsumeQueueData, ConsumeQueueEntries
from skylark.remoting.protocol.requests.routes import BrokerData, QueueData, TopicRouteData
from tests.mqadmin.fake import MASTER, MAX_ENTRIES, World, message, route, run

JSON = ("--output", "json")
OTHER = "127.0.0.1:30931"
LINE = "=" * 38


pytestmark = pytest.mark.usefixtures("utc")


def entries(count: int) -> ConsumeQueueEntries:
    rows = [ConsumeQueueData(100 * n, 100, n) for n in range(count)]
    return ConsumeQueueEntries(queue_data=rows, max_queue_index=count, min_queue_index=0)


# --- queryCq


def test_entries_as_rocketmq_prints_them() -> None:
    world = World(entries={MASTER: entries(2)})
    result = run(world, "queryCq", "-t", "T", "-q", "0", "-i", "0", "-b", MASTER, namesrv=None)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "Queue data: ",
        "max: 2, min: 0",
        LINE,
        "idx: 0",
        "ConsumeQueueData{physicOffset=0, physicSize=100, tagsCode=0, extendDataJson='null', bitMap='null', "
        "eval=false, msg='null'}",
        LINE,
        "idx: 1",
        "ConsumeQueueData{physicOffset=100, physicSize=100, tagsCode=1, extendDataJson='null', bitMap='null', "
        "eval=false, msg='null'}",
        LINE,
    ]


def test_a_groups_subscription_comes_first() -> None:
    stored = entries(1)
    stored.subscription_data, stored.filter_data = parse_subscription("T", "TagA"), "\x1b[2J"
    stored.queue_data[0].eval = True
    world = World(entries={MASTER: stored})
    lines = run(world, "queryCq", "-t", "T", "-q", "0", "-i", "0", "-b", MASTER, "-g", "G").stdout.splitlines()
    assert lines[:2] == ["Subscription data: ", "{"]
    assert '\t"subString":"TagA",' in lines
    assert lines[lines.index("Filter data: ") + 1] == "\\x1b[2J"
    assert "eval=true" in lines[-2]
    assert world.called("query_consume_queue") == [(MASTER, "T", 0, 0, 10, "G")]


def test_more_than_one_answer_holds() -> None:
    world = World(entries={MASTER: entries(3 * MAX_ENTRIES)})
    result = run(world, "queryCq", "-t", "T", "-q", "1", "-i", "2", "-c", "8", "-b", MASTER, *JSON)
    document = json.loads(result.stdout)
    assert [row["tagsCode"] for row in document["queueData"]] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [call[3:5] for call in world.called("query_consume_queue")] == [(2, 8), (7, 3)]
    whole = run(world, "queryCq", "-t", "T", "-q", "1", "-i", "0", "-c", "1000", "-b", MASTER, *JSON)
    assert len(json.loads(whole.stdout)["queueData"]) == 3 * MAX_ENTRIES


def test_an_index_that_is_not_there() -> None:
    world = World(entries={MASTER: entries(2), OTHER: entries(0)})
    result = run(world, "queryCq", "-t", "T", "-q", "0", "-i", "9", "-b", MASTER)
    assert result.exit_code == 1
    assert result.stderr == f"mqadmin: index 9 is not in queue 0 of T at {MASTER}; it has 0 to 1\n"
    assert result.stdout.splitlines()[1] == "max: 2, min: 0"
    assert "has no message" in run(world, "queryCq", "-t", "T", "-q", "0", "-i", "0", "-b", OTHER).stderr


def test_without_a_broker_the_route_names_one() -> None:
    two = TopicRouteData(
        [QueueData("broker-a", 1, 1, 6, 0), QueueData("broker-b", 4, 4, 6, 0)],
        [BrokerData("c", "broker-a", {0: MASTER}), BrokerData("c", "broker-b", {0: OTHER})],
    )
    world = World(entries={MASTER: entries(1), OTHER: entries(1)}, routes={"T": two})
    first = run(world, "queryCq", "-t", "T", "-q", "0", "-i", "0")
    assert first.exit_code == 0
    assert (
        first.stderr
        == "mqadmin: asking broker-a; for another broker that has the queue (broker-b) name the broker (mqadmin: -b)\n"
    )
    assert run(world, "queryCq", "-t", "T", "-q", "3", "-i", "0").stderr == ""
    assert [call[0] for call in world.called("query_consume_queue")] == [MASTER, OTHER]
    assert "no broker of topic T has queue 9" in run(world, "queryCq", "-t", "T", "-q", "9", "-i", "0").stderr


@pytest.mark.parametrize(
    "arguments",
    ["-q -1 -i 0", "-q 0", "-q 0 -i x", "-q 0 -i 0 -c 0", "-q 0 -i 0 -c 2147483648", "-q 0 -i 0 -b 127.0.0.1"],
)
def test_wrong_usage(arguments: str) -> None:
    assert run(World(), "queryCq", "-t", "T", *arguments.split()).exit_code == 2


# --- searchOffset


def world_of_times() -> World:
    times = [1000, 1000, 3000, 3000, 5000]
    stored = [message(queue_id=0, queue_offset=at, store_timestamp=time_ms) for at, time_ms in enumerate(times)]
    return World(messages=stored, routes={"AdminT": route(2)})


def test_both_sides_of_a_time() -> None:
    lines = run(world_of_times(), "searchOffset", "-t", "AdminT", "-s", "3000").stdout.splitlines()
    heads = "#Broker Name #QID #Min Offset #Max Offset #Lower #Upper #Time Of Lower"
    assert " ".join(lines[0].split()) == heads
    assert lines[1].split() == ["broker-a", "0", "0", "5", "2", "3", "1970-01-01", "00:00:03,000"]
    assert lines[2].split() == ["broker-a", "1", "0", "0", "0", "0"]


def test_one_side() -> None:
    def found(boundary: str) -> dict[str, int]:
        result = run(world_of_times(), "searchOffset", "-t", "AdminT", "-s", "4000", "-b", "broker-a", "-i", "0",
                     "--boundary", boundary, *JSON)  # fmt: skip
        [row] = json.loads(result.stdout)["queues"]
        return {name: row[name] for name in ("lower", "upper", "lowerTimestamp") if name in row}

    assert found("lower") == {"lower": 4, "lowerTimestamp": 5000}
    assert found("UPPER") == {"upper": 3}


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1795229973061", 1795229973061),
        ("2026-11-21#02:59:33:061", 1795229973061),
        ("2026-11-21#02:59:33", 1795229973000),
        ("2026-11-21T02:59:33.061Z", 1795229973061),
        ("2026-11-21T04:59:33+02:00", 1795229973000),
        ("2026-11-21 02:59:33", 1795229973000),
        ("2026-11-21", 1795219200000),
        ("20261121", 1795219200000),
        ("1001", 1001),
        ("0", 0),
        ("1900-01-01", 0),
    ],
)
def test_forms_of_a_time(text: str, time_ms: int) -> None:
    world = world_of_times()
    result = run(world, "searchOffset", "-t", "AdminT", "-s", text, *JSON)
    assert json.loads(result.stdout)["timestamp"] == time_ms


def test_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.mqadmin.params.time.time", lambda: 1795229973.0615)
    result = run(world_of_times(), "searchOffset", "-t", "AdminT", "-s", "now", *JSON)
    assert json.loads(result.stdout)["timestamp"] == 1795229973061


@pytest.mark.parametrize("text", ["yesterday", "", "2026", "1795229973", "20269999", "12:00", "2026-13-01", "٣", "-1"])
def test_what_is_no_time(text: str) -> None:
    result = run(world_of_times(), "searchOffset", "-t", "AdminT", "-s", text)
    assert result.exit_code == 2
    assert "now" in result.stderr and "Traceback" not in result.stderr


def test_a_queue_that_does_not_answer_leaves_the_others() -> None:
    world = world_of_times()
    world.errors["search_offset",] = ConnectFailed(MASTER, "refused")
    result = run(world, "searchOffset", "-t", "AdminT", "-s", "3000")
    assert result.exit_code == 1
    assert "broker-a queue 0: " in result.stderr and "broker-a queue 1: " in result.stderr
