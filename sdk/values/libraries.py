"""The encoder for values of a type: plain.py, msgspec or pydantic. Libraries are imported only for their own types.

For JSON, msgspec and pydantic convert between values and bytes directly, several times as fast as through plain data.
For CBOR they make plain data, which cbor2 encodes.
"""

from collections.abc import Callable
from typing import Any, Protocol, get_args, get_origin

import orjson

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.strict_cbor import loads_values
from skylark.sdk.values.cbor import dumps_values
from skylark.sdk.values.plain import plain, reader_of

JSON, CBOR, BYTES = "json", "cbor", "bytes"
#: The content types that messages say they have, by format.
CONTENT_TYPES = {JSON: "application/json", CBOR: "application/cbor", BYTES: "application/octet-stream"}


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
