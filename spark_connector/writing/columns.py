"""The columns of a DataFrame that is written: which there are, of which types, and what a row of them asks for. Pure.

All is checked when the writer is made, on the driver: a task would find the same mistake only after it had sent rows.
Neighbours: rows.py (turns rows into messages), options/write.py.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
    StructType,
    TimestampType,
)

from mqcommon.errors import UserError
from spark_connector.options.write import WriteOptions
from spark_connector.schema import spark_schema

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
        KEYS: ("string", "array<string>"),
        PROPERTIES: ("map<string,string>",),
        FLAG: _NUMBER,
        SHARDING_KEY: _TEXT,
        QUEUE_ID: _NUMBER,
        BROKER_NAME: _TEXT,
        DELAY_TIME_LEVEL: _NUMBER,
        DELIVER_TIME: ("timestamp", "bigint"),
    }
)
#: Kafka's name of the body.
_ALIASES = MappingProxyType({"value": BODY})
_ELSEWHERE = MappingProxyType(
    {
        "key": "rename it to shardingKey (rows of one key go to one queue) or to keys (to find messages by it)",
        "headers": "make it a map<string,string> named properties",
        "partition": "name a queue with the columns brokerName and queueId",
    }
)
#: Columns with which a message cannot be in a batch with others.
ALONE = (SHARDING_KEY, QUEUE_ID, DELAY_TIME_LEVEL, DELIVER_TIME)
#: Columns that are sent as they are, when the topic is an option; others are made messages of.
TOGETHER = frozenset({BODY, TOPIC, TAGS, KEYS, FLAG})


@dataclass(frozen=True)
class Layout:
    """Where each column is: its name as in the manual → its position in a record batch."""

    positions: Mapping[str, int]


def layout_of(schema: StructType, options: WriteOptions) -> Layout:
    """The layout of ``schema``; UserError, with the remedy, for columns that cannot be written."""
    names = {name.lower(): name for name in COLUMN_TYPES} | _ALIASES
    positions: dict[str, int] = {}
    for position, field in enumerate(schema.fields):
        name = names.get(field.name.lower())
        if name is None:
            raise UserError(f"column {field.name} cannot be written; {_remedy(field.name)}")
        if name in positions:
            other = schema.fields[positions[name]].name
            raise UserError(f"columns {other} and {field.name} are both the {name}; drop one of them")
        _check_type(field.name, COLUMN_TYPES[name], field.dataType)
        positions[name] = position
    _check_together(positions, options)
    return Layout(positions)


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
            ' one of several with to_json(struct("*"))'
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
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in spark_schema(include_properties=False).names:
        return f'brokers set it: leave it out, as in df.drop("{name}")'
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in COLUMN_TYPES], n=1)
    if near:
        return f"did you mean {next(known for known in COLUMN_TYPES if known.lower() == near[0])}?"
    return f"columns are {', '.join(COLUMN_TYPES)}"
