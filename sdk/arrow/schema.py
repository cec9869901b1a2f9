"""The columns of a message in a record batch that readers make."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from skylark.mqcommon.errors import InvalidArgument

PROPERTIES = "properties"

_TIME = pa.timestamp("us", tz="UTC")
#: Times from the year 1677 to 2262 are shown, other times are null: pandas counts nanoseconds in 64 bits, Python's
#: calendar ends with the year 9999, and both raise for all rows when one time is outside.
MAX_TIME_MS = (2**63 - 1) // 1_000_000
#: All columns and their types, in their usual order.
COLUMNS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "topic": pa.string(),
        "brokerName": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "msgId": pa.string(),
        "offsetMsgId": pa.string(),
        "keys": pa.string(),
        "tags": pa.string(),
        "body": pa.binary(),
        "flag": pa.int32(),
        "sysFlag": pa.int32(),
        "bornTimestamp": _TIME,
        "storeTimestamp": _TIME,
        "bornHost": pa.string(),
        "reconsumeTimes": pa.int32(),
        PROPERTIES: pa.map_(pa.string(), pa.string()),
    }
)
#: All columns but the properties, which cost more than all others together.
USUAL = tuple(name for name in COLUMNS if name != PROPERTIES)


def microseconds(ms: int | None) -> int | None:
    """The value of a time column; None when the time is out of the column's range."""
    return None if ms is None or abs(ms) > MAX_TIME_MS else ms * 1_000


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema with these columns, by default all but the properties; InvalidArgument for an unknown column."""
    names = USUAL if columns is None else tuple(columns)
    for number, name in enumerate(names):
        if name not in COLUMNS:
            raise InvalidArgument(f"columns[{number}] is {name!r}; a message has {', '.join(COLUMNS)}")
        if name in names[:number]:
            raise InvalidArgument(f"columns[{number}] is {name!r}, which is in columns before")
    return pa.schema([(name, COLUMNS[name]) for name in names])
