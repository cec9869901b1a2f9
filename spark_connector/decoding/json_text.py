"""Maps of texts as JSON objects, column by column."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqcommon.arrow.columns import patched

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
