import json
import logging
import os
import re
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import BrokerError, ConnectFailed, RouteNotFound, UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.position import OffsetSpan, Position
from skylark.sdk.routes import TopicQueues
from skylark.spark_connector.offsets import DataLost, OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.parallelism import VARIABLE
from skylark.spark_connector.reading import pulling
from skylark.spark_connector.reading.planning import (
    SAMPLE_QUEUES,
    NextMessages,
    check_partition_numbers,
    chosen,
    matching,
    next_messages,
    plan,
    sampled,
    tasks_of,
    with_topics,
)
from skylark.spark_connector.reading.pulling import SlaveBehind
from skylark.spark_connector.schema import MAX_QUEUES, partition_number
from tests.spark_connector.cluster import MemoryCluster, Pulled

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"topic": "t", **given})


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.add(A0, 10)
    cluster.add(A1, 0)
    cluster.add(B0, 20, minimum=100)
    return cluster


def test_all_messages_of_all_queues_by_default(cluster: MemoryCluster) -> None:
    assert sorted(plan(cluster, options())) == [OffsetRange(A0, 0, 10), OffsetRange(B0, 100, 120)]


def test_latest_to_latest_is_nothing(cluster: MemoryCluster) -> None:
    assert plan(cluster, options(startingOffsets="latest")) == []


def test_offsets_queue_by_queue(cluster: MemoryCluster) -> None:
    starts = json.dumps({"t": {"a": {"0": 4, "1": -2}, "b": {"0": 110}}})
    ends = json.dumps({"t": {"a": {"0": -1, "1": -1}, "b": {"0": 115}}})
    found = plan(cluster, options(startingOffsets=starts, endingOffsets=ends))
    assert sorted(found) == [OffsetRange(A0, 4, 10), OffsetRange(B0, 110, 115)]


def test_a_timestamp_beats_starting_offsets(cluster: MemoryCluster) -> None:
    # the cluster stores message n at n seconds
    found = plan(cluster, options(startingTimestamp="7500", startingOffsets="latest"))
    assert sorted(found) == [OffsetRange(A0, 8, 10), OffsetRange(B0, 100, 120)]
    assert plan(cluster, options(startingTimestamp="999000")) == []


def test_the_offsets_of_a_group(cluster: MemoryCluster) -> None:
    cluster.committed = {A0: 4, B0: 118}
    found = plan(cluster, options(startingOffsets="committed", consumerGroup="g"))
    assert sorted(found) == [OffsetRange(A0, 4, 10), OffsetRange(B0, 118, 120)]


def test_several_topics(cluster: MemoryCluster) -> None:
    other = MessageQueue("u", "a", 0)
    cluster.add(other, 5)
    assert sorted(plan(cluster, options(topic="t,u")))[-1] == OffsetRange(other, 0, 5)


class Counting(MemoryCluster):
    """Counts questions; ``refused`` is raised by those about all queues of a topic, which lack the ``hidden`` ones."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.refused: Exception | None = None
        self.hidden: set[MessageQueue] = set()

    def min_offset(self, mq: MessageQueue) -> int:
        self.asked += 1
        return super().min_offset(mq)

    def end_position(self, mq: MessageQueue) -> Position:
        self.asked += 1
        return super().end_position(mq)

    def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
        self.asked += 1
        if self.refused:
            raise self.refused
        return {mq: span for mq, span in super().topic_offsets(topic, broker_name).items() if mq not in self.hidden}


def test_the_offsets_of_many_queues_are_asked_for_at_once() -> None:
    counting = Counting()
    for at in range(200):
        counting.add(MessageQueue("t", "a", at), 3, minimum=at)
    counting.add(B0, 5)
    counting.stamps = {("t", "a"): 77}
    expected = [OffsetRange(MessageQueue("t", "a", at), at, at + 3, 77) for at in range(200)] + [OffsetRange(B0, 0, 5)]
    assert plan(counting, options()) == expected
    assert counting.asked == 2 + 2
    # What such an answer lacks is asked for queue by queue: queues that are only read, and the rights of a reader.
    counting.hidden = {MessageQueue("t", "a", 1), MessageQueue("t", "a", 199)}
    counting.asked = 0
    assert plan(counting, options()) == expected
    assert counting.asked == 2 + 2 * 3
    for refused in (BrokerError(16, "no permission", "a:1"), ConnectFailed("a:1", "refused")):
        counting.refused, counting.asked = refused, 0
        assert plan(counting, options(brokerWaitMs="600000")) == expected
        assert counting.asked == 2 + 2 * 201


def test_a_topic_that_is_made_again_between_the_questions_has_the_old_stamp() -> None:
    """Then its tasks refuse the new one."""

    class Remade(Counting):
        def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
            self.stamps[topic, broker_name] = 2_000
            return super().topic_offsets(topic, broker_name)

    remade = Remade()
    for at in range(20):
        remade.add(MessageQueue("t", "a", at), 3)
    remade.stamps = {("t", "a"): 1_000}
    assert {one.created_ms for one in plan(remade, options())} == {1_000}


def tasks(cluster: MemoryCluster, **given: str) -> list[int]:
    """How many rows each task has."""
    wanted = options(**given)
    return [task.rows for task in tasks_of(plan(cluster, wanted), wanted, sampled(cluster))]


def test_min_partitions_split_queues(cluster: MemoryCluster) -> None:
    found = tasks(cluster, minPartitions="6")
    assert len(found) == 6
    assert sum(found) == 30


def test_little_is_read_by_one_task_and_more_by_more(cluster: MemoryCluster) -> None:
    assert tasks(cluster) == [30]
    assert tasks(cluster, bytesPerTask="1", maxTasks="1") == [30]
    assert sorted(tasks(cluster, bytesPerTask="1", maxTasks="9")) == [10, 20]
    assert sorted(tasks(cluster, bytesPerTask="0", maxTasks="9")) == [10, 20]
    assert tasks(cluster, bytesPerTask="0", maxTasks="3", minRowsPerTask="5") == [10, 10, 10]
    assert sorted(tasks(cluster, maxRecordsPerPartition="10")) == [10, 10, 10]


def test_the_number_of_tasks_counts_stored_bytes(cluster: MemoryCluster) -> None:
    size = len(cluster.logs[A0].records[0])
    for at in range(8):
        cluster.add(MessageQueue("t", "c", at), 100)
    many = {"maxTasks": "8", "bytesPerTask": str(200 * size)}
    assert len(tasks(cluster, **many)) == 5
    # Of brokers that do not answer nothing is known but the rows; the tasks wait for them.
    cluster.failures = [ConnectFailed("a:1", "refused")] * 10
    assert len(tasks(cluster, maxTasks="8", bytesPerTask=str(200 * 1024))) == 5


def test_the_sizes_of_few_queues_stand_for_thousands(cluster: MemoryCluster) -> None:
    for at in range(200):
        cluster.add(MessageQueue("t", "c", at), 3)
    cluster.pulls.clear()
    assert sum(tasks(cluster, maxTasks="8")) == 630
    assert len(cluster.pulls) == SAMPLE_QUEUES
    assert {queue for queue, _ in cluster.pulls} >= {A0, B0}, "those with the most to read"


def test_the_default_number_of_tasks_is_twice_what_the_cluster_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "7")
    assert options().most_tasks == 14
    assert options(maxTasks="3").most_tasks == 3
    monkeypatch.delenv(VARIABLE)
    assert options().most_tasks == 2 * (os.cpu_count() or 1)


def test_deleted_messages_fail_the_plan_with_a_table(cluster: MemoryCluster) -> None:
    starts = json.dumps({"t": {"a": {"0": 0, "1": 0}, "b": {"0": 40}}})
    with pytest.raises(DataLost) as caught:
        plan(cluster, options(startingOffsets=starts))
    assert "b       0      40    99  60        deleted: the queue starts at 100" in str(caught.value)


def test_deleted_messages_are_logged_when_that_is_wanted(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    starts = json.dumps({"t": {"a": {"0": 0, "1": 0}, "b": {"0": 40}}})
    with caplog.at_level(logging.WARNING):
        found = plan(cluster, options(startingOffsets=starts, failOnDataLoss="false"))
    assert sorted(found) == [OffsetRange(A0, 0, 10), OffsetRange(B0, 100, 120)]
    assert "deleted: the queue starts at 100" in caplog.text


def test_an_end_beyond_the_queue_is_a_loss(cluster: MemoryCluster) -> None:
    ends = json.dumps({"t": {"a": {"0": 15, "1": -1}, "b": {"0": -1}}})
    with pytest.raises(DataLost, match="missing: the queue ends at 10"):
        plan(cluster, options(endingOffsets=ends))


def test_a_start_beyond_the_queue_is_a_loss(cluster: MemoryCluster) -> None:
    starts = json.dumps({"t": {"a": {"0": 15, "1": -2}, "b": {"0": -2}}})
    with pytest.raises(DataLost, match="missing: the queue ends at 10, before the start"):
        plan(cluster, options(startingOffsets=starts))


class SlaveOnly(MemoryCluster):
    """Answers as a slave does whose master is away."""

    def pull_bytes(self, mq: MessageQueue, offset: int, *, max_count: int, max_bytes: int, wait_ms: int) -> Pulled:
        pulled = super().pull_bytes(mq, offset, max_count=max_count, max_bytes=max_bytes, wait_ms=wait_ms)
        return pulled._replace(broker_id=1)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_what_a_slave_has_not_got_is_not_lost(option: str, fail: str) -> None:
    cluster = SlaveOnly()
    cluster.add(A0, 10)
    wanted = {option: json.dumps({"t": {"a": {"0": 11}}})}
    with pytest.raises(
        SlaveBehind, match=r"queue 0: the master is unreachable, and the slave with id 1 .* offset 10 only"
    ):
        plan(cluster, options(failOnDataLoss=fail, **wanted))
    assert plan(cluster, options()) == [OffsetRange(A0, 0, 10)]


def test_an_unknown_topic_is_told(cluster: MemoryCluster) -> None:
    with pytest.raises(RouteNotFound, match="no route for topic nowhere"):
        plan(cluster, options(topic="nowhere"))


def test_offsets_for_another_topic_are_told(cluster: MemoryCluster) -> None:
    with pytest.raises(UserError, match="option startingOffsets gives no offset for t a 0, t a 1, t b 0"):
        plan(cluster, options(startingOffsets='{"u":{"a":{"0":1}}}'))


def by_time(a0: int, a1: int, b0: int) -> str:
    return json.dumps({"t": {"a": {"0": a0, "1": a1}, "b": {"0": b0}}})


@given(st.integers(0, 130_000), st.integers(0, 130_000))
def test_times_choose_what_was_stored_between_them(start: int, end: int) -> None:
    cluster = MemoryCluster()
    cluster.add(A0, 10)
    cluster.add(B0, 20, minimum=100)
    stored = [(queue, offset) for queue, log in cluster.logs.items() for offset in range(log.minimum, log.maximum)]
    wanted = {(queue, offset) for queue, offset in stored if start <= offset * 1000 < end}
    times = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
    tree = [json.dumps({"t": {"a": {"0": time}, "b": {"0": time}}}) for time in (start, end)]
    by_queue = {"startingOffsetsByTimestamp": tree[0], "endingOffsetsByTimestamp": tree[1]}
    for given_times in (times, by_queue):
        ranges = plan(cluster, options(**given_times, endingOffsets="latest"))
        assert {(one.queue, at) for one in ranges for at in range(one.start, one.end)} == wanted


def test_each_queue_has_its_time(cluster: MemoryCluster) -> None:
    found = plan(cluster, options(startingOffsetsByTimestamp=by_time(3000, 0, 110_000), endingTimestamp="115000"))
    assert sorted(found) == [OffsetRange(A0, 3, 10), OffsetRange(B0, 110, 115)]


def test_a_time_of_all_queues_beats_times_by_queue(cluster: MemoryCluster) -> None:
    given_times = {"startingOffsetsByTimestamp": by_time(0, 0, 0), "startingTimestamp": "118000"}
    assert plan(cluster, options(**given_times)) == [OffsetRange(B0, 118, 120)]


def test_a_queue_without_a_time_is_named(cluster: MemoryCluster) -> None:
    times = json.dumps({"t": {"a": {"0": 1, "1": 1}}})
    with pytest.raises(UserError, match="option endingOffsetsByTimestamp gives no offset for t b 0"):
        plan(cluster, options(endingOffsetsByTimestamp=times))


@pytest.mark.parametrize("name", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_nothing_since_the_start_can_be_an_error(cluster: MemoryCluster, name: str) -> None:
    time = "50000" if name == "startingTimestamp" else by_time(50_000, 50_000, 50_000)
    assert plan(cluster, options(**{name: time})) == [OffsetRange(B0, 100, 120)]
    with pytest.raises(UserError, match=f"option {name}: topic t, broker a, queue 0 has no message since 50000"):
        plan(cluster, options(**{name: time}, startingOffsetsByTimestampStrategy="error"))


def test_assigned_queues_are_read(cluster: MemoryCluster) -> None:
    found = plan(cluster, ReadOptions.parse({"assign": '{"t": {"b": [0]}}'}))
    assert found == [OffsetRange(B0, 100, 120)]


QUEUES = [MessageQueue(topic, broker, queue) for topic in "tu" for broker in "ab" for queue in range(3)]
NAMES = st.lists(st.sampled_from(["flights", "flights-2", "xflights", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "%RETRY%g"]))


def with_pattern(pattern: str) -> ReadOptions:
    return ReadOptions.parse({"topicPattern": pattern})


@given(NAMES, st.sampled_from([".*", "flights", "flights.*", "x?flights", "[^-]*"]))
def test_a_pattern_matches_whole_names_of_users_topics(names: Sequence[str], pattern: str) -> None:
    users = {name for name in names if "flights" in name}
    assert matching(pattern, names) == sorted(name for name in users if re.match(f"(?:{pattern})$", name))


def test_the_topics_take_the_place_of_the_pattern() -> None:
    options = with_topics(with_pattern("f.*"), lambda _: ["g", "f2", "f1"])
    assert (options.topics, options.topic_pattern) == (("f1", "f2"), "")


def test_a_pattern_without_topics_is_refused() -> None:
    with pytest.raises(UserError, match="no topic of the cluster matches 'f'"):
        with_topics(with_pattern("f"), lambda _: ["g"])


def test_named_topics_are_not_looked_up() -> None:
    options = ReadOptions.parse({"topic": "t"})
    assert with_topics(options, lambda _: pytest.fail("asked")) is options


@given(st.sets(st.sampled_from(QUEUES), min_size=1))
def test_assigned_queues_and_no_others(wanted: set[MessageQueue]) -> None:
    tree: dict[str, dict[str, list[int]]] = {}
    for topic, broker, queue in wanted:
        tree.setdefault(topic, {}).setdefault(broker, []).append(queue)
    options = ReadOptions.parse({"assign": str(tree).replace("'", '"')})
    assert chosen(QUEUES, options) == sorted(wanted)


def test_an_assigned_queue_that_no_broker_has() -> None:
    with pytest.raises(UserError, match="option assign names t a 9, which no broker has; queues: t a 0, t a 1"):
        chosen(QUEUES, ReadOptions.parse({"assign": '{"t": {"a": [9, 1]}}'}))


@given(st.text(max_size=9), st.integers(0, MAX_QUEUES - 1))
def test_partition_numbers_hold_the_queue(broker: str, queue: int) -> None:
    number = partition_number(broker, queue)
    assert 0 <= number < 2**31
    assert number % MAX_QUEUES == queue


def test_partition_numbers_do_not_change_with_the_version() -> None:
    assert [partition_number("broker-a", queue) for queue in (0, 7)] == [522_518_528, 522_518_535]


def test_equal_partition_numbers_are_refused() -> None:
    seen: dict[int, str] = {}
    for at in range(100_000):  # two of some thousand names have equal numbers
        name = f"{at**3}-{at}"
        other = seen.setdefault(partition_number(name, 0), name)
        if other != name:
            break
    check_partition_numbers([MessageQueue("t", name, 0), MessageQueue("u", other, 0), MessageQueue("t", other, 1)])
    queues = [MessageQueue("t", name, 0), MessageQueue("t", other, 0)]
    with pytest.raises(UserError, match="the same partition numbers"):
        chosen(queues, ReadOptions.parse({"topic": "t", "schemaStyle": "kafka"}))
    assert chosen(queues, ReadOptions.parse({"topic": "t"})) == queues


def test_more_queues_than_partition_numbers() -> None:
    with pytest.raises(UserError, match="cannot number queue 4096 of topic t"):
        check_partition_numbers([MessageQueue("t", "a", 4096)])


def test_planning_waits_for_servers_that_are_away(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    class Starting(MemoryCluster):
        """Fails the first question of each kind."""

        asked: ClassVar[set[str]] = set()

        def first(self, kind: str) -> None:
            if kind not in self.asked:
                self.asked.add(kind)
                raise ConnectFailed("b:1", "refused")

        def topic_queues(self, topic: str) -> TopicQueues:
            self.first("queues")
            return super().topic_queues(topic)

        def end_position(self, mq: MessageQueue) -> Position:
            self.first("ends")
            return super().end_position(mq)

        def min_offset(self, mq: MessageQueue) -> int:
            self.first("starts")
            return super().min_offset(mq)

        def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int:
            self.first("search")
            return super().search_offset(mq, timestamp_ms)

        def committed_offset(self, mq: MessageQueue) -> int | None:
            self.first("committed")
            return super().committed_offset(mq)

    monkeypatch.setattr(pulling, "FIRST_PAUSE_S", 0.0001)
    starting = Starting()
    starting.logs = cluster.logs
    with pytest.raises(ConnectFailed):
        plan(starting, options())
    starting.asked.clear()
    waiting = options(brokerWaitMs="60000", startingOffsets="committed", consumerGroup="g", endingTimestamp="5000")
    assert plan(starting, waiting)
    assert starting.asked == {"queues", "ends", "starts", "search", "committed"}


def test_a_refusal_ends_planning_at_once(cluster: MemoryCluster) -> None:
    class Refusing(MemoryCluster):
        asked = 0

        def end_position(self, mq: MessageQueue) -> Position:
            self.asked += 1
            raise BrokerError(16, "no permission", "b:1")

    refusing = Refusing()
    refusing.add(A0, 10)
    with pytest.raises(BrokerError, match="no permission"):
        plan(refusing, options(brokerWaitMs="600000"))
    assert refusing.asked == 1


def test_a_damaged_sample_has_a_size_and_no_time() -> None:
    cluster = MemoryCluster()
    cluster.add(A0, 2)
    assert next_messages(cluster, A0, 0).oldest_ms == 0
    whole = cluster.logs[A0].records
    cluster.logs[A0].records = [one[:4] + b"\0\0\0\0" + one[8:] for one in whole]
    assert next_messages(cluster, A0, 0) == NextMessages(sum(map(len, whole)) / 2, None)
