"""The columns of all styles: of the shared decoder, of Spark's Kafka source and of rocketmq-spark."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skylark.mqcommon.message.properties import KEYS
from skylark.sdk.arrow import decode as shared
from skylark.sdk.arrow.records import Records, numbers, patched
from skylark.sdk.arrow.schema import PROPERTIES
from skylark.spark_connector.schema import HEADERS, partition_number

LOG_APPEND_TIME = 1  # Kafka's number for times that the broker has set


def decode(records: Records, broker_name: str, schema: pa.Schema) -> pa.RecordBatch:
    """One row per record, with the columns of ``schema``. Raises `TooMuchContent`."""
    return shared.decode(records, broker_name, schema, _Styled)


class _Styled(shared.RecordColumns):
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


# Kafka's names of columns that both styles have.
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


_ESCAPED = r'["\\\x00-\x1f]'


def json_objects(maps: pa.MapArray) -> pa.Array:
    """``{"name":"value","name":"value"}`` for each map, without blanks, as rocketmq-spark writes it."""
    pairs = pc.binary_join_element_wise('"', _escaped(maps.keys), '":"', _escaped(maps.items), '"', "")
    inner = pc.binary_join(pa.ListArray.from_arrays(maps.offsets, pairs), ",")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _escaped(texts: pa.Array) -> pa.Array:
    """The texts as they stand between the quotes of JSON; few of them need Python."""
    odd = np.flatnonzero(pc.match_substring_regex(texts, _ESCAPED).to_numpy(zero_copy_only=False))
    if len(odd) == 0:
        return texts
    return patched(texts, odd, [json.dumps(texts[int(at)].as_py(), ensure_ascii=False)[1:-1] for at in odd])
