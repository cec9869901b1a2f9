"""What every typed header is: a dataclass whose fields know their wire name and how to be read."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Final, NoReturn, Self

from mqcommon.errors import ProtocolError, RequestRefused
from remoting.protocol.codes import ResponseCode
from remoting.protocol.scalars import camel_case

Reader = Callable[[Any], Any]

_EXCEPTION: Final = "org.apache.rocketmq.remoting.exception.RemotingCommandException"
_NO_EXT: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class HeaderField:
    """One field: attribute of the dataclass, name in ext, reader, and default unless required."""

    attribute: str
    wire: str
    read: Reader
    default: Any


def required(read: Reader, *, wire: str | None = None, short: str | None = None) -> Any:
    """A field that must be there. ``short`` is its name in short headers (310)."""
    return field(metadata={"read": read, "wire": wire, "short": short})


def optional(read: Reader, default: Any = None, *, wire: str | None = None, short: str | None = None) -> Any:
    """A field that may be absent; None is not written."""
    return field(default=default, metadata={"read": read, "wire": wire, "short": short})


def _header_fields(cls: Any, short: bool) -> tuple[HeaderField, ...]:
    return tuple(
        HeaderField(
            each.name,
            each.metadata["short"] if short else each.metadata["wire"] or camel_case(each.name),
            each.metadata["read"],
            each.default,
        )
        for each in fields(cls)
    )


#: The fields of a header class, with long or short names, in the order of its constructor.
header_fields: Final[Callable[[Any, bool], tuple[HeaderField, ...]]] = cache(_header_fields)


class Header:
    """Base of all headers; subclasses are dataclasses whose fields are ``required`` or ``optional``."""

    __slots__ = ()

    @classmethod
    def from_ext(cls, ext: Mapping[str, Any] | None) -> Self:
        """The header in ``ext``. RequestRefused when a required field is missing or any is unreadable."""
        return cls._read(ext, False)

    @classmethod
    def from_answer(cls, ext: Mapping[str, Any] | None) -> Self:
        """The header in the ``ext`` of an answer. ProtocolError when it is not what was asked for."""
        try:
            return cls._read(ext, False)
        except RequestRefused as error:
            raise ProtocolError(f"an answer that cannot be read: {error.remark}") from None

    def to_ext(self) -> dict[str, Any]:
        """Native values by wire name, without those that are None."""
        return self._written(False)

    @classmethod
    def _read(cls, ext: Mapping[str, Any] | None, short: bool) -> Self:
        get = (ext if ext is not None else _NO_EXT).get
        values = []
        for each in header_fields(cls, short):
            value = get(each.wire)
            if value is None:
                value = each.default
                if value is MISSING:
                    _refuse(each.wire, "null")
            else:
                try:
                    value = each.read(value)
                except ValueError as error:
                    _refuse(each.wire, str(error))
            values.append(value)
        return cls(*values)

    def _written(self, short: bool) -> dict[str, Any]:
        ext: dict[str, Any] = {}
        for each in header_fields(type(self), short):
            value = getattr(self, each.attribute)
            if value is not None:
                ext[each.wire] = value
        return ext


def _refuse(wire: str, reason: str) -> NoReturn:
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}: the custom field <{wire}> is {reason}") from None
