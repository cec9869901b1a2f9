"""Real Spark reads a bucket without a broker, and exports a topic: what only the whole chain can show."""

import json
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from skylark.mqcommon.tier.opening import open_bucket
from skylark.spark_connector.jobs import export_topic, tables
from tests.spark_connector.tier.tiers import sent, writer
from tests.support.tier_segments import TierWriter

pytestmark = pytest.mark.spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return (tmp_path / "bucket").as_uri()


def broker(url: str, name: str = "broker-a") -> TierWriter:
    return writer(open_bucket(url, timeout_s=10), name)


def add(to: TierWriter, first: int, count: int = 20) -> None:
    """A segment with ``count`` messages in each of two queues."""
    to.add([one for queue_id in range(2) for one in sent("t", queue_id, range(first, first + count))])


def test_a_topic_in_a_bucket_becomes_parquet(
    spark: SparkSession, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One read, and one write: each costs Spark some new processes."""
    add(broker(url), 0)
    target, given = str(tmp_path / "table"), {"tierPath": url, "topic": "t", "maxTasks": "1"}
    table = tables.table_of(spark, "parquet", target, "t")
    # A run that was killed has left it, when the bucket began elsewhere.
    left = tmp_path / "table" / "broker=broker-a" / f"start={77:020}"
    left.mkdir(parents=True)
    (left / "half.parquet").write_bytes(b"PAR1")
    (found,) = export_topic.export(spark, given, table, 64)
    assert found.messages == 40
    assert not left.exists()
    rows = pq.read_table(target).to_pylist()
    assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [(n // 20, n % 20) for n in range(40)]
    assert table.position("broker-a") == found.end > 0
    assert "broker-a: 1 of 1 segments, 40 messages" in capsys.readouterr().err


@pytest.mark.nightly
def test_batches_and_streams_of_a_bucket(spark: SparkSession, url: str, tmp_path: Path) -> None:
    a = broker(url)
    add(a, 0)
    add(broker(url, "broker-b"), 0)
    given = {"tierPath": url, "topic": "t"}
    frame = spark.read.format("rocketmq").options(**given).load()
    counts = frame.selectExpr("count(*)", "count(distinct brokerName, queueId, queueOffset)").collect()
    assert [tuple(row) for row in counts] == [(80, 80)]
    assert spark.read.format("rocketmq").options(**given, tierSet="broker-b").load().count() == 40
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").options(**{**given, "topic": "x"}).load().collect()
    assert "has no messages of topic x in the segments of broker-a, broker-b; it has t" in str(caught.value)

    def run() -> int:
        rows = spark.readStream.format("rocketmq").options(**given, startingOffsets="earliest").load()
        sink = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        return spark.read.parquet(str(tmp_path / "rows")).count()

    assert run() == 80
    add(a, 20)
    assert run() == 120


@pytest.mark.nightly
def test_an_export_goes_on_and_a_killed_one_leaves_no_row_twice(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A job takes the session that is there, and ends it: the other tests need it.
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    target = str(tmp_path / "table")
    a = broker(url)
    for first in (0, 20, 40):
        add(a, first)

    def export(*more: str) -> list[dict[str, Any]]:
        given = ["--tier-path", url, "--topic", "t", "--to", target, "--segments", "2", "--json", *more]
        export_topic.main.main(given, standalone_mode=False)
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    def exported() -> list[tuple[int, int]]:
        rows = spark.read.parquet(target).select("queueId", "queueOffset").collect()
        return sorted((row[0], row[1]) for row in rows)

    class Killed(BaseException):
        pass

    def append_half(table: tables.ParquetFiles, rows: DataFrame, broker: str, start: int, end: int) -> None:
        rows.write.parquet(f"{target}/broker={broker}/start={start:020}")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(tables.ParquetFiles, "append", append_half)
        with pytest.raises(Killed):
            export()
    # With other portions, as the option may be changed.
    assert [one["messages"] for one in export("--segments", "1")] == [120]
    everything = [(queue, offset) for queue in range(2) for offset in range(60)]
    assert exported() == everything
    assert [one["messages"] for one in export()] == [0]
    add(a, 60)
    assert [one["messages"] for one in export("--segments", "64")] == [40]
    assert exported() == [(queue, offset) for queue in range(2) for offset in range(80)]

    with pytest.raises(click.ClickException, match=r"--to .*: topic t has been exported there"):
        export_topic.main.main(["--tier-path", url, "--topic", "u", "--to", target], standalone_mode=False)
    # The oldest segments were removed from the bucket before a second table had them.
    target = str(tmp_path / "other")
    export()
    kept = a.manifest.segments[-1]
    add(a, 80)
    add(a, 100)
    newest = a.manifest.segments[-1]
    assert newest.start > kept.end
    a.change(a.manifest.successor(9_000).with_segments_changed([newest], [kept.folder]))
    with pytest.raises(click.ClickException, match=r"was removed before it was exported\. To go on"):
        export()
    assert [one["messages"] for one in export("--option", "onDataLoss=skip")] == [40]
    with pytest.raises(click.ClickException, match="--option startingOffsets: an export goes on where the table ends"):
        export("--option", "startingOffsets=latest")
