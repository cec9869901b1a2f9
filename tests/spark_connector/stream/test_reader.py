"""The stream reader as Spark uses it, against a cluster in memory."""

import json
import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructType

from skylark.mqcommon.errors import BrokerError, ConnectFailed, RouteNotFound, UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.position import OffsetSpan, Position
from skylark.spark_connector.offsets import DataLost
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader
from skylark.spark_connector.stream.arrivals import Arrivals
from skylark.spark_connector.stream.reader import RocketMQStreamReader
from tests.spark_connector.cluster import MemoryCluster
from tests.spark_connector.query import A0, A1, B0, SCHEMA, Offset, Query

A2 = MessageQueue("t", "a", 2)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.add(A0, 10)
    cluster.add(B0, 20, minimum=100)
    return cluster


queues = st.sampled_from([A0, A1, A2, B0, MessageQueue("t", "c", 0)])
limits = st.sampled_from(
    [{}, {"maxOffsetsPerTrigger": "1"}, {"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "900"}]
)
steps = st.one_of(
    st.tuples(st.just("grow"), queues, st.integers(1, 30)),
    st.tuples(st.just("trigger"), limits, st.none()),
    st.tuples(st.just("restart"), limits, st.none()),
    st.tuples(st.just("again"), limits, st.none()),
    st.tuples(st.just("available now"), limits, st.none()),
    st.tuples(st.just("away"), st.sampled_from(["", "a", "b", "abc"]), st.none()),
)


@given(st.lists(steps, max_size=25))
def test_each_message_comes_once_in_order_whatever_happens(plan: list[tuple[str, Any, Any]]) -> None:
    """Growth, new queues and brokers, limits, restarts, batches that run again, brokers that are away."""
    cluster = MemoryCluster()
    cluster.add(A0, 3, minimum=2)
    cluster.add(B0, 1)
    query = Query(cluster, onBrokerAway="continue", missingBrokers="skip")
    query.trigger()
    for step, what, more in plan:
        if step == "grow":
            cluster.grow(what, more)
        elif step == "away":
            cluster.away = set(what)
        elif step == "trigger":
            query.trigger()
        elif step == "restart":
            query.start(**what)
        elif step == "again" and len(query.log) > 1 and not cluster.away:
            query.start(**what)
            last = query.rows[len(query.rows) - query.sizes[-1] :] if query.sizes else []
            assert sorted(query.batch()) == sorted(last)
        elif step == "available now":
            query.start(available_now=True, **what)
            while query.trigger():
                pass
    cluster.away = set()
    query.start()
    query.trigger()
    assert not query.trigger()
    for queue, log in cluster.logs.items():
        assert query.of(queue) == list(range(log.minimum, log.maximum))


@pytest.mark.parametrize(
    ("given_options", "first"),
    [
        ({"startingOffsets": "latest"}, {"t|a|0": 10, "t|b|0": 120}),
        ({"startingOffsets": "committed", "group": "g"}, {"t|a|0": 4, "t|b|0": 100}),
        ({"startingOffsets": '{"t":{"a":{"0":3},"b":{"0":-1}}}'}, {"t|a|0": 3, "t|b|0": 120}),
        ({"startingTimestamp": "9000"}, {"t|a|0": 9, "t|b|0": 100}),
    ],
)
def test_where_a_query_starts(cluster: MemoryCluster, given_options: dict[str, str], first: Offset) -> None:
    cluster.committed[A0] = 4
    query = Query(cluster, **given_options)
    assert query.reader.initialOffset() == {"v": 1, "cluster": "cluster", **first}


def test_the_start_stays_whatever_comes_before_the_first_message(cluster: MemoryCluster) -> None:
    """Spark does not keep it, asks for it several times, and asks again when the first micro-batch is run again."""
    query = Query(cluster, startingOffsets="latest")
    start = query.reader.initialOffset()
    cluster.grow(A0, 1)
    assert query.reader.initialOffset() == start
    query.start()
    assert query.trigger()
    assert query.sizes == [0]
    query.start()
    cluster.grow(A0, 2)
    assert query.trigger()
    assert query.of(A0) == [11, 12]

    query = Query(cluster, startingOffsets="latest", maxOffsetsPerTrigger="1")
    query.log.append(query.reader.initialOffset())
    cluster.grow(A0, 2)
    assert query.trigger()
    cluster.grow(A0, 1)
    query.start()
    query.log[0] = query.reader.initialOffset()
    assert query.log[0]["t|a|0"] == 16
    assert query.batch() == query.rows == [("a", 0, 13)]


def ranges_of(query: Query) -> list[list[tuple[str, int, int, int]]]:
    """The ranges of each task of the last micro-batch."""
    partitions = query.reader.partitions(query.log[-2], query.log[-1])
    return [[(*one.queue[1:], one.start, one.end) for one in partition.value.ranges] for partition in partitions]


def test_a_micro_batch_that_is_run_again_has_the_same_tasks(cluster: MemoryCluster) -> None:
    """On a cluster of another size, with other sizes of messages, and with other options for the tasks to come."""
    for at in range(6):
        cluster.grow(MessageQueue("t", "c", at), 5)
    query = Query(cluster, bytesPerTask="1000", maxTasks="3")
    query.trigger()
    assert query.log[-1]["tasks"] == 3
    tasks = ranges_of(query)
    assert len(tasks) == 3 and all(tasks)
    cluster.failures = [ConnectFailed("a:1", "refused")] * 9
    query.start(maxTasks="5", bytesPerTask="9000")
    assert ranges_of(query) == tasks
    cluster.failures = []
    cluster.grow(A0, 1)
    query.trigger()
    assert query.log[-1]["tasks"] == 1, "what comes later is planned anew"
    assert ranges_of(query) == [[("a", 0, 10, 11)]]


def test_a_micro_batch_of_an_older_version_has_a_task_for_each_queue(cluster: MemoryCluster) -> None:
    query = Query(cluster)
    query.trigger()
    assert ranges_of(query) == [[("a", 0, 0, 10), ("b", 0, 100, 120)]]
    del query.log[-1]["tasks"]
    query.start()
    assert ranges_of(query) == [[("a", 0, 0, 10)], [("b", 0, 100, 120)]]


def test_new_topics_of_a_pattern_are_found_after_a_while(cluster: MemoryCluster) -> None:
    query = Query(cluster, topic="", topicPattern="t.*", discoveryIntervalMs="5000")
    query.trigger()
    other = MessageQueue("t2", "a", 0)
    cluster.grow(other, 3)
    query.now_s = 4.9
    assert not query.trigger()
    query.now_s = 5
    assert query.trigger()
    assert query.log[-1].items() >= {"t2|a|0": 3, "t2|a|0|from": 0}.items()
    assert query.sizes == [30, 3]


def test_topics_that_are_known_are_read_while_no_list_of_topics_comes(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster, topic="", topicPattern="t.*", onBrokerAway="continue")
    answers: list[list[str] | Exception] = [["t"]]

    def list_topics(_: ReadOptions) -> list[str]:
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    query.reader._driver_args = (list_topics, *query.reader._driver_args[1:])
    query.trigger()
    answers.append(ConnectFailed("n:1", "refused"))
    cluster.grow(A0, 1)
    query.trigger()
    assert query.sizes == [30, 1]
    assert "the list of topics is away" in caplog.text and "refused" in caplog.text
    answers.append(BrokerError(16, "no permission", "n:1"))
    with pytest.raises(BrokerError, match="no permission"):
        query.trigger()


def test_a_checkpoint_is_compared_with_the_cluster_when_it_can_say_its_name(cluster: MemoryCluster) -> None:
    query = Query(cluster)
    query.trigger()
    query.start()
    # A trigger asks when it plans, and again when it reads.
    away = ConnectFailed("n:1", "refused")
    answers: list[list[str] | Exception] = [away, away, ["another"]]

    def list_clusters(_: ReadOptions) -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    topics, _, now, idle_s = query.reader._driver_args
    query.reader._driver_args = (topics, list_clusters, now, idle_s)
    cluster.grow(A0, 1)
    assert query.trigger(), "a broker that is away for a moment holds no stream"
    with pytest.raises(UserError, match="another"):
        query.trigger()
    assert answers == []


def test_a_broker_that_is_away_is_said_once_and_read_later(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster, onBrokerAway="continue")
    query.trigger()
    cluster.away = {"b"}
    cluster.grow(A0, 1)
    cluster.grow(B0, 2)
    for _ in range(3):
        query.trigger()
    assert query.sizes == [30, 1]
    cluster.away = set()
    query.trigger()
    assert query.sizes == [30, 1, 2]
    assert caplog.messages == [
        "broker b is away, its messages are read when it is back: no NameServer lists it for the topics that are read",
        "the stream goes on without broker b (onBrokerAway=continue): if the query has a watermark, rows that are read"
        " when it is back may be too late, and dropped",
        "broker b is back",
    ]


def test_warnings_in_the_output_of_a_stream_have_time_and_level(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that Spark starts for a stream has set up no logging."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    query = Query(cluster)
    query.trigger()
    cluster.away = {"b"}
    query.trigger()
    said = capsys.readouterr().err
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING skylark.spark_connector.stream.driver: broker b is away, ", said
    )
    assert len(said.splitlines()) == 1


def test_a_broker_that_is_listed_and_silent_is_not_asked_in_each_trigger(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(MemoryCluster):
        asked = 0
        is_silent = False

        def end_position(self, mq: MessageQueue) -> Position:
            if self.is_silent and mq == B0:
                self.asked += 1
                raise ConnectFailed("b:1", "refused")
            return super().end_position(mq)

    silent = Silent()
    silent.logs = cluster.logs
    query = Query(silent, discoveryIntervalMs="10000", onBrokerAway="continue")
    query.trigger()
    silent.is_silent = True
    for query.now_s in range(1, 21):
        silent.grow(A0, 1)
        assert query.trigger()
    assert silent.asked == 3
    assert caplog.messages[0] == (
        "broker b is away, its messages are read when it is back: cannot connect to b:1: refused"
    )
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("question", ["end_position", "topic_queues"])
def test_a_right_that_is_taken_away_ends_the_query(cluster: MemoryCluster, question: str) -> None:
    query = Query(cluster)
    query.trigger()
    cluster.grow(A0, 1)

    def refuse(*what: object) -> NoReturn:
        raise BrokerError(16, "no permission for topic t", "a:1")

    setattr(cluster, question, refuse)
    with pytest.raises(BrokerError, match="no permission for topic t"):
        query.trigger()


def test_a_stream_is_held_while_a_broker_is_away_for_some_time(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster, brokerAwayHoldMs="60000")
    query.trigger()
    for held_s, sizes in ((59.9, [3]), (61, [1, 2])):
        cluster.away = {"b"}
        cluster.grow(A0, 1)
        cluster.grow(B0, 2)
        query.start()  # also after a restart
        left = query.now_s
        assert not query.trigger()
        query.now_s = left + held_s
        before = len(query.sizes)
        query.trigger()
        cluster.away = set()
        query.trigger()
        assert query.sizes[before:] == sizes
    assert [line for line in caplog.messages if "goes on without broker b (onBrokerAway=hold)" in line]


def test_nothing_is_read_while_the_topic_has_no_route(cluster: MemoryCluster, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(cluster)
    query.trigger()
    cluster.away = {"a", "b"}
    query.start()
    assert not query.trigger()
    assert "topic t is away" in caplog.text
    with pytest.raises(RouteNotFound):
        query.reader.initialOffset()


def test_a_slave_that_is_behind_is_no_loss(cluster: MemoryCluster, caplog: pytest.LogCaptureFixture) -> None:
    class Slave(MemoryCluster):
        broker_id = 0

        def pull_bytes(self, mq: MessageQueue, offset: int, **wanted: Any) -> Any:
            return super().pull_bytes(mq, offset, **wanted)._replace(broker_id=self.broker_id)

    slave = Slave()
    slave.add(A0, 10)
    query = Query(slave)
    query.trigger()
    slave.add(A0, 8)
    slave.broker_id = 1
    assert not query.trigger()
    query.start(available_now=True)
    assert not query.trigger()
    assert "the slave with id 1 has messages up to offset 8 only" in caplog.text
    slave.broker_id = 0
    query.start()
    with pytest.raises(DataLost, match="missing: the queue ends before that"):
        query.trigger()


@pytest.mark.parametrize("way", ["fail", "skip", "report"])
def test_expired_messages(cluster: MemoryCluster, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(cluster, onDataLoss=way, lostRangesPath=str(tmp_path / "lost"), maxOffsetsPerTrigger="10")
    query.trigger()
    cluster.delete_before(B0, 115)
    if way == "fail":
        with pytest.raises(DataLost, match="b       0      106   114  9 "):
            query.trigger()
        return
    while query.trigger():
        pass
    assert query.of(A0) == list(range(10))
    assert query.of(B0) == [*range(100, 106), *range(115, 120)]
    assert "b       0      106   114  9         deleted: the queue goes on at 115" in caplog.text
    query.batch()
    files = sorted((tmp_path / "lost").glob("*")) if way == "report" else []
    found = [json.loads(file.read_text()) for file in files]
    assert [(row["brokerName"], row["from"], row["to"], row["messages"]) for row in found] == (
        [("b", 106, 114, 9)] if way == "report" else []
    )


def test_a_loss_that_is_found_again_is_one_row(cluster: MemoryCluster, tmp_path: Path) -> None:
    query = Query(cluster, onDataLoss="report", lostRangesPath=str(tmp_path))
    query.trigger()
    for minimum in (5, 8):
        cluster.delete_before(A0, minimum)
        query.batch()
    (file,) = tmp_path.iterdir()
    row = json.loads(file.read_text())
    assert (row["topic"], row["from"], row["to"], row["reason"]) == ("t", 0, 7, "deleted: the queue goes on at 8")


def test_a_queue_that_became_shorter_goes_on_at_its_end(cluster: MemoryCluster) -> None:
    """As after a loss of the machine's power: the topic is the same, which its stamp tells."""
    cluster.stamps["t", "a"] = 1_000
    query = Query(cluster, onDataLoss="skip")
    query.trigger()
    cluster.add(A0, 6)
    query.trigger()
    cluster.grow(A0, 3)
    query.trigger()
    assert query.of(A0) == [*range(10), 6, 7, 8]


@pytest.mark.parametrize(("before", "after"), [(1_000, 2_000), (None, None)])
def test_a_topic_that_was_made_again_ends_the_query_or_is_read_from_its_beginning(
    before: int | None, after: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster()
    cluster.make_again(A0, 20, before)
    query = Query(cluster)
    assert query.trigger()
    cluster.make_again(A0, 50 if after else 10, after)
    query.start()
    for _ in range(2):  # as often as the query is started again
        with pytest.raises(DataLost, match=r"t +a +0 +20 .* the topic was deleted and made again") as caught:
            query.trigger()
        assert "some messages that should be read do not exist" in str(caught.value)
        assert "Set option onDataLoss to skip (or failOnDataLoss to false)" in str(caught.value)
    query.start(failOnDataLoss="false", maxOffsetsPerTrigger="6")
    query.rows.clear()
    while query.trigger():
        # A batch that is run again after a failure has the same rows.
        assert query.batch() == query.rows[-query.sizes[-1] :]
    assert query.of(A0) == list(range(50 if after else 10))
    lines = [line for line in caplog.messages if "made again" in line]
    assert set(lines) == {lines[0]}
    assert "what it has now is read from offset 0 on" in lines[0]


def test_a_topic_that_was_made_again_before_the_first_batch_ends_the_query() -> None:
    cluster = MemoryCluster()
    cluster.make_again(A0, 20, 1_000)
    query = Query(cluster, startingOffsets="latest")
    query.reader.initialOffset()
    cluster.make_again(A0, 50, 2_000)
    with pytest.raises(DataLost, match="the topic was deleted and made again"):
        query.trigger()


def test_a_slave_with_an_older_topic_of_the_name_is_waited_out(cluster: MemoryCluster) -> None:
    class Slave(MemoryCluster):
        broker_id = 0

        def pull_bytes(self, *args: Any, **more: Any) -> Any:
            return super().pull_bytes(*args, **more)._replace(broker_id=self.broker_id)

    slave = Slave()
    slave.make_again(A0, 10, 2_000)
    query = Query(slave)
    assert query.trigger()
    slave.make_again(A0, 40, 1_000)
    slave.broker_id = 1
    assert not query.trigger()
    slave.make_again(A0, 12, 2_000)
    slave.broker_id = 0
    query.start()
    assert query.trigger()
    assert query.of(A0) == list(range(12))


def test_a_checkpoint_without_stamps_goes_on_and_learns_them() -> None:
    cluster = MemoryCluster()
    cluster.add(A0, 20)
    query = Query(cluster)
    assert query.trigger()
    cluster.stamps["t", "a"] = 1_000  # its broker was upgraded
    query.start()
    assert not query.trigger()
    cluster.grow(A0, 1)
    assert query.trigger()
    assert query.of(A0) == list(range(21))
    cluster.make_again(A0, 30, 2_000)
    query.start()
    with pytest.raises(DataLost, match="made again"):
        query.trigger()


def test_a_batch_whose_topic_is_made_again_before_it_runs_reads_nothing_of_the_new_one() -> None:
    cluster = MemoryCluster()
    cluster.make_again(A0, 20, 1_000)
    query = Query(cluster, failOnDataLoss="false")
    assert query.trigger()
    assert len(query.batch()) == 20
    cluster.make_again(A0, 20, 2_000)
    assert query.batch() == []
    query.start(failOnDataLoss="true")
    with pytest.raises(DataLost, match="made again since this range was planned"):
        query.batch()


def test_commits_only_go_forward_and_only_when_asked_for(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster)
    query.trigger()
    assert cluster.committed == {}
    cluster.committed[B0] = 500
    query.start(commitOffsets="true", consumerGroup="g")
    cluster.grow(A0, 1)
    query.trigger()
    assert cluster.committed == {A0: 11, B0: 500}
    query.start(commitOffsets="true", consumerGroup="g")
    cluster.grow(A0, 1)
    query.trigger()
    cluster.committed.clear()
    query.start(commitOffsets="true", consumerGroup="g")
    assert not query.trigger()  # Spark commits the last micro-batch of a run with AvailableNow in no other way
    assert cluster.committed == {A0: 12, B0: 120}
    cluster.committed[B0] = 500
    cluster.away = {"a"}
    query.reader.commit({**query.log[-1], "t|a|0": 13})
    query.reader.commit({**query.log[-1], "t|a|0": 14})
    assert [text for text in caplog.messages if "committed" in text] == [
        "offsets are committed later: cannot connect to a:1: refused"
    ]
    cluster.away = set()
    query.reader.commit({**query.log[-1], "t|a|0": 14})
    query.reader.commit({**query.log[-1], "t|a|0": 13})
    assert cluster.committed == {A0: 14, B0: 500}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"cluster": "north"}, "the checkpoint is from cluster north, and the NameServers have cluster"),
        ({"u|a|0": 5}, "has offsets of queues that the options do not choose: u a 0"),
        ({"v": 3}, "have version 3"),
    ],
)
def test_a_checkpoint_of_another_topic_or_cluster_is_refused(
    cluster: MemoryCluster, other: Mapping[str, Any], said: str
) -> None:
    query = Query(cluster)
    start = {**query.reader.initialOffset(), **other}
    query.start()
    with pytest.raises(UserError, match=said):
        query.reader.latestOffset(start, ReadAllAvailable())
    query.start()
    query.reader.initialOffset()
    with pytest.raises(UserError, match=said):
        query.reader.partitions(start, start)


def test_the_consumer_is_opened_once_and_closed_at_the_end(cluster: MemoryCluster) -> None:
    query = Query(cluster)
    assert cluster.opened == 0
    query.trigger()
    assert cluster.opened == 1
    query.reader.stop()
    query.reader.stop()
    assert cluster.opened == 0


def test_the_reader_travels_to_workers() -> None:
    copy = pickle.loads(pickle.dumps(AdmittingStreamReader(ReadOptions.of_stream({"topic": "t"}), SCHEMA)))
    assert type(copy) is AdmittingStreamReader


# --- limits and triggers


def test_a_limit_is_shared_and_kept(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(6)
    while query.trigger():
        pass
    assert query.sizes == [6, 6, 6, 6, 6]
    assert query.rows[:6] == [("a", 0, 0), ("a", 0, 1), ("b", 0, 100), ("b", 0, 101), ("b", 0, 102), ("b", 0, 103)]


def test_the_trigger_once_takes_all(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="5")
    query.trigger(ReadAllAvailable())
    assert query.sizes == [30]


def test_available_now_ends_where_the_queues_ended(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="20", minOffsetsPerTrigger="15")
    query.start(available_now=True)
    cluster.grow(A0, 5)
    cluster.grow(A1, 5)
    while query.trigger():
        cluster.grow(B0, 5)
    assert query.sizes == [20, 10]


def test_available_now_from_the_end_reads_nothing(cluster: MemoryCluster) -> None:
    query = Query(cluster, startingOffsets="latest")
    query.start(available_now=True)
    cluster.grow(A0, 5)
    while query.trigger():
        cluster.grow(A0, 5)
    assert query.sizes == [0]
    query.start()
    assert query.trigger()
    assert query.of(A0) == list(range(15, 20))


def test_bytes_are_counted_by_the_mean_size(cluster: MemoryCluster) -> None:
    size = len(cluster.logs[A0].records[0])
    query = Query(cluster, maxBytesPerTrigger=str(7 * size))
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(7 * size)
    while query.trigger():
        pass
    assert sum(query.sizes) == 30
    assert set(query.sizes[:-1]) <= {6, 7}


def test_a_batch_waits_for_enough_messages_up_to_a_time(cluster: MemoryCluster) -> None:
    query = Query(cluster, minOffsetsPerTrigger="31", maxTriggerDelay="60s")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(31)
    assert query.trigger()  # which keeps the start, and nothing else
    assert not query.trigger()
    cluster.grow(A0, 1)
    assert query.trigger()
    cluster.grow(A0, 1)
    query.now_s = 59
    assert not query.trigger()
    query.now_s = 60
    assert query.trigger()
    assert query.sizes == [0, 31, 1]


def test_without_limits_all_is_read(cluster: MemoryCluster) -> None:
    assert Query(cluster).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_what_waits_is_reported(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6")
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    report = reported.pop("report")
    assert reported == {"v": 1, "cluster": "cluster", "t|a|0": 10, "t|b|0": 120}
    assert report == {"oldestMs": {"t": 2000}, "meanBytes": {"t": 94}}
    query.now_s = 1
    while query.trigger():
        pass
    assert query.reader.reportLatestOffset() == query.log[-1]


def test_a_damaged_message_that_waits_is_left_out_of_the_report(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6")
    query.trigger()
    log = cluster.logs[A0]
    log.records = [one[:4] + b"\0\0\0\0" + one[8:] for one in log.records]
    reported = query.reader.reportLatestOffset()
    assert reported is not None and reported["report"]["oldestMs"]["t"] > 100_000, "of the other queue"


# --- many queues, and none with messages


class Counting(MemoryCluster):
    """Counts questions; ``refusal`` answers those for all queues at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refusal: BrokerError | None = None

    def end_position(self, mq: MessageQueue) -> Position:
        self.asked.append("end")
        return super().end_position(mq)

    def min_offset(self, mq: MessageQueue) -> int:
        self.asked.append("min")
        return super().min_offset(mq)

    def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
        self.asked.append("all")
        if self.refusal is not None:
            raise self.refusal
        return super().topic_offsets(topic, broker_name)


@pytest.fixture
def counting() -> Counting:
    counting = Counting()
    for number in range(50):
        counting.add(MessageQueue("t", "a", number), 2)
    return counting


def test_a_trigger_asks_a_broker_of_many_queues_twice(counting: Counting) -> None:
    query = Query(counting)
    query.trigger()
    counting.asked = []
    assert not query.trigger()
    assert counting.asked == ["end", "all"], "the first one tells the stamp of the topic"
    counting.grow(A1, 3)
    assert query.trigger()
    assert query.of(A1) == [0, 1, 2, 3, 4]


def test_a_broker_that_refuses_the_question_for_all_queues_is_asked_for_each(counting: Counting) -> None:
    counting.refusal = BrokerError(16, "GET is needed", "a:1")
    query = Query(counting, discoveryIntervalMs="10000")
    query.trigger()
    assert query.sizes == [100]
    counting.asked = []
    assert not query.trigger()
    assert counting.asked == ["end"] * 50
    query.now_s, counting.refusal = 10, None
    assert not query.trigger()
    counting.asked = []
    assert not query.trigger()
    assert counting.asked == ["end", "all"]


def test_a_topic_of_many_queues_that_is_made_again_is_read_from_its_beginning(counting: Counting) -> None:
    counting.stamps["t", "a"] = 1
    query = Query(counting, onDataLoss="skip")
    query.trigger()
    counting.make_again(A1, 3, 2)
    assert query.trigger()
    assert query.of(A1) == [0, 1, 0, 1, 2]


Waits = list[tuple[dict[MessageQueue, int], float]]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """The ends and the time (s) of each wait, which is over at once."""
    found: Waits = []

    def wait(arrivals: Arrivals, ends: Mapping[MessageQueue, int], timeout_s: float) -> bool:
        found.append((dict(ends), timeout_s))
        return False

    monkeypatch.setattr(Arrivals, "wait", wait)
    return found


def test_a_stream_waits_for_messages_only_when_it_had_none_a_moment_ago(cluster: MemoryCluster, waits: Waits) -> None:
    query = Query(cluster, idle_s=8)
    query.trigger()
    assert not query.trigger()
    assert waits == [], "there was a micro-batch before"
    query.now_s = 3
    assert not query.trigger()
    assert waits.pop() == ({A0: 10, B0: 120}, 5)
    query.now_s = 11
    assert not query.trigger()
    assert waits == [], "others, or the trigger, took as long"
    cluster.grow(A0, 1)
    assert query.trigger()
    assert waits.pop() == ({A0: 10, B0: 120}, 8)


def test_a_stream_does_not_wait_beside_a_busy_source(cluster: MemoryCluster, waits: Waits) -> None:
    """Spark commits the offsets of all sources after a micro-batch of any of them."""
    query = Query(cluster, idle_s=8)
    query.trigger()
    assert not query.trigger()
    query.reader.commit(query.log[-1])
    assert not query.trigger()
    assert waits == []


def test_a_run_with_available_now_never_waits(cluster: MemoryCluster, waits: Waits) -> None:
    query = Query(cluster, idle_s=8)
    query.start(available_now=True)
    query.trigger()
    for _ in range(3):
        assert not query.trigger()
    assert waits == []


# --- PySpark 4.0 and 4.1, which do not tell the start


@pytest.fixture
def old(cluster: MemoryCluster) -> RocketMQStreamReader:
    return old_reader(cluster)


def old_reader(cluster: MemoryCluster) -> RocketMQStreamReader:
    options = ReadOptions.of_stream({"topic": "t", "startingOffsets": "latest", "discoveryIntervalMs": "0"})
    return RocketMQStreamReader(
        options, SCHEMA, lambda _: cluster, lambda _: ["t"], lambda _: ["cluster"], lambda: 0, idle_s=0
    )


def read(reader: RocketMQStreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    partitions = reader.partitions(start, end)
    return [
        (row["brokerName"], row["queueOffset"])
        for one in partitions
        for batch in reader.read(one)
        for row in batch.to_pylist()
    ]


def test_an_old_spark_reads_on(cluster: MemoryCluster, old: RocketMQStreamReader) -> None:
    first = old.initialOffset()
    cluster.grow(A0, 2)
    cluster.grow(A1, 1)
    second = old.latestOffset()
    assert sorted(read(old, first, second)) == [("a", 0), ("a", 10), ("a", 11)]
    assert old.latestOffset() == second
    cluster.grow(A0, 1)
    assert read(old, second, old.latestOffset()) == [("a", 12)]


def test_an_old_spark_asks_for_the_start_after_the_end(cluster: MemoryCluster, old: RocketMQStreamReader) -> None:
    end = old.latestOffset()
    start = old.initialOffset()
    assert read(old, start, end) == []
    cluster.grow(A0, 1)
    assert read(old, end, old.latestOffset()) == [("a", 10)]


def test_an_old_spark_reads_on_after_a_restart(
    cluster: MemoryCluster, old: RocketMQStreamReader, caplog: pytest.LogCaptureFixture
) -> None:
    first = old.initialOffset()
    cluster.grow(A0, 2)
    cluster.grow(A1, 1)
    again = old_reader(cluster)
    second = again.latestOffset()
    assert sorted(read(again, first, second)) == [("a", 0), ("a", 10), ("a", 11)]
    assert again.latestOffset() == second
    assert not caplog.messages
    cluster.away = {"b"}
    third = old_reader(cluster).latestOffset()
    with caplog.at_level(logging.WARNING):
        assert read(old_reader(cluster), second, third) == []
    assert "b was away when the query was restarted" in caplog.text


def test_a_stream_with_dead_letters_needs_their_topic_before_it_starts(cluster: MemoryCluster) -> None:
    letters = {"valueFormat": "json", "badRows": "deadLetter"}
    with pytest.raises(RouteNotFound, match="no route for topic t-bad-rows: badRows=deadLetter needs it"):
        Query(cluster, **letters).trigger()
    cluster.add(MessageQueue("t-bad-rows", "a", 0), 0)
    assert Query(cluster, **letters).trigger()


def test_a_micro_batch_has_values(cluster: MemoryCluster) -> None:
    """The bodies are numbers, which are JSON, but no objects."""
    schema = StructType().add("queueOffset", LongType()).add("value", StructType().add("id", LongType()))
    given = {"topic": "t", "startingOffsets": "earliest", "valueFormat": "json", "badRows": "null"}
    options = ReadOptions.of_stream(given)
    reader = AdmittingStreamReader(options, schema, lambda _: cluster, lambda _: ["t"], lambda _: ["cluster"])
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    batches = [batch for one in reader.partitions(start, end) for batch in reader.read(one)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == 30
    assert {row["value"] for row in rows} == {None}
