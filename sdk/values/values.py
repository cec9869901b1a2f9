"""`Values`: a type and a format. Encodes values into messages to send, and reads values of messages.

A sent message names its format in the property ``content-type``, so that readers accept any format. Each value is read
back once before it is sent, so a value that a reader of the same type could not read raises at the sender.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, overload

from skylark.mqcommon.arguments import as_bytes, check_text, shown, wrong_type
from skylark.mqcommon.errors import InvalidArgument, ProtocolError, UnreadableValue
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.properties import CONTENT_TYPE
from skylark.sdk.values.libraries import BYTES, CBOR, CONTENT_TYPES, JSON, Codec, library_of

T = TypeVar("T")
_FORMS = {name: form for form, name in CONTENT_TYPES.items()}


class Values(Generic[T]):
    """``Values(Order).message("orders", order)`` makes a message; ``Values(Order).read(message)`` reads the value.

    ``kind`` is a dataclass, a class of msgspec or pydantic, bytes, or a type of the standard library, as
    ``dict[str, Any]`` and ``Order | Refund``. ``value_format``: ``json``, ``cbor``; bytes are sent as they are.
    """

    @overload
    def __init__(self, kind: type[T], value_format: str = JSON) -> None: ...

    @overload
    def __init__(self: "Values[Any]", kind: Any, value_format: str = JSON) -> None: ...

    def __init__(self, kind: Any, value_format: str = JSON) -> None:
        check_text("value_format", value_format)
        if value_format not in (JSON, CBOR):
            raise InvalidArgument(f"value_format must be json or cbor, not {value_format!r}")
        self.kind = kind
        self._form = BYTES if kind is bytes else value_format
        self._codec = _codec(kind, self._form)

    def message(
        self,
        topic: str,
        value: T,
        *,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        priority: int | None = None,
    ) -> Message:
        """A message with the value as its body, and ``headers`` as its properties.

        TypeError or ValueError when it is no value of the type.
        """
        body = self.encode(value)
        if headers is not None and not isinstance(headers, Mapping):
            raise wrong_type("headers", "a mapping of str to str", headers)
        if headers is not None and CONTENT_TYPE in headers:
            raise InvalidArgument(f"headers[{CONTENT_TYPE!r}] is what the value's format says: choose a value_format")
        properties = {**(headers or {}), CONTENT_TYPE: CONTENT_TYPES[self._form]}
        return Message(
            topic,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            delay_level=delay_level,
            sharding_key=sharding_key,
            priority=priority,
        )

    def encode(self, value: T) -> bytes:
        """The body for a value. TypeError or ValueError when ``value`` is no value of the type."""
        if self._form == BYTES:
            return as_bytes("value", value)
        try:
            body = self._codec.write(value)
            self._codec.read(body)
        except Exception as error:
            name = getattr(self.kind, "__qualname__", self.kind)
            if isinstance(error, TypeError) or not _is_instance(value, self.kind):
                raise wrong_type("value", f"a {name}", value) from error
            raise InvalidArgument(f"value cannot be read as {name}: {error}; it is {shown(value)}") from error
        if not _is_instance(value, self.kind):
            # An object that only resembles a value of the type, as an equal dict, might be read back as one; refuse it
            # all the same.
            raise wrong_type("value", f"a {getattr(self.kind, '__qualname__', self.kind)}", value)
        return body

    def read(self, message: MessageExt) -> T:
        """The value of a message, read in the format that the message names, by default the format of these values.

        UnreadableValue when the body is no value of the type.
        """
        try:
            name, body = message.properties.get(CONTENT_TYPE), message.body
        except ProtocolError as error:  # a damaged record, or a body that cannot be decompressed
            raise UnreadableValue(f"the body cannot be read: {error}") from error
        form = self._form if name is None else _FORMS.get(name.partition(";")[0].strip().lower())
        if self._form == BYTES:
            return body  # type: ignore[return-value]  # T is bytes
        kind = getattr(self.kind, "__qualname__", self.kind)
        if form is None or form == BYTES:
            raise UnreadableValue(f"the body is no {kind}: content-type {name!r} is not known")
        codec = self._codec if form == self._form else _codec(self.kind, form)
        try:
            value: T = codec.read(body)
        except Exception as error:  # of the libraries, and of users' classes
            raise UnreadableValue(f"the body is no {kind}: {error}") from error
        return value


def _codec(kind: Any, form: str) -> Codec:
    # Unions compare equal in any order, but their order decides which type is read where several fit.
    spelling = "" if isinstance(kind, type) else repr(kind)
    try:
        return _known(kind, spelling, form)
    except TypeError as error:
        if "unhashable" in str(error):
            return library_of(kind).codec(kind, form)
        raise


@lru_cache(maxsize=256)
def _known(kind: Any, spelling: str, form: str) -> Codec:
    if form == BYTES:
        return Codec(bytes, bytes)
    return library_of(kind).codec(kind, form)


def _is_instance(value: object, kind: Any) -> bool:
    """Whether the value is of the class, as far as the type allows to check that."""
    try:
        return isinstance(value, kind)
    except TypeError:  # list[Order], Literal[...]: the codec has checked what is in them
        return True


def values_of(values: Values[Any] | None) -> Values[Any]:
    """The values of a producer. InvalidArgument when the producer was made without a type of values."""
    if values is None:
        raise InvalidArgument("this producer was made without a type of values: Producer(..., value=Order)")
    return values


def read_value(message: MessageExt, kind: type[T]) -> T:
    """The value of a message; UnreadableValue when its body is no value of type ``kind``."""
    return Values(kind).read(message)
