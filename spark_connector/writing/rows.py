"""The rows of a DataFrame as messages, and the unique keys by which they are recognised. Pure.

`layout_of` checks the columns when the writer is made, on the driver: a task would find the same mistake only after it
had sent rows. `lots_of` makes messages of a record batch. `RowKeys` names rows, so that a row that was sent is
recognised when its task or its epoch is run again. A key is 32 hex digits: 16 for query, epoch, partition and topic
(the scope), 16 for the row. A row is known by its content, and equal rows of a partition by how many equal rows came
before: a shuffle gives the rows of a partition in another order when it is run again, and if rows were only numbered,
some would be mistaken for others, and lost. Keys that end in a small number are claims: the first message that each
attempt sends, see once.py.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.message.message import Message, own_properties
from skylark.mqcommon.message.properties import RESERVED
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.formats.format_spec import FormatSpec
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.schema import VALUE, spark_schema

#: The property of a claim that has the row's name, and the attempt that sent it.
ROW = "SPARK_ROW"


class RowKeys:
    """Keys of the rows of one partition for one topic. It keeps about 100 bytes a row, to tell equal rows apart."""

    def __init__(self, query: str, epoch: str, partition: int, topic: str) -> None:
        parts = [text.encode("utf-8", "surrogatepass") for text in (query, epoch, str(partition), topic)]
        self.scope = _digest(b"".join([b"%d:%s" % (len(part), part) for part in parts]))
        self._seen: set[str] = set()
        self._repeats: dict[str, int] = {}

    def names(self, messages: Sequence[bytes | Message]) -> list[str]:
        """The names of the next rows, 16 hex digits each; a row's unique key is the scope and its name."""
        if set(map(type, messages)) == {bytes}:
            names = [blake2b(body, digest_size=8).hexdigest() for body in cast(Sequence[bytes], messages)]
        else:
            names = [_digest(_content(message)) for message in messages]
        # The usual case, without a loop in Python: no two rows of the lot are equal, and no row equals an earlier row.
        fresh = set(names)
        if len(fresh) == len(names) and fresh.isdisjoint(self._seen):
            self._seen |= fresh
            return names
        return [self._fresh(name) for name in names]

    def claim(self, number: int) -> str:
        """The unique key of a claim; they are counted from 0."""
        return f"{self.scope}{number:016x}"

    def _fresh(self, name: str) -> str:
        if name in self._seen:
            count = self._repeats[name] = self._repeats.get(name, 0) + 1
            name = _digest(b"%s %d" % (name.encode(), count))
        self._seen.add(name)
        return name


def name_in(unique_key: str) -> str:
    """The row's name in a key of ours."""
    return unique_key[16:]


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _content(message: bytes | Message) -> bytes:
    if isinstance(message, bytes):
        return message
    properties = own_properties(message)
    return b"%d,%d,%s%s" % (message.flag, len(properties), properties, message.body)


BODY, TOPIC, TAGS, KEYS, PROPERTIES, FLAG = "body", "topic", "tags", "keys", "properties", "flag"
SHARDING_KEY, QUEUE_ID, BROKER_NAME = "shardingKey", "queueId", "brokerName"
DELAY_TIME_LEVEL, DELIVER_TIME = "delayTimeLevel", "deliverTime"

_TEXT = ("string",)
_NUMBER = ("int", "smallint", "tinyint")
#: The types that a column may have, in Spark's words; the first is the one to cast to.
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        BODY: ("binary", "string"),
        TOPIC: _TEXT,
        TAGS: _TEXT,
        KEYS: ("string", "array<string>", "binary"),
        PROPERTIES: ("map<string,string>",),
        FLAG: _NUMBER,
        SHARDING_KEY: _TEXT,
        QUEUE_ID: _NUMBER,
        BROKER_NAME: _TEXT,
        DELAY_TIME_LEVEL: _NUMBER,
        DELIVER_TIME: ("timestamp", "bigint"),
    }
)
#: Kafka's names.
_ALIASES = MappingProxyType({VALUE: BODY, "key": KEYS})
_KAFKA_COLUMNS = MappingProxyType(
    {
        "headers": "make it a map<string,string> named properties",
        "partition": "name a queue with the columns brokerName and queueId",
    }
)
#: Columns with which a message cannot be in a batch with others.
ALONE = (SHARDING_KEY, QUEUE_ID, DELAY_TIME_LEVEL, DELIVER_TIME)
#: Columns that are sent as a table, when the topic is an option; rows with other columns become messages.
TOGETHER = frozenset({BODY, TOPIC, TAGS, KEYS, FLAG})


@dataclass(frozen=True)
class Layout:
    """Where each column is: its name as in the manual → its position in a record batch."""

    positions: Mapping[str, int]


def layout_of(schema: StructType, options: WriteOptions, spec: FormatSpec | None = None) -> Layout:
    """The layout of ``schema``, whose bodies are of the format ``spec``.

    UserError, with the remedy, for columns that cannot be written.
    """
    names = {name.lower(): name for name in COLUMN_TYPES} | _ALIASES
    positions: dict[str, int] = {}
    for position, column in enumerate(schema.fields):
        name = names.get(column.name.lower())
        if name is None:
            raise UserError(f"column {column.name} cannot be written; {_remedy(column.name)}")
        if name in positions:
            other = schema.fields[positions[name]].name
            raise UserError(f"columns {other} and {column.name} are both the {name}; drop one of them")
        if name == BODY and spec is not None:
            _check_value(column, spec)
        else:
            _check_type(column.name, COLUMN_TYPES[name], column.dataType)
        positions[name] = position
    _check_together(positions, options)
    return Layout(positions)


def _check_value(column: StructField, spec: FormatSpec) -> None:
    if column.name.lower() != VALUE:
        raise UserError(
            f"column {column.name} is a body, and with valueFormat={spec.kind} bodies are made of the column value;"
            ' make a struct of that name, as in df.select(struct("*").alias("value"))'
        )
    spec.checked(column.name, column.dataType)


def _check_type(name: str, allowed: tuple[str, ...], given: DataType) -> None:
    if _simple(given) not in allowed:
        raise UserError(
            f"column {name} is {given.simpleString()}, but must be {' or '.join(allowed)};"
            f' cast it, as in df.withColumn("{name}", df["{name}"].cast("{allowed[0]}"))'
        )


def _simple(given: DataType) -> str:
    """Spark's text for a type, without collations."""
    match given:
        case StringType():
            return "string"
        case ArrayType(elementType=StringType()):
            return "array<string>"
        case MapType(keyType=StringType(), valueType=StringType()):
            return "map<string,string>"
        case BinaryType() | ByteType() | ShortType() | IntegerType() | LongType() | TimestampType():
            return given.simpleString()
    return ""


def _check_together(positions: Mapping[str, int], options: WriteOptions) -> None:
    if BODY not in positions:
        raise UserError(
            'no column body; name the column with the messages so, as in df.select(df["text"].alias("body")), or make'
            ' one of several with to_json(struct("*")), or with the option valueFormat of struct("*").alias("value")'
        )
    if not options.topic and TOPIC not in positions:
        raise UserError('no topic is given; use .option("topic", "name"), or a column topic')
    if (QUEUE_ID in positions) != (BROKER_NAME in positions):
        raise UserError("columns queueId and brokerName name a queue together; add the other one, or drop this one")
    if QUEUE_ID in positions and SHARDING_KEY in positions:
        raise UserError("columns shardingKey and queueId both choose the queue; drop one of them")
    if DELAY_TIME_LEVEL in positions and DELIVER_TIME in positions:
        raise UserError("columns delayTimeLevel and deliverTime both say when to deliver; drop one of them")
    if options.dedup and (DELAY_TIME_LEVEL in positions or DELIVER_TIME in positions):
        raise UserError(
            "messages that wait for their time cannot be found in their topic before; use"
            ' .option("dedup", "false") with columns delayTimeLevel and deliverTime'
        )


def _remedy(name: str) -> str:
    if name in _KAFKA_COLUMNS:
        return _KAFKA_COLUMNS[name]
    if name in spark_schema(include_properties=False).names:
        return f'brokers set it: leave it out, as in df.drop("{name}")'
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in COLUMN_TYPES], n=1)
    if near:
        return f"did you mean {next(known for known in COLUMN_TYPES if known.lower() == near[0])}?"
    return f"columns are {', '.join(COLUMN_TYPES)}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowRefused(SkylarkError):
    """A row that cannot be a message; the text says which one, and why."""


def refused_row(number: int, reason: object) -> RowRefused:
    """The error for a row of the partition."""
    return RowRefused(f"row {number} of the partition (counted from 0) cannot be sent: {reason}")


class Place(NamedTuple):
    """Why a message must be sent alone: its queue or its time, or (with neither) its sharding key."""

    queue: MessageQueue | None = None
    deliver_at: datetime | None = None


@dataclass
class Lot:
    """Messages of one topic; ``places`` has the numbers in ``messages`` of the messages that must be sent alone."""

    topic: str
    messages: list[bytes | Message] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)


def lots_of(batch: pa.RecordBatch, layout: Layout, topic: str, first_row: int = 0) -> list[Lot]:
    """The messages of ``batch`` by topic, in the order of the rows.

    ``topic`` is the topic of all rows, or "". Rows are counted from ``first_row`` in errors.
    """
    bodies = _bodies(batch.column(layout.positions[BODY]), first_row)
    # Bodies alone are sent as they are, without an object for each row.
    if topic and not set(layout.positions) - {BODY, TOPIC}:
        return [Lot(topic, bodies)] if bodies else []
    given = {name: _values(name, batch.column(position)) for name, position in layout.positions.items()}
    given[BODY] = bodies
    lots: dict[str, Lot] = {}
    for number, row in enumerate(_rows(given, len(bodies)), first_row):
        try:
            name = topic or row[TOPIC]
            if not name:
                raise RowRefused('column topic is null; fill it, or use .option("topic", "name") for all rows')
            lot = lots.get(name) or lots.setdefault(name, Lot(name))
            place = _place(name, row)
            if place is not None:
                lot.places[len(lot.messages)] = place
            lot.messages.append(_message(name, row))
        except (SkylarkError, TypeError) as error:
            raise refused_row(number, error) from None
    return list(lots.values())


def _bodies(column: pa.Array, first_row: int) -> list[bytes | Message]:
    if column.null_count:
        row = first_row + pc.index(column.is_null(), True).as_py()
        raise refused_row(
            row, 'column body is null; leave such rows out, as in df.where("body is not null"), or fill them'
        )
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    bodies: list[bytes | Message] = column.to_pylist()
    return bodies


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    if name == DELIVER_TIME and pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        # Rounded up: a message must not come before its time.
        return [None if us is None else -(-us // 1000) for us in column.to_pylist()]
    values: Sequence[Any] = column.to_pylist()
    return values


def _rows(given: dict[str, Sequence[Any]], count: int) -> Iterator[dict[str, Any]]:
    """The rows as dicts; absent columns are null."""
    blank = dict.fromkeys((TOPIC, TAGS, KEYS, PROPERTIES, FLAG))
    blank |= dict.fromkeys((*ALONE, BROKER_NAME))
    names = tuple(given)
    for values in zip(*given.values(), strict=True) if count else ():
        yield {**blank, **dict(zip(names, values, strict=True))}


def _message(topic: str, row: dict[str, Any]) -> Message:
    keys = row[KEYS]
    if isinstance(keys, list):
        # Null and empty keys of an array are left out, as Spark's functions make them of missing values.
        keys = [key for key in keys if key]
    return Message(
        topic,
        row[BODY],
        tags=row[TAGS],
        keys=keys,
        properties=sendable_properties(row[PROPERTIES] or ()),
        flag=row[FLAG] or 0,
        delay_level=row[DELAY_TIME_LEVEL] or 0,
        sharding_key=row[SHARDING_KEY],
    )


def sendable_properties(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str] | None:
    """The properties that are the user's own and not empty.

    The reader's column also has properties that clients and brokers set; a copy of a topic must not get them.
    """
    return {name: value for name, value in pairs if name and value and name not in RESERVED and name != ROW} or None


def _place(topic: str, row: dict[str, Any]) -> Place | None:
    queue_id, broker_name = row[QUEUE_ID], row[BROKER_NAME]
    if queue_id is not None or broker_name:
        if queue_id is None or not broker_name:
            raise RowRefused("columns queueId and brokerName name a queue together, and one of them is null")
        queue = MessageQueue(topic, broker_name, queue_id)
    else:
        queue = None
    at_ms = row[DELIVER_TIME]
    if at_ms is not None:
        try:
            return Place(queue, _EPOCH + timedelta(milliseconds=at_ms))
        except OverflowError:
            raise RowRefused(f"column deliverTime is {at_ms} ms after 1970, which is no time") from None
    if queue is not None or row[SHARDING_KEY] or row[DELAY_TIME_LEVEL]:
        return Place(queue)
    return None
