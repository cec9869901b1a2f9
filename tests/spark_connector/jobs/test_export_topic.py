"""An export that is killed and run again, while segments come, gives each message once."""

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from skylark.mqcommon.errors import UserError
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

    def append(self, rows: DataFrame, broker: str, start: int, end: int) -> None:
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
    table.positions["broker-a"] += 1
    with pytest.raises(UserError, match="it is not the bucket from which the table was made"):
        run(table, monkeypatch)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "t,u"}, "one topic is exported at a time"),
        ({"endingTimestamp": "5"}, "--option endingTimestamp: an export goes on where the table ends"),
    ],
)
def test_mistakes(given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=said):
        run(MemoryTable([]), monkeypatch, **given)


def test_an_iceberg_table_has_a_name() -> None:
    check_target("iceberg", "lake.db.orders")
    with pytest.raises(UserError, match=r"an Iceberg table is named as in Spark: catalog\.database\.table"):
        check_target("iceberg", "s3://lake/orders")


# --- Delta and Iceberg: what is said to Spark, as there is neither here


class Commits:
    """A session with one table: its properties, and what its commits say of positions."""

    def __init__(self, *, kept: dict[str, str], committed: list[Any]) -> None:
        self.kept, self.committed = kept, committed
        self.said: list[str] = []
        self.catalog = SimpleNamespace(tableExists=lambda name: True)

    def sql(self, text: str) -> Any:
        self.said.append(text)
        if text.startswith("SHOW TBLPROPERTIES"):
            return SimpleNamespace(collect=lambda: [{"key": key, "value": text} for key, text in self.kept.items()])
        return SimpleNamespace(collect=lambda: self.committed, select=lambda column: self.sql(""))


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
