"""sendMessage -m: the trace of a message, as RocketMQ's clients write it. queryMsgTraceById: the fate of a message."""

import json

from skylark.mqcommon.errors import ConnectFailed
from tests.mqadmin.fake import MASTER, World, message, run

SENT = ("sendMessage", "-t", "T", "-p", "hello", "-c", "TagA", "-k", "k1 k2")
UNIQUE = "FD00000000000000000000000000000249904E0E2F2A67A392290000"


def test_the_trace_of_a_message() -> None:
    world = World()
    assert run(world, *SENT, "-m", "true").exit_code == 0
    (message, _), (trace, _) = world.called("send")
    assert (message.topic, trace.topic) == ("T", "RMQ_SYS_TRACE_TOPIC")
    assert trace.keys == f"{UNIQUE} k1 k2"
    text = trace.body.decode()
    assert text[-1] == "\x02"
    kind, sent_ms, region, group, *rest = text[:-1].split("\x01")
    assert (kind, region, group) == ("Pub", "DefaultRegion", "TOOLS_PRODUCER")
    assert sent_ms.isdigit() and rest.pop(6).isdigit()
    store_host = "127.0.0.1:30911"
    assert rest == ["T", UNIQUE, "TagA", "k1 k2", store_host, "5", "0", "7F000001000078BF0000000000001016", "true"]


def test_no_trace_unless_asked_for() -> None:
    for option in ([], ["-m", "false"]):
        world = World()
        assert run(world, *SENT, *option).exit_code == 0
        assert len(world.called("send")) == 1


def test_the_message_is_sent_though_its_trace_is_not_stored() -> None:
    world = World(errors={("send_to", "RMQ_SYS_TRACE_TOPIC"): ConnectFailed(MASTER, "refused")})
    result = run(world, *SENT, "-m", "true")
    assert (result.exit_code, "SEND_OK" in result.stdout) == (0, True)
    assert result.stderr.startswith(f"mqadmin: the trace of the message is not stored: cannot connect to {MASTER}")


RECORDS = (
    ("SubAfter", "R1", UNIQUE, "7", "true", "null", "0", "1700000001012", "g1"),
    ("SubBefore", "1700000001005", "DefaultRegion", "g1", "R1", UNIQUE, "0", "null"),
    ("SubBefore", "1700000002005", "DefaultRegion", "g2", "R2", UNIQUE, "0", "null"),
    ("Pub", "1700000000000", "DefaultRegion", "p", "T", UNIQUE, "TagA", "k1", "127.0.0.1:30911", "5", "12", "0",
     "7F000001000078BF0000000000001016", "true"),
    ("Pub", "1700000000000", "DefaultRegion", "p", "T", "another", "TagA", "k1", "127.0.0.1:30911", "5", "12", "0",
     "7F000001000078BF0000000000001016", "true"),
)  # fmt: skip


def traced() -> World:
    body = "".join("\x01".join(fields) + "\x02" for fields in RECORDS).encode()
    return World(messages=[message(keys=UNIQUE, body=body)])


def test_the_way_of_a_message() -> None:
    world = traced()
    lines = run(world, "queryMsgTraceById", "-i", UNIQUE).stdout.splitlines()
    assert world.called("query_message_by_key")[0][:3] == ("RMQ_SYS_TRACE_TOPIC", UNIQUE, 64)
    # Dates are local times.
    rows = [[word for word in line.split() if not word[:2].isdigit() or word.endswith("ms")] for line in lines]
    assert rows == [
        ["#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status"],
        ["Pub", "p", "12ms", "success"],
        [],
        ["#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status"],
        ["Sub", "g1", "7ms", "success"],
        [],
        ["#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status"],
        ["Sub", "g2", "-", "consuming"],
        [],
    ]
    assert lines[1].split()[2] == "127.0.0.1"


def test_the_way_of_a_message_as_json() -> None:
    rows = json.loads(run(traced(), "queryMsgTraceById", "-i", UNIQUE, "--output", "json").stdout)
    assert [(row["type"], row["group"], row["timestamp"], row["costTime"], row["status"]) for row in rows] == [
        ("Pub", "p", 1_700_000_000_000, 12, "success"),
        ("Sub", "g1", 1_700_000_001_005, 7, "success"),
        ("Sub", "g2", 1_700_000_002_005, None, "consuming"),
    ]
    assert (rows[0]["topic"], rows[0]["bodyLength"], rows[0]["msgType"]) == ("T", 5, "Normal_Msg")
    assert rows[1]["contextCode"] == "SUCCESS"


def test_no_trace_of_a_message() -> None:
    result = run(World(), "queryMsgTraceById", "-i", UNIQUE, "-t", "mine", "-num", "3")
    assert result.exit_code == 1
    assert f"topic mine has no trace of {UNIQUE}" in result.stderr
