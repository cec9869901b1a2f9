"""The encoder for values of a type: plain.py, msgspec or pydantic. Libraries are imported only for their own types.

For JSON, msgspec and pydantic convert between values and bytes directly, several times as fast as through plain data.
For CBOR they make plain data, which cbor2 encodes.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Protocol, get_args, get_origin
from uuid import UUID

import cbor2
import orjson

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.strict_cbor import loads_values
from skylark.sdk.values.plain import plain, reader_of

JSON, CBOR, BYTES = "json", "cbor", "bytes"
#: The content types that messages say they have, by format.
CONTENT_TYPES = {JSON: "application/json", CBOR: "application/cbor", BYTES: "application/octet-stream"}


_CBOR: Final = cbor2.CBOREncoder
# cbor2 asks of most values whether they are mappings. Python code answers, and cbor2 drops what that code raises: also
# the KeyboardInterrupt of a Ctrl-C, in the main thread of a program without trio, which could hold the Ctrl-C back.
# cbor2 asks nothing about a value whose type has a function in this table. Each function is what cbor2 itself chooses.
_ENCODERS: Final[Mapping[type, Callable[[cbor2.CBOREncoder, Any], None]]] = {
    list: _CBOR.encode_array,
    tuple: _CBOR.encode_array,
    set: _CBOR.encode_set,
    frozenset: _CBOR.encode_frozenset,
    datetime: _CBOR.encode_datetime,
    date: _CBOR.encode_date,
    Decimal: _CBOR.encode_decimal,
    UUID: _CBOR.encode_uuid,
}


def dumps_values(value: object, **options: Any) -> bytes:
    """CBOR of a value, as `cbor2.dumps` with these options makes it, without losing a Ctrl-C.

    While a value of another type, or of a derived class, is encoded, a Ctrl-C may still be lost.
    """
    return cbor2.dumps(value, encoders=_ENCODERS, **options)


@lazy_dataclass(frozen=True, slots=True)
class Codec:
    """Value → bytes and bytes → value, of one type in one format. Both functions raise the libraries' errors."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


class Library(Protocol):
    """A library that encodes the values of a type in both formats."""

    def codec(self, kind: Any, form: str) -> Codec: ...


def library_of(kind: Any) -> Library:
    """The library for a type and its parts: pydantic if a part is pydantic's, else msgspec if a part is msgspec's."""
    parts = list(_parts(kind))
    if any(hasattr(part, "__pydantic_validator__") for part in parts):
        return Pydantic()
    if any(hasattr(part, "__struct_fields__") for part in parts):
        return Msgspec()
    return Plain()


def _parts(kind: Any) -> Any:
    yield kind
    yield get_origin(kind)
    for arg in get_args(kind):
        yield from _parts(arg)


class Plain:
    """Dataclasses and the standard library's types."""

    def codec(self, kind: Any, form: str) -> Codec:
        read = reader_of(kind)
        if form == JSON:
            return Codec(
                lambda value: orjson.dumps(plain(value, has_bytes=False)), lambda data: read(orjson.loads(data), "")
            )
        return Codec(
            lambda value: dumps_values(plain(value, has_bytes=True)), lambda data: read(loads_values(data), "")
        )


class Msgspec:
    """msgspec.Struct, and types made of it."""

    def codec(self, kind: Any, form: str) -> Codec:
        from msgspec import convert, json, to_builtins

        if form == JSON:
            return Codec(json.Encoder().encode, json.Decoder(kind).decode)
        kept = (bytes,)
        return Codec(
            lambda value: dumps_values(to_builtins(value, builtin_types=kept)),
            lambda data: convert(loads_values(data), kind, builtin_types=kept),
        )


class Pydantic:
    """pydantic's models and dataclasses, and types made of them."""

    def codec(self, kind: Any, form: str) -> Codec:
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        if form == JSON:
            return Codec(lambda value: adapter.dump_json(value, warnings="error"), adapter.validate_json)
        return Codec(
            lambda value: dumps_values(adapter.dump_python(value, mode="json", warnings="error")),
            lambda data: adapter.validate_python(loads_values(data)),
        )
