"""Copies a topic to another cluster: ``spark-submit --py-files skylark.zip spark_connector/jobs/copy_topic.py --help``.

One task copies one queue. The plan and the results are in the progress directory of the driver; started again with the
same directory, the job goes on, also with queues that the topic has got since. The exit code is 0 only when all brokers
of both topics are present, and all queues agree in count and CRC.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path

import click

from skylark.mqcommon.disk.atomic import remove_all_leftovers, write_atomic
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.jobs.copying import (
    GROUP,
    Bounds,
    QueueCopy,
    QueueResult,
    grown,
    plan_text,
    read_plan,
    run_copy,
)
from skylark.spark_connector.jobs.session import CONNECTION, EXAMPLES, session
from skylark.spark_connector.options.connection import ConnectionOptions
from skylark.spark_connector.reading.pulling import BrokersMissing
from skylark.spark_connector.reading.whole import find_queues

PLAN = "plan.json"
# How often NameServers are asked again for missing brokers: a NameServer that was just restarted soon learns of them.
RETRIES = 3
RETRY_INTERVAL_MS = 200


@click.command()
@click.option("--from-nameserver", required=True, help="NameServers of the cluster that is read.")
@click.option("--topic", required=True, help="The topic to copy.")
@click.option("--from-brokers", default="", help="Names, separated by commas: brokers that must have the topic.")
@click.option("--to-nameserver", required=True, help="NameServers of the cluster that is written.")
@click.option("--to-topic", help="The topic there, which must exist [default: the same name].")
@click.option(
    "--progress", required=True, type=click.Path(path_type=Path), help="Directory of the driver to resume by."
)
@click.option("--from-option", "from_options", **CONNECTION, help=f"Of the connection to the source: {EXAMPLES}.")
@click.option("--to-option", "to_options", **CONNECTION, help="The same for the target.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    from_nameserver: str,
    topic: str,
    from_brokers: str,
    to_nameserver: str,
    to_topic: str | None,
    progress: Path,
    from_options: dict[str, str],
    to_options: dict[str, str],
    as_json: bool,
) -> None:
    """Copy a topic to another cluster, queue by queue, in order; started again, it goes on."""
    with session(f"copy {topic}") as spark:
        source = ConnectionOptions.parse({**from_options, "nameserver": from_nameserver})
        target = ConnectionOptions.parse({**to_options, "nameserver": to_nameserver})
        what = {"from": from_nameserver, "topic": topic, "to": to_nameserver, "toTopic": to_topic or topic}
        required = [name.strip() for name in from_brokers.split(",") if name.strip()]
        copies = _planned(progress, what, source, target, required)
        # Results of queues that an earlier run has finished are on disk; the others are copied again, each from where
        # its target queue ends.
        done = {n: _result(progress, n) for n in range(len(copies)) if _file(progress, n).exists()}
        rest = [(n, copy) for n, copy in enumerate(copies) if n not in done]
        if rest:

            def run(part: Iterable[tuple[int, QueueCopy]]) -> Iterable[tuple[int, QueueResult]]:
                return ((number, run_copy(copy, source, target)) for number, copy in part)

            tasks = spark.sparkContext.parallelize(rest, len(rest)).mapPartitions(run)
            for number, result in tasks.collect():
                done[number] = result
                if result.is_right:
                    _write(_file(progress, number), json.dumps(asdict(result)))
    results = [done[n] for n in sorted(done)]
    click.echo(json.dumps([asdict(one) for one in results], indent=1) if as_json else _table(results))
    if wrong := [one.source for one in results if not one.is_right]:
        raise click.ClickException(f"these queues differ from their copies: {', '.join(wrong)}")


def _planned(
    progress: Path,
    what: dict[str, str],
    source: ConnectionOptions,
    target: ConnectionOptions,
    required: Collection[str],
) -> list[QueueCopy]:
    """The plan of an earlier run, with queues that the topic got since; a plan is on disk before anything is sent."""
    remove_all_leftovers(OsFiles(), str(progress))
    # Also checked when the copy is done: half a topic, with a broker away, must not pass for the whole topic.
    ours, theirs = _bounds(source, what["topic"], required), _bounds(target, what["toTopic"], ())
    before = []
    if (progress / PLAN).exists():
        before = read_plan((progress / PLAN).read_text(encoding="utf-8"), what)
    copies = grown(before, ours, theirs)
    if copies != before:
        progress.mkdir(parents=True, exist_ok=True)
        _write(progress / PLAN, plan_text(what, copies))
    return copies


def _bounds(options: ConnectionOptions, topic: str, required: Collection[str]) -> dict[MessageQueue, Bounds]:
    """Where each queue begins and ends; BrokersMissing when a broker of the topic is away."""
    from skylark.sdk.blocking import PullConsumer

    with PullConsumer(**options.client, group=GROUP, heartbeat=False) as consumer:
        queues, missing = find_queues(consumer, [topic], required, RETRIES, RETRY_INTERVAL_MS)
        if missing:
            raise BrokersMissing(
                f"{missing}. Nothing was copied: start the broker, and run this again with the same --progress; or, if"
                " the broker is gone for good: mqadmin forgetBroker"
            )
        return {queue: Bounds(consumer.min_offset(queue), consumer.max_offset(queue)) for queue in queues}


def _file(progress: Path, number: int) -> Path:
    return progress / f"queue-{number}.json"


def _result(progress: Path, number: int) -> QueueResult:
    return QueueResult(**json.loads(_file(progress, number).read_text(encoding="utf-8")))


def _write(path: Path, text: str) -> None:
    write_atomic(OsFiles(), str(path), text.encode())


def _table(results: list[QueueResult]) -> str:
    head = f"{'queue':<40} {'to':<40} {'messages':>10} {'copied now':>10} {'crc':>8}  same"
    rows = [
        f"{one.source:<40} {one.target:<40} {one.target_count:>10} {one.copied:>10} {one.target_crc:08x} "
        f" {'yes' if one.is_right else 'NO'}"
        for one in results
    ]
    return "\n".join([head, *rows])


if __name__ == "__main__":
    main()
