"""An export that is killed and run again, while segments come, gives each message once."""

import json
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import DataFrame, SparkSession

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.tier.bucket import BucketAway
from skylark.spark_connector.jobs import export_topic
from skylark.spark_connector.jobs.export_topic import export
from skylark.spark_connector.jobs.tables import check_target, table_of
from tests.spark_connector.tier.tiers import CountingBucket, bucket, opened_as, places, read, sent, writer

__all__ = ["bucket"]


class Killed(Exception):
    pass


class Reading:
    """What an export calls of a session to read; a frame is a list of rows."""

    def __init__(self) -> None:
        self.read = self
        self._given: dict[str, str] = {}

    def format(self, name: str) -> "Reading":
        assert name == "rocketmq"
        return self

    def options(self, **given: str) -> "Reading":
        self._given = given
        return self

    def load(self) -> list[dict[str, Any]]:
        return read(**self._given)


class MemoryTable:
    """A table whose `append` is whole or nothing. ``kills``: whether each next call dies, before or after that."""

    def __init__(self, kills: list[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.positions: dict[str, int] = {}
        self.appends: list[tuple[int, int]] = []
        self._kills = kills

    def position(self, broker: str) -> int | None:
        return self.positions.get(broker)

    def skip(self, broker: str, start: int, end: int) -> None:
        assert self.positions.get(broker, start) <= start
        self.positions[broker] = end

    def append(self, rows: DataFrame, broker: str, start: int, end: int) -> None:
        assert self.positions.get(broker, start) <= start
        kill = self._kills.pop() if self._kills else ""
        if kill == "before":
            raise Killed
        self.rows += cast("list[dict[str, Any]]", rows)
        self.positions[broker] = end
        self.appends.append((start, end))
        if kill:
            raise Killed


def run(table: MemoryTable, monkeypatch: pytest.MonkeyPatch, segments: int = 64, **given: str) -> list[int]:
    """The messages of each broker that a run has exported."""
    monkeypatch.setattr(export_topic, "register", lambda spark: None)
    options = {"tierPath": "file:///b", "topic": "t", **given}
    return [one.messages for one in export(cast("SparkSession", Reading()), options, table, segments)]


def run_to_the_end(table: MemoryTable, monkeypatch: pytest.MonkeyPatch, segments: int) -> list[int]:
    """Run an export again until none dies."""
    while True:
        with suppress(Killed):
            return run(table, monkeypatch, segments)


@settings(max_examples=max(8, settings.default.max_examples // 12))
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=8),
    st.lists(st.sampled_from(["before", "after", ""]), max_size=4),
)
def test_each_message_is_exported_once(turns: list[tuple[int, int, int]], kills: list[str]) -> None:
    made, table = CountingBucket(), MemoryTable(kills)
    ends = {"broker-a": 0, "broker-b": 0}
    with pytest.MonkeyPatch.context() as patch:
        opened_as(patch, made)
        writers = {name: writer(made, name) for name in ends}
        for turn, (*counts, segments) in enumerate(turns):
            for (name, writing), count in zip(writers.items(), counts, strict=True):
                ours = sent("t", 0, range(ends[name], ends[name] + count))
                writing.add([*ours, *sent("u", 0, range(turn, turn + 1))])
                ends[name] += count
            if any(ends.values()):
                with suppress(Killed):
                    run(table, patch, segments)
        if any(ends.values()):
            run_to_the_end(table, patch, 2)
            assert not any(run(table, patch))
    assert sorted(places(table.rows)) == [("t", name, 0, at) for name, end in ends.items() for at in range(end)]


def test_a_run_has_several_segments(bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made, table = writer(bucket), MemoryTable([])
    ends = [made.add(sent("t", 0, range(at, at + 10))).end for at in range(0, 70, 10)]
    assert run(table, monkeypatch, segments=3) == [70]
    assert table.appends == [(0, ends[2]), (ends[2], ends[5]), (ends[5], ends[6])]


def test_what_was_removed_before_its_export_is_said(bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made, table = writer(bucket), MemoryTable([])
    made.add(sent("t", 0, range(10)))
    run(table, monkeypatch)
    made.add(sent("t", 0, range(10, 20)))
    last = made.add(sent("t", 0, range(20, 30)))
    made.change(made.manifest.successor(9_000).with_segments_changed([last]))
    with pytest.raises(UserError, match="has no messages of topic x"):
        run(table, monkeypatch, topic="x")
    with pytest.raises(UserError, match=r"was removed before it was exported\. To go on: --option onDataLoss=skip"):
        run(table, monkeypatch)
    assert run(table, monkeypatch, onDataLoss="skip") == [10]
    for wrong in (1, -1):
        table.positions["broker-a"] = last.end + wrong
        with pytest.raises(UserError, match="it is not the bucket from which the table was made"):
            run(table, monkeypatch)


def test_what_retention_removed_of_the_topic_alone_is_said(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, table = writer(bucket), MemoryTable([])
    made.add(sent("t", 0, range(10)))
    run(table, monkeypatch)
    # A queue that begins with another offset than 0 has lost nothing since.
    made.add([*sent("t", 0, range(10, 20)), *sent("t", 1, range(500, 510))])
    last = made.add([*sent("t", 0, range(20, 30)), *sent("t", 1, range(510, 520))])
    before = made.manifest.segments[:-1]
    made.change(
        made.manifest.successor(9_000).with_segments_changed([*(replace(each, classes=()) for each in before), last])
    )
    with pytest.raises(UserError, match=r"removed the messages 10 to 19 of queue 0 since, .*onDataLoss=skip"):
        run(table, monkeypatch)
    assert run(table, monkeypatch, onDataLoss="skip") == [20]


def test_segments_without_the_topic_are_known_to_be_done(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, table = writer(bucket), MemoryTable([])
    made.add(sent("t", 0, range(10)))
    made.add(sent("u", 0, range(10)))
    assert run(table, monkeypatch, segments=1) == [10]
    assert table.positions == {"broker-a": made.end}
    # Retention may remove them: nothing is lost.
    last = made.add(sent("u", 0, range(10, 20)))
    made.change(made.manifest.successor(9_000).with_segments_changed([last]))
    assert run(table, monkeypatch) == [0]
    end = made.end
    made.add(sent("u", 0, range(20, 30)))
    made.add(sent("t", 0, range(10, 15)))
    assert run(table, monkeypatch, segments=1) == [5]
    assert table.appends[-1] == (end, made.end)


def test_a_queue_that_is_new_meanwhile_waits_for_the_next_run(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, table = writer(bucket), MemoryTable([])
    for at in (0, 10):
        made.add(sent("t", 0, range(at, at + 10)))

    def append(rows: DataFrame, broker: str, start: int, end: int) -> None:
        MemoryTable.append(table, rows, broker, start, end)
        made.add(sent("t", len(table.appends), range(5)))

    with monkeypatch.context() as patch:
        patch.setattr(table, "append", append)
        assert run(table, patch, segments=1, discoveryIntervalMs="0") == [20]
    assert run(table, monkeypatch) == [10]


def test_a_bucket_that_is_away_is_waited_for(bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.spark_connector.reading.pulling.FIRST_PAUSE_S", 0)
    made, table = writer(bucket), MemoryTable([])
    for at in range(4):
        made.add(sent("t", 0, range(10 * at, 10 * at + 10)))
    get_range, calls = bucket.get_range, []

    def failing(name: str, start: int, size: int) -> bytes:
        calls.append(name)
        if len(calls) % 2:
            raise BucketAway("503")
        return get_range(name, start, size)

    monkeypatch.setattr(bucket, "get_range", failing)
    assert run(table, monkeypatch, brokerWaitMs="60000") == [40]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "t,u"}, "one topic is exported at a time"),
        ({"endingTimestamp": "5"}, "--option endingTimestamp: an export goes on where the table ends"),
    ],
)
def test_several_topics_or_a_limited_range_are_not_exported(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=said):
        run(MemoryTable([]), monkeypatch, **given)


def test_an_iceberg_table_has_a_name() -> None:
    check_target("iceberg", "lake.db.orders")
    with pytest.raises(UserError, match=r"an Iceberg table is named as in Spark: catalog\.database\.table"):
        check_target("iceberg", "s3://lake/orders")


# --- Delta and Iceberg: what is said to Spark, as there is neither here


class Commits:
    """A session with one table: its properties, and what its commits say of positions. ``said``: all statements."""

    def __init__(self, *, kept: dict[str, str], committed: list[Any], is_there: bool = True, delta: Any = None) -> None:
        self.kept, self.committed = kept, committed
        self.said: list[str] = []
        self.catalog = SimpleNamespace(tableExists=lambda name: is_there)
        of_delta = delta or SimpleNamespace(isDeltaTable=lambda session, path: is_there)
        self._jsparkSession = None
        self._jvm = SimpleNamespace(
            io=SimpleNamespace(delta=SimpleNamespace(tables=SimpleNamespace(DeltaTable=of_delta)))
        )

    def sql(self, text: str) -> Any:
        self.said.append(text)
        if text.startswith("SHOW TBLPROPERTIES"):
            return SimpleNamespace(collect=lambda: [{"key": key, "value": text} for key, text in self.kept.items()])
        return SimpleNamespace(collect=lambda: self.committed, select=lambda column: self.sql(""))


class Rows:
    """A frame that says what is called of it, in the session's list."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.write = self

    def __getattr__(self, name: str) -> Any:
        def called(*args: Any) -> "Rows":
            self._said.append(" ".join([name, *map(str, args)]))
            return self

        return called


KEY = "skylark.t.broker-a"


@pytest.mark.parametrize(
    ("kind", "committed"),
    [
        ("delta", [{"userMetadata": text} for text in (None, "theirs", "7", json.dumps({KEY: 400}), '{"x": 9}')]),
        ("iceberg", [{"summary": found} for found in ({}, {KEY: "400"}, {"skylark.t.broker-b": "900"})]),
    ],
)
def test_a_position_is_in_a_commit_or_in_a_property(kind: str, committed: list[Any]) -> None:
    for kept, expected in (("300", 400), ("500", 500)):
        spark = Commits(kept={KEY: kept, "other": "1"}, committed=committed)
        table = table_of(cast("SparkSession", spark), kind, "lake.db.orders", "t")
        assert table.position("broker-a") == expected
        # What only a commit had is kept in a property, since commits are forgotten.
        copied = f"ALTER TABLE lake.db.orders SET TBLPROPERTIES ('{KEY}' = '400')" in spark.said
        assert copied == (expected == 400)
        assert table.position("broker-c") is None


KEEP = "ALTER TABLE {} SET TBLPROPERTIES ('skylark.t.broker-a' = '900')"


@pytest.mark.parametrize("target", ["lake.db.orders", "s3a://lake/orders"])
def test_a_delta_commit_has_rows_and_position(target: str) -> None:
    spark = Commits(kept={}, committed=[])
    table_of(cast("SparkSession", spark), "delta", target, "t").append(
        cast("DataFrame", Rows(spark.said)), "broker-a", 0, 900
    )
    is_path = "/" in target
    assert spark.said == [
        "format delta", "mode append", 'option userMetadata {"skylark.t.broker-a": 900}',
        "option txnAppId skylark.t.broker-a", "option txnVersion 900",
        f"{'save' if is_path else 'saveAsTable'} {target}", KEEP.format(f"delta.`{target}`" if is_path else target),
    ]  # fmt: skip


@pytest.mark.parametrize("is_there", [True, False])
def test_an_iceberg_commit_has_rows_and_position(is_there: bool) -> None:
    spark = Commits(kept={}, committed=[], is_there=is_there)
    table = table_of(cast("SparkSession", spark), "iceberg", "lake.db.orders", "t")
    table.append(cast("DataFrame", Rows(spark.said)), "broker-a", 0, 900)
    made = [] if is_there else ["limit 0", "writeTo lake.db.orders", "using iceberg", "create"]
    assert spark.said == [
        *made, "writeTo lake.db.orders", "option snapshot-property.skylark.t.broker-a 900", "append",
        KEEP.format("lake.db.orders"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_has_no_message_of_the_topic_is_kept_in_a_property(kind: str) -> None:
    for is_there in (True, False):
        spark = Commits(kept={}, committed=[], is_there=is_there)
        table_of(cast("SparkSession", spark), kind, "lake.db.orders", "t").skip("broker-a", 0, 900)
        assert spark.said == ([KEEP.format("lake.db.orders")] if is_there else [])


def test_a_spark_without_delta_is_told_where_it_is() -> None:
    spark = Commits(kept={}, committed=[], delta=JavaPackage("io.delta.tables.DeltaTable", None))
    with pytest.raises(
        UserError, match=r"this Spark has no Delta Lake: give spark-submit --packages io\.delta:delta-spark"
    ):
        table_of(cast("SparkSession", spark), "delta", "lake.db.orders", "t")
