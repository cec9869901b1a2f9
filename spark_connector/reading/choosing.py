"""Which topics and queues are read: by pattern, by assignment. Pure, except for `list_topics` and `list_clusters`."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mqcommon.errors import UserError
from mqcommon.message.queue import MessageQueue
from mqcommon.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from spark_connector.options.read import ReadOptions
from spark_connector.schema import KAFKA, MAX_QUEUES, partition_number

if TYPE_CHECKING:
    from sdk.blocking import Admin


def with_topics(options: ReadOptions, list_topics: Callable[[ReadOptions], Iterable[str]]) -> ReadOptions:
    """The options with the topics that the pattern matches now, in place of the pattern."""
    if not options.topic_pattern:
        return options
    found = matching(options.topic_pattern, list_topics(options))
    if not found:
        raise UserError(f"option topicPattern: no topic of the cluster matches {options.topic_pattern!r}")
    return replace(options, topic=",".join(found), topic_pattern="")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The topics whose whole name matches, sorted. Retry and dead-letter topics are read by name only."""
    fits = re.compile(pattern).fullmatch
    own = (RETRY_PREFIX, DLQ_PREFIX)
    return sorted(name for name in set(names) if fits(name) and not is_system_topic(name) and not name.startswith(own))


def chosen(queues: Sequence[MessageQueue], options: ReadOptions) -> list[MessageQueue]:
    """Of the topics' queues those that are to be read; UserError when an assigned one does not exist."""
    wanted = set(options.assigned)
    unknown = sorted(wanted.difference(queues))
    if unknown:
        raise UserError(f"option assign names {_names(unknown)}, which no broker has; queues: {_names(queues)}")
    found = [queue for queue in queues if is_chosen(queue, options)]
    check_numbers(found, options)
    return found


def is_chosen(queue: MessageQueue, options: ReadOptions) -> bool:
    """Whether the options choose ``queue``, if it exists."""
    if options.assign:
        return queue in options.assigned
    if options.topic_pattern:
        return bool(matching(options.topic_pattern, [queue.topic]))
    return queue.topic in options.topics


def check_numbers(queues: Iterable[MessageQueue], options: ReadOptions) -> None:
    """Raise UserError when the columns need partition numbers, and two queues would get the same."""
    if options.schema_style == KAFKA:
        check_partition_numbers(queues)


def check_partition_numbers(queues: Iterable[MessageQueue]) -> None:
    """Raise UserError unless the queues of each topic have different partition numbers."""
    owners: dict[tuple[str, int], MessageQueue] = {}
    for queue in queues:
        if queue.queue_id >= MAX_QUEUES:
            raise UserError(
                f"schemaStyle=kafka cannot number queue {queue.queue_id} of topic {queue.topic}: it has room for"
                f" {MAX_QUEUES} queues of a broker; use schemaStyle=rocketmq"
            )
        owner = owners.setdefault((queue.topic, partition_number(queue.broker_name, queue.queue_id)), queue)
        if owner.broker_name != queue.broker_name:
            raise UserError(
                f"schemaStyle=kafka gives queues of brokers {owner.broker_name} and {queue.broker_name} the same"
                " partition numbers; read the brokers one by one with option assign, or use schemaStyle=rocketmq"
            )


def list_topics(options: ReadOptions) -> list[str]:
    """The topics of the cluster, without those that are named after clusters and brokers."""
    with _admin(options) as admin:
        return sorted(set(admin.topic_list()).difference(admin.system_topics()))


def list_clusters(options: ReadOptions) -> list[str]:
    """The names of the clusters that have the topics."""
    with _admin(options) as admin:
        return sorted({data.cluster for topic in options.topics for data in admin.topic_route(topic).broker_datas})


def _admin(options: ReadOptions) -> "Admin":
    from sdk.blocking import Admin

    return Admin(
        options.nameserver or None,
        timeout_ms=options.pull_timeout_ms,
        credentials=options.credentials,
        tls=options.encryption,
    )


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(f"{topic} {broker} {queue}" for topic, broker, queue in queues)
