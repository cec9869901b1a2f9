"""Turns rows of an Arrow batch into messages. Pure.

Neighbours: columns.py (which columns there are), sending.py (sends the messages).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mqcommon.errors import SkylarkError
from mqcommon.message.message import Message
from mqcommon.message.properties import RESERVED
from mqcommon.message.queue import MessageQueue
from spark_connector.writing import columns
from spark_connector.writing.columns import Layout
from spark_connector.writing.row_keys import ROW

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowRefused(SkylarkError):
    """A row that cannot be a message; the text says which one, and why."""


class Place(NamedTuple):
    """What is special about a message that must be sent alone: its queue or its time, or (neither) its sharding key."""

    queue: MessageQueue | None = None
    deliver_at: datetime | None = None


@dataclass
class Lot:
    """Messages of one topic; ``places`` has the row numbers (in ``messages``) of those that must be sent alone."""

    topic: str
    messages: list[bytes | Message] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)


def lots_of(batch: pa.RecordBatch, layout: Layout, topic: str, first_row: int = 0) -> list[Lot]:
    """The messages of ``batch`` by topic, in the order of the rows.

    ``topic`` is that of all rows, or "". Rows are counted from ``first_row`` in errors.
    """
    bodies = _bodies(batch.column(layout.positions[columns.BODY]), first_row)
    if topic and not set(layout.positions) - {columns.BODY, columns.TOPIC}:
        return [Lot(topic, bodies)] if bodies else []
    given = {name: _values(name, batch.column(position)) for name, position in layout.positions.items()}
    given[columns.BODY] = bodies
    lots: dict[str, Lot] = {}
    for number, row in enumerate(_rows(given, len(bodies)), first_row):
        try:
            name = topic or row[columns.TOPIC]
            if not name:
                raise RowRefused('column topic is null; fill it, or use .option("topic", "name") for all rows')
            lot = lots.get(name) or lots.setdefault(name, Lot(name))
            place = _place(name, row)
            if place is not None:
                lot.places[len(lot.messages)] = place
            lot.messages.append(_message(name, row))
        except (SkylarkError, TypeError) as error:
            raise RowRefused(f"row {number} of the partition (counted from 0) cannot be sent: {error}") from None
    return list(lots.values())


def _bodies(column: pa.Array, first_row: int) -> list[bytes | Message]:
    if column.null_count:
        row = first_row + pc.index(column.is_null(), True).as_py()
        raise RowRefused(
            f"row {row} of the partition (counted from 0) cannot be sent: column body is null; leave such rows out, as"
            ' in df.where("body is not null"), or fill them'
        )
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    bodies: list[bytes | Message] = column.to_pylist()
    return bodies


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    if name == columns.DELIVER_TIME and pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        return [None if us is None else -(-us // 1000) for us in column.to_pylist()]
    values: Sequence[Any] = column.to_pylist()
    return values


def _rows(given: dict[str, Sequence[Any]], count: int) -> Iterator[dict[str, Any]]:
    """The rows as dicts; columns that are not there are null."""
    blank = dict.fromkeys((columns.TOPIC, columns.TAGS, columns.KEYS, columns.PROPERTIES, columns.FLAG))
    blank |= dict.fromkeys((*columns.ALONE, columns.BROKER_NAME))
    names = tuple(given)
    for values in zip(*given.values(), strict=True) if count else ():
        yield {**blank, **dict(zip(names, values, strict=True))}


def _message(topic: str, row: dict[str, Any]) -> Message:
    keys = row[columns.KEYS]
    if isinstance(keys, list):
        keys = [key for key in keys if key]
    return Message(
        topic,
        row[columns.BODY],
        tags=row[columns.TAGS],
        keys=keys,
        properties=own_properties(row[columns.PROPERTIES] or ()),
        flag=row[columns.FLAG] or 0,
        delay_level=row[columns.DELAY_TIME_LEVEL] or 0,
        sharding_key=row[columns.SHARDING_KEY],
    )


def own_properties(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str] | None:
    """The properties that are the user's own and not empty.

    Those that clients and brokers set are in the reader's column, too, so that a copy of a topic would have them.
    """
    return {name: value for name, value in pairs if name and value and name not in RESERVED and name != ROW} or None


def _place(topic: str, row: dict[str, Any]) -> Place | None:
    queue_id, broker_name = row[columns.QUEUE_ID], row[columns.BROKER_NAME]
    if queue_id is not None or broker_name:
        if queue_id is None or not broker_name:
            raise RowRefused("columns queueId and brokerName name a queue together, and one of them is null")
        queue = MessageQueue(topic, broker_name, queue_id)
    else:
        queue = None
    at_ms = row[columns.DELIVER_TIME]
    if at_ms is not None:
        try:
            return Place(queue, _EPOCH + timedelta(milliseconds=at_ms))
        except OverflowError:
            raise RowRefused(f"column deliverTime is {at_ms} ms after 1970, which is no time") from None
    if queue is not None or row[columns.SHARDING_KEY] or row[columns.DELAY_TIME_LEVEL]:
        return Place(queue)
    return None
