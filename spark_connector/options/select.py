"""Options that choose what is read: topics by pattern, single queues, times, filters, and the style of the columns.

Names of Kafka's source and of rocketmq-spark are accepted where the meaning is the same: `ALIASES`.
Neighbours: reading/choosing.py (topics and queues), reading/planning.py (times), read.py (`ReadOptions` has these).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mqcommon.errors import InvalidArgument, UserError
from mqcommon.message.queue import MessageQueue
from mqcommon.options.fields import option
from sdk.consumer.expression import Sql, subscription_to
from spark_connector.schema import EXTERNALS, KAFKA, ROCKETMQ

TAG, SQL92 = "TAG", "SQL92"
TIMES_LIKE = '{"topic":{"broker":{"0":1700000000000}}}'
QUEUES_LIKE = '{"topic":{"broker":[0,1]}}'

# Lower-case names of other sources, and ours.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "subscribe": "topic",
        "subscribepattern": "topicpattern",
        "includeheaders": "includeproperties",
        "kafka.group.id": "consumergroup",
        "kafkaconsumer.polltimeoutms": "pulltimeoutms",
        "fetchoffset.numretries": "numretries",
        "fetchoffset.retryintervalms": "retryintervalms",
        "group": "consumergroup",
        "consumer.group": "consumergroup",
        "consumer.topic": "topic",
        "consumer.tag": "subexpression",
        "pull.max.batch.size": "pullbatchsize",
        "pull.timeout.ms": "pulltimeoutms",
    }
)


@dataclass(frozen=True)
class SelectOptions:
    """What is read; the fields of `ReadOptions` for that."""

    topic_pattern: str = option(
        "", "instead of `topic`: a regular expression for whole names of topics; it never matches system topics"
    )
    assign: str = option("", f"instead of `topic`: queues to read, JSON like `{QUEUES_LIKE}`")
    sub_expression: str = option(
        "*", "read only messages with this tag or one of these tags, or with SQL92 a condition"
    )
    expression_type: str = option(TAG, "what `subExpression` is: TAG or SQL92", choices=(TAG, SQL92))
    starting_offsets_by_timestamp: str = option(
        "", f"start times, queue by queue (overrides startingOffsets): JSON like `{TIMES_LIKE}`"
    )
    starting_offsets_by_timestamp_strategy: str = option(
        "latest",
        "a queue without messages since its start time: `latest` reads none of it, `error` fails",
        choices=("latest", "error"),
    )
    ending_timestamp: int = option(
        -1, "end before the first message stored at or after it (overrides endingOffsets; -1: not used)", unit="ms"
    )
    ending_offsets_by_timestamp: str = option("", "end times, queue by queue (overrides endingOffsets): JSON as above")
    schema_style: str = option(
        ROCKETMQ, "columns: `rocketmq`, `kafka` or `externals` (rocketmq-spark's)", choices=(ROCKETMQ, KAFKA, EXTERNALS)
    )
    pushdown: bool = option(
        False, "filters of the query narrow what is read; needs spark.sql.python.filterPushdown.enabled=true"
    )

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues of ``assign``."""
        return tuple(_queues_in(self.assign, "assign", QUEUES_LIKE, _listed_queues)) if self.assign else ()

    @property
    def start_times(self) -> Mapping[MessageQueue, int]:
        """The start time of each queue; empty when none is given."""
        return _times(self.starting_offsets_by_timestamp, "startingOffsetsByTimestamp")

    @property
    def end_times(self) -> Mapping[MessageQueue, int]:
        """The end time of each queue; empty when none is given."""
        return _times(self.ending_offsets_by_timestamp, "endingOffsetsByTimestamp")

    @property
    def expression(self) -> str | Sql:
        """The filter, as consumers take it."""
        return Sql(self.sub_expression) if self.expression_type == SQL92 else self.sub_expression

    @property
    def tags(self) -> frozenset[str]:
        """The tags that are read; empty when the filter is none or an SQL92 condition."""
        return frozenset(subscription_to("", self.expression).tags_set) if self.expression_type == TAG else frozenset()

    @property
    def filters(self) -> bool:
        """Whether brokers leave out messages."""
        return self.expression_type == SQL92 or bool(self.tags)

    def check_selection(self, topic: str) -> None:
        """Raise UserError unless exactly one of topic, pattern and assignment is given, and all can be read."""
        given = {"topic": topic.strip(" ,"), "topicPattern": self.topic_pattern, "assign": self.assign}
        named = [name for name, text in given.items() if text]
        if not named:
            raise UserError(
                'no topic is given; use .option("topic", "name"), or several names separated by commas;'
                " or topicPattern, or assign"
            )
        if len(named) > 1:
            raise UserError(f"options {' and '.join(named)} exclude each other; give one of them")
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise UserError(f"option topicPattern: {self.topic_pattern!r} is no regular expression: {error}") from None
        if self.assign and not self.assigned:
            raise UserError(f"option assign: no queue is named; give JSON like {QUEUES_LIKE}")
        self._check_filter()
        for times in (self.start_times, self.end_times):
            for queue, time_ms in times.items():
                if time_ms < 0:
                    raise UserError(f"the time {time_ms} of {queue} is negative; give milliseconds since 1970")

    def _check_filter(self) -> None:
        try:
            found = self.tags
            _ = self.expression
        except InvalidArgument as error:
            raise UserError(f"option subExpression: {error}") from None
        except ValueError as error:
            raise UserError(f"option subExpression: {error}; give *, or tags separated by ||") from None
        if self.expression_type == TAG and any(re.search(r"[=<>'()]|\s", tag) for tag in found):
            raise UserError(
                f"option subExpression: {self.sub_expression!r} has no form of tags; for an SQL92 condition set"
                " expressionType=SQL92"
            )


def _times(text: str, name: str) -> Mapping[MessageQueue, int]:
    return dict(_queues_in(text, name, TIMES_LIKE, _timed_queues)) if text else {}


def _queues_in(text: str, name: str, like: str, leaves: Callable[[str, str, Any], list[Any]]) -> list[Any]:
    """What ``leaves`` makes of each topic, broker and the value below them."""
    try:
        tree = json.loads(text)
        return [
            leaf
            for topic, brokers in tree.items()
            for broker, below in brokers.items()
            for leaf in leaves(topic, broker, below)
        ]
    except (AttributeError, TypeError, ValueError):  # ValueError: no JSON, or no numbers
        raise UserError(f"option {name}: {text!r} has the wrong structure; give JSON like {like}") from None


def _listed_queues(topic: str, broker: str, below: Any) -> list[MessageQueue]:
    if not isinstance(below, list) or any(type(queue_id) is not int or queue_id < 0 for queue_id in below):
        raise ValueError
    return [MessageQueue(topic, broker, queue_id) for queue_id in dict.fromkeys(below)]


def _timed_queues(topic: str, broker: str, below: Any) -> list[tuple[MessageQueue, int]]:
    if any(type(time_ms) is not int for time_ms in below.values()):
        raise ValueError
    return [(MessageQueue(topic, broker, int(queue_id)), time_ms) for queue_id, time_ms in below.items()]
