"""CBOR of values, encoded so that no Ctrl-C is lost.

cbor2 asks of most values whether they are mappings. Python code answers, and cbor2 drops what that code raises: also
the KeyboardInterrupt of a Ctrl-C, in the main thread of a program without trio, which could hold the Ctrl-C back. cbor2
asks nothing of values of a type for which it is given a function.
Neighbour: remoting/protocol/strict_cbor.py (decodes values).
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import cbor2

_OWN: Final = cbor2.CBOREncoder
# The functions that cbor2 itself would choose.
_ENCODERS: Final[Mapping[type, Callable[[cbor2.CBOREncoder, Any], None]]] = {
    list: _OWN.encode_array,
    tuple: _OWN.encode_array,
    set: _OWN.encode_set,
    frozenset: _OWN.encode_frozenset,
    datetime: _OWN.encode_datetime,
    date: _OWN.encode_date,
    Decimal: _OWN.encode_decimal,
    UUID: _OWN.encode_uuid,
}


def dumps_values(value: object, **options: Any) -> bytes:
    """Encode the body of a message, as `cbor2.dumps` with these options.

    A Ctrl-C may still be lost while a value of another type, or of a derived class, is encoded.
    """
    return cbor2.dumps(value, encoders=_ENCODERS, **options)
