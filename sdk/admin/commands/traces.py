"""The command that shows what became of a message, from the records in a trace topic."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import UserError
from mqcommon.names import TRACE_TOPIC
from sdk.admin.command import command
from sdk.admin.commands.messages import LONG_MAX
from sdk.admin.params import option, time_option
from sdk.admin.render import Row, Table, seconds_text, visible
from sdk.admin.session import Session

if TYPE_CHECKING:
    from sdk.traces.records import Step

FAMILY = "Message traces"

_FORMAT = "%-10s %-20s %-20s %-20s %-10s %-10s"
_COLUMNS = {"SendTime": "ProducerGroup", "ConsumerTime": "ConsumerGroup"}


def _table(time: str) -> Table:
    columns = (
        ("#Type", "type"), (f"#{_COLUMNS[time]}", "group"), ("#ClientHost", "clientHost"), (f"#{time}", "time"),
        ("#CostTimes", "cost"), ("#Status", "status"),
    )  # fmt: skip
    return Table(columns, _FORMAT)


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """RocketMQ's tables: one for what producers did, and one for each group that consumed."""
    shown = [
        {
            "type": row["type"],
            "group": visible(row["group"]),
            "clientHost": visible(row["clientHost"]),
            "time": seconds_text(row["timestamp"]),
            "cost": "-" if row["costTime"] is None else f"{row['costTime']}ms",
            "status": visible(row["status"]),
        }
        for row in rows
    ]
    sent = [row for row in shown if row["type"] != "Sub"]
    if sent:
        yield from _table("SendTime").lines(sent)
        yield ""
    for group in dict.fromkeys(row["group"] for row in shown if row["type"] == "Sub"):
        yield from _table("ConsumerTime").lines(row for row in shown if row["type"] == "Sub" and row["group"] == group)
        yield ""


@command(
    "queryMsgTraceById",
    option("i", "msgId", "Message Id", required=True),
    option("t", "traceTopic", "The name value of message trace topic", default=TRACE_TOPIC, show_default=True),
    time_option("b", "beginTimestamp", "Begin timestamp", default=0),
    time_option("e", "endTimestamp", "End timestamp", default=LONG_MAX),
    option(
        "num",
        "maxNum",
        "The maximum number of trace messages returned by the query",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
    ),
    show=_lines,
)
async def query_msg_trace_by_id(
    session: Session, msg_id: str, trace_topic: str, begin_timestamp: int, end_timestamp: int, max_num: int
) -> list[dict[str, Any]]:
    """Show who sent and who consumed a message, when, how long it took and how it ended.

    The message id is the producer's unique key. Clients write the trace when it is on: Skylark's with trace=True.
    """
    from sdk.traces.records import decode_records, timeline

    found = await session.admin.query_message_by_key(trace_topic, msg_id, max_num, begin_timestamp, end_timestamp)
    records = [
        (record, message.born_host.rpartition(":")[0])
        for message in found
        for record in decode_records(message.body.decode("utf-8", "replace"))
    ]
    steps = timeline(msg_id, records)
    if not steps:
        session.fail(
            UserError(f"topic {trace_topic} has no trace of {msg_id}; check the id and -t, and that clients trace")
        )
    return [_row(step) for step in steps]


def _row(step: "Step") -> dict[str, Any]:
    record = step.record
    details = {
        "regionId": record.region,
        "topic": record.topic,
        "tags": record.tags,
        "keys": record.keys,
        "storeHost": record.store_host,
        "offSetMsgId": record.offset_msg_id,
        "bodyLength": record.body_length,
        "msgType": record.message_type,
        "requestId": record.request_id,
        "retryTimes": record.retry_times,
        "contextCode": record.context_code,
        "transactionId": record.transaction_id,
        "transactionState": record.transaction_state,
        "fromTransactionCheck": record.from_check,
    }
    return {
        "type": step.kind,
        "msgId": record.msg_id,
        "group": step.group,
        "clientHost": step.client_host,
        "timestamp": step.timestamp_ms,
        "costTime": step.cost_ms,
        "status": step.status,
        **{name: value for name, value in details.items() if value is not None},
    }


COMMANDS = (query_msg_trace_by_id,)
