"""Exports a topic to a table: ``spark-submit --py-files skylark.zip spark_connector/jobs/export_topic.py --help``.

The messages come from the segments that brokers have uploaded; no broker is asked. Started again, the job goes on where
the table ends (tables.py), so it may be killed at any point, and run each hour.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import click
from pyspark.sql import SparkSession

from skylark.mqcommon.errors import UserError
from skylark.spark_connector import register
from skylark.spark_connector.jobs.session import named_values, session
from skylark.spark_connector.jobs.tables import DELTA, ICEBERG, PARQUET, Table, check_target, table_of
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.options.read import FAIL, ReadOptions
from skylark.spark_connector.reading.pulling import when_back
from skylark.spark_connector.tier.cutting import ranges_in, rows_of
from skylark.spark_connector.tier.directory import TierSet, open_tier

#: Segments of the log in one commit, by default; with files of 1 GiB, a commit reads 64 GiB of a broker's log at most.
SEGMENTS = 64
_GO_ON = "To go on: --option onDataLoss=skip"


@dataclass(frozen=True)
class Exported:
    """What one run of the job has exported of one broker. ``start``, ``end``: offsets in the broker's log."""

    broker: str
    start: int
    end: int
    messages: int


@click.command()
@click.option("--tier-path", required=True, help="The brokers' tierPath: s3://bucket/prefix, file:///directory, ...")
@click.option("--set", "sets", default="", help="Names of brokers, separated by commas [default: all that are there].")
@click.option("--topic", required=True, help="The topic to export.")
@click.option("--to", "target", required=True, help="The table: a directory or URL, or a name in a catalog.")
@click.option(
    "--format", "kind", type=click.Choice([PARQUET, DELTA, ICEBERG]), default=PARQUET, show_default=True,
    help="The kind of table.",
)  # fmt: skip
@click.option(
    "--segments", type=click.IntRange(min=1), default=SEGMENTS, show_default=True,
    help="Most segments (files of a broker's log) in one commit.",
)  # fmt: skip
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", callback=named_values,
    help="An option of the read: valueFormat=json, includeProperties=true, onDataLoss=skip, ...; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    tier_path: str, sets: str, topic: str, target: str, kind: str, segments: int, options: dict[str, str], as_json: bool
) -> None:
    """Export a topic's messages from object storage to a table; started again, go on where the table ends."""
    given = {**options, "tierPath": tier_path, "tierSet": sets, "topic": topic}
    with session(f"export {topic}") as spark:
        check_target(kind, target)
        found = list(export(spark, given, table_of(spark, kind, target, topic), segments))
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=1))
    else:
        click.echo(f"{sum(one.messages for one in found)} messages exported to {target}")


def export(spark: SparkSession, given: dict[str, str], table: Table, segments: int) -> Iterator[Exported]:
    """Append to ``table`` the messages that it lacks; yields one result for each broker."""
    register(spark)
    options = ReadOptions.parse(given)
    if len(options.topics) != 1 or options.assign or options.topic_pattern:
        raise UserError("--topic: one topic is exported at a time; run the job once for each topic")
    if limits := [name for name in given if name.lower().startswith(("starting", "ending"))]:
        raise UserError(
            f"--option {limits[0]}: an export goes on where the table ends, and has all messages after that"
        )
    with open_tier(options) as tier:
        # Raises if the bucket has nothing of the topic.
        when_back(lambda: tier.topic_queues(options.topics[0]), options.broker_wait_ms)
        for one in when_back(lambda: tier.sets_of(options.topics[0]), options.broker_wait_ms):
            yield _export_set(spark, given, options, table, one, segments)


class _Part(NamedTuple):
    """The ``ranges`` of a broker in one commit: of the segments before segment ``number``, which begins at ``end``."""

    number: int
    end: int
    ranges: Sequence[OffsetRange]


def _export_set(
    spark: SparkSession, given: dict[str, str], options: ReadOptions, table: Table, one: TierSet, most: int
) -> Exported:
    position = table.position(one.folder)
    first = when_back(lambda: _first(one, options, position), options.broker_wait_ms)
    start = one.bytes_of(first)[0] if first < len(one) else one.bytes_of(first - 1)[1]
    parts = when_back(lambda: _parts(one, options.topics[0], first, most), options.broker_wait_ms)
    messages, known_to = 0, start
    # A queue that is new in the bucket by now is left for the next run.
    others = {name: text for name, text in given.items() if name != "topic"}
    for part in parts:
        if part.ranges:
            read = {**others, **_chosen(part.ranges), "tierSet": one.name}
            table.append(spark.read.format("rocketmq").options(**read).load(), one.folder, known_to, part.end)
            messages, known_to = messages + rows_of(part.ranges), part.end
        click.echo(f"{one.name}: {part.number - first} of {len(one) - first} segments, {messages} messages", err=True)
    end = parts[-1].end if parts else start
    if known_to < end:
        table.skip(one.folder, known_to, end)
    return Exported(one.name, start, end, messages)


def _parts(one: TierSet, topic: str, first: int, most: int) -> list[_Part]:
    """The commits from segment number ``first`` on, of ``most`` segments each."""
    whole = one.whole(topic)
    ends = [min(low + most, len(one)) for low in range(first, len(one), most)]
    return [
        _Part(high, one.bytes_of(high - 1)[1], ranges_in(whole, low, high, one))
        for low, high in zip([first, *ends], ends, strict=False)
    ]


def _first(one: TierSet, options: ReadOptions, position: int | None) -> int:
    """The number of the first segment that the table lacks."""
    if position is None:
        return 0
    begin, end = one.bytes_of(0)[0], one.bytes_of(len(one) - 1)[1]
    known = f"the table has broker {one.name} up to byte {position} of its log"
    fails = options.when_lost == FAIL
    if position < begin and fails:
        raise UserError(
            f"{known}, and the bucket begins at byte {begin}: what lies between was removed before it was exported."
            f" {_GO_ON}"
        )
    number = bisect_left(range(len(one)), position, key=lambda number: one.bytes_of(number)[0])
    if position > end or (number and one.bytes_of(number - 1)[1] != position):
        raise UserError(
            f"{known}, and no segment of the bucket, which ends at byte {end}, ends there: it is not the bucket from"
            " which the table was made"
        )
    if fails and number < len(one):
        for queue, low, *_ in one.whole(options.topics[0]):
            if (since := one.stored_since(number, queue)) < low:
                raise UserError(
                    f"{known}, and retention has removed the messages {since} to {low - 1} of queue {queue.queue_id}"
                    f" since, before they were exported. {_GO_ON}"
                )
    return number


def _chosen(ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """The options that limit a read to ``ranges`` of one topic and broker."""
    topic, broker, _ = ranges[0].queue
    starts = {str(one.queue.queue_id): one.start for one in ranges}
    ends = {str(one.queue.queue_id): one.end for one in ranges}
    return {
        "assign": json.dumps({topic: {broker: [one.queue.queue_id for one in ranges]}}),
        "startingOffsets": json.dumps({topic: {broker: starts}}),
        "endingOffsets": json.dumps({topic: {broker: ends}}),
    }


if __name__ == "__main__":
    main()
