"""What the filters of a query need of the topics: queues, times and tags. Pure.

Everything here may only leave out messages that no filter would let pass: Spark applies all filters again.

Times are widened by `CLOCK_SLACK_MS`. A search by time assumes that the store times of a queue never fall. They fall
when the clock of the broker is set back; messages then lie a little outside the offsets that the search finds. Filters
are told apart by the names of their classes, which PySpark 4.0 does not have.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.options.read import TAG, ReadOptions
from skylark.spark_connector.schema import EXTERNALS, KAFKA, partition_number

CLOCK_SLACK_MS = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_EQUAL = ("EqualTo", "EqualNullSafe")
# Tags that mean the same in an expression; tags with other characters (blanks, bars) are left to Spark.
_PLAIN_TAG = re.compile(r"[A-Za-z0-9_.:/@%-]+", re.ASCII)
_STORE_TIME = {KAFKA: "timestamp"}

Values = frozenset[Any] | None  # None: any


@dataclass(frozen=True)
class Only:
    """The messages that a query needs; None allows any.

    The first five fields are allowed values of a message's topic, broker and so on. Its store time is from ``start_ms``
    to before ``end_ms`` (ms since 1970).
    """

    topics: Values = None
    brokers: Values = None
    queue_ids: Values = None
    partitions: Values = None
    tags: Values = None
    start_ms: int | None = None
    end_ms: int | None = None

    def needs(self, queue: MessageQueue) -> bool:
        """Whether a message of ``queue`` may be needed."""
        return (
            _allows(self.topics, queue.topic)
            and _allows(self.brokers, queue.broker_name)
            and _allows(self.queue_ids, queue.queue_id)
            and _allows(self.partitions, partition_number(queue.broker_name, queue.queue_id))
        )

    @property
    def search_from_ms(self) -> int | None:
        """The time at which to search for the start of the range; None: start as planned."""
        return None if self.start_ms is None else max(self.start_ms - CLOCK_SLACK_MS, 0)

    @property
    def search_to_ms(self) -> int | None:
        """The time at which to search for the end of the range; None: end as planned."""
        return None if self.end_ms is None else max(self.end_ms + CLOCK_SLACK_MS, 0)

    def with_tags(self, options: ReadOptions) -> ReadOptions:
        """The options with these tags as the filter, if they can be a filter; a filter of the user's own stays."""
        if not self.tags or options.filters or not all(_PLAIN_TAG.fullmatch(tag) for tag in self.tags):
            return options
        return replace(options, expression_type=TAG, sub_expression=" || ".join(sorted(self.tags)))


ALL = Only()


def wanted_by(filters: Iterable[Any], style: str) -> Only:
    """What a query with these filters (all of them must hold) needs; an unknown filter needs everything."""
    only = ALL
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        if len(path) == 1:
            only = _with(only, path[0], type(one).__name__, getattr(one, "value", None), style)
    return only


def _with(only: Only, column: str, kind: str, value: Any, style: str) -> Only:
    if column == _STORE_TIME.get(style, "storeTimestamp"):
        return _with_time(only, kind, value)
    name = _field(column, style)
    if name is None or (kind != "In" and kind not in _EQUAL):
        return only
    values = frozenset(value) if kind == "In" else frozenset([value])
    if any(type(one) is not (int if name in ("queue_ids", "partitions") else str) for one in values):
        return only  # null, or what Spark compares in another way
    before: Values = getattr(only, name)
    changed: dict[str, Any] = {name: values if before is None else before & values}
    return replace(only, **changed)


def _field(column: str, style: str) -> str | None:
    """The field of `Only` for a column."""
    if column == "topic":
        return "topics"
    if style == KAFKA:
        return "partitions" if column == "partition" else None
    if column == "tags":
        return None if style == EXTERNALS else "tags"
    return {"brokerName": "brokers", "queueId": "queue_ids"}.get(column)


def _with_time(only: Only, kind: str, value: Any) -> Only:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return only
    at_ms = (value - _EPOCH) // _MS  # rounded down
    if kind in ("GreaterThan", "GreaterThanOrEqual", *_EQUAL):
        only = replace(only, start_ms=at_ms if only.start_ms is None else max(only.start_ms, at_ms))
    if kind in ("LessThan", "LessThanOrEqual", *_EQUAL):
        only = replace(only, end_ms=at_ms + 1 if only.end_ms is None else min(only.end_ms, at_ms + 1))
    return only


def _allows(values: Values, value: Any) -> bool:
    return values is None or value in values
