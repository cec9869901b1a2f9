"""startMonitoring."""

import json

from mqcommon.errors import ConnectFailed
from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats
from remoting.protocol.requests.topics import TopicOffset, TopicStatsTable
from tests.sdk.admin.fake import World, run

LINE = "=" * 41


class Rounds(World):
    """Ends with Ctrl-C after some rounds."""

    rounds = 2

    def asked(self, method: str, *arguments: object) -> None:
        super().asked(method, *arguments)
        if method == "topic_list":
            self.rounds -= 1
            if self.rounds < 0:
                raise KeyboardInterrupt


def cluster() -> Rounds:
    world = Rounds(topics=["%RETRY%g", "%RETRY%idle", "%DLQ%g", "%DLQ%idle", "T"])
    queues = [MessageQueue("T", "broker-a", number) for number in range(3)]
    world.consume_stats["g"] = ConsumeStats(
        {
            queues[0]: ConsumeOffset(10, 8, 8, 1_000),
            queues[1]: ConsumeOffset(10, 5, 5, 3_000),
            queues[2]: ConsumeOffset(0, 0),
            MessageQueue("%RETRY%g", "broker-a", 0): ConsumeOffset(1, 1, 1, 5_000),
        }
    )
    world.topic_stats["T"] = TopicStatsTable({queue: TopicOffset(0, 10, 6_000) for queue in queues})
    world.topic_stats["%DLQ%g"] = TopicStatsTable({MessageQueue("%DLQ%g", "broker-a", 0): TopicOffset(2, 5)})
    world.topic_stats["%DLQ%idle"] = TopicStatsTable()
    return world


def test_round_after_round_until_ctrl_c() -> None:
    result = run(cluster(), "startMonitoring", "-i", "0.001")
    assert (result.exit_code, result.stderr) == (0, "")
    one = [
        f"[MONITOR] {LINE}beginRound",
        "[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup=g, topic=%RETRY%g, undoneMsgsTotal=0,"
        " undoneMsgsSingleMQ=0, undoneMsgsDelayTimeMills=0]",
        "[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup=g, topic=T, undoneMsgsTotal=7,"
        " undoneMsgsSingleMQ=5, undoneMsgsDelayTimeMills=5000]",
        "[MONITOR] reportFailedMsgs: FailedMsgs [consumerGroup=g, topic=%DLQ%g, failedMsgsTotalRecently=3]",
        f"[MONITOR] {LINE}endRound",
    ]
    assert result.stdout.splitlines() == one * 2


def test_each_round_is_a_line_of_json() -> None:
    lines = run(cluster(), "startMonitoring", "-i", "0.001", "--output", "json").stdout.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["dead"] == [{"consumerGroup": "g", "topic": "%DLQ%g", "total": 3}]
    assert [row["total"] for row in json.loads(lines[0])["undone"]] == [0, 7]


def test_it_goes_on_when_a_server_is_away() -> None:
    world = cluster()
    world.errors["consume_stats", "idle"] = ConnectFailed("10.0.0.1:10911", "refused")
    result = run(world, "startMonitoring", "-i", "0.001")
    assert result.exit_code == 1
    assert result.stderr.count("10.0.0.1:10911") == 2
    assert result.stdout.count("undoneMsgsTotal=7") == 2
