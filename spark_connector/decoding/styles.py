"""The columns of all styles: those of the shared decoder, of Spark's Kafka source and of rocketmq-spark."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from mqcommon.arrow import decode as shared
from mqcommon.arrow.columns import numbers
from mqcommon.arrow.records import Records
from mqcommon.arrow.schema import PROPERTIES
from mqcommon.message.properties import KEYS
from spark_connector.decoding.json_text import json_objects
from spark_connector.partition_numbers import partition_number
from spark_connector.schema import HEADERS

LOG_APPEND_TIME = 1  # Kafka's number for times that the broker has set


def decode(records: Records, broker_name: str, schema: pa.Schema) -> pa.RecordBatch:
    """One row per record, with the columns of ``schema``. Raises `TooMuchContent`."""
    return shared.decode(records, broker_name, schema, _Styled)


class _Styled(shared.Columns):
    def make(self, field: pa.Field) -> pa.Array:
        name: str = field.name
        if name == PROPERTIES and pa.types.is_string(field.type):
            return json_objects(self.properties())
        if name in _ALIASES:
            return super().make(pa.field(_ALIASES[name], field.type))
        return _MAKERS[name](self) if name in _MAKERS else super().make(field)

    def key(self) -> pa.Array:
        return self._property_pairs().values(KEYS.encode()).view(pa.binary())

    def partition(self) -> pa.Array:
        queue_ids = self._records.column("queue_id")
        return numbers(queue_ids + np.int32(partition_number(self._broker_name, 0)))

    def timestamp_type(self) -> pa.Array:
        return numbers(np.full(len(self._records), LOG_APPEND_TIME, dtype=np.int32))

    def headers(self) -> pa.Array:
        """All properties, as Kafka has its headers."""
        maps = self.properties()
        pairs = pa.StructArray.from_arrays([maps.keys, maps.items.view(pa.binary())], ["key", "value"])
        return pa.ListArray.from_arrays(maps.offsets, pairs)


# Kafka's names of columns that both have.
_ALIASES: Mapping[str, str] = MappingProxyType(
    {"offset": "queueOffset", "timestamp": "storeTimestamp", "value": "body"}
)
_MAKERS: Mapping[str, Callable[[_Styled], pa.Array]] = MappingProxyType(
    {
        "key": _Styled.key,
        "partition": _Styled.partition,
        "timestampType": _Styled.timestamp_type,
        HEADERS: _Styled.headers,
    }
)
