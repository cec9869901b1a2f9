"""The base of all typed headers: a dataclass whose fields know their wire name and how to be read.

Headers are read and written once or twice for every request. To be fast this is done by functions without a loop, whose
source is generated from the fields when a class is first used, as dataclasses generates ``__init__``.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn, Self

from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.scalars import camel_case

Reader = Callable[[Any], Any]

_EXCEPTION: Final = "org.apache.rocketmq.remoting.exception.RemotingCommandException"
_NO_EXT: Final[Mapping[str, Any]] = {}


@lazy_dataclass(frozen=True, slots=True)
class HeaderField:
    """One field: attribute of the dataclass, name in ext, reader, and default unless required."""

    attribute: str
    wire: str
    read: Reader
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether a request without it is refused."""
        return self.default is MISSING


def required(read: Reader, *, wire: str | None = None, short: str | None = None) -> Any:
    """A field that must be there. ``wire`` is its name, if not the attribute's in camel case; ``short`` in a 310."""
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
        """The header in ``ext``. Raises RequestRefused when a required field is missing or any is unreadable."""
        return cls._read(ext, False)

    @classmethod
    def from_answer(cls, ext: Mapping[str, Any] | None) -> Self:
        """The header in the ``ext`` of an answer. Raises ProtocolError when it cannot be read."""
        try:
            return cls._read(ext, False)
        except RequestRefused as error:
            raise ProtocolError(f"the answer cannot be read: {error.remark}") from None

    def to_ext(self) -> dict[str, Any]:
        """Native values by wire name, without those that are None."""
        return self._written(False)

    @classmethod
    def _read(cls, ext: Mapping[str, Any] | None, short: bool) -> Self:
        if ext is None:
            ext = _NO_EXT
        header: Self | None = _functions(cls, short).read(ext)
        if header is None:
            _refuse_fault(cls, short, ext)
        return header

    def _written(self, short: bool) -> dict[str, Any]:
        return _functions(type(self), short).write(self)


class _Functions(NamedTuple):
    #: Returns the header in an ext; None when a required field is missing or any is unreadable.
    read: Callable[[Mapping[str, Any]], Any]
    write: Callable[[Any], dict[str, Any]]


def _make_functions(cls: Any, short: bool) -> _Functions:
    numbered = list(enumerate(header_fields(cls, short)))
    required = [n for n, each in numbered if each.is_required]
    names: dict[str, Any] = {"cls": cls}
    for n, each in numbered:
        names |= {f"read{n}": each.read, f"default{n}": each.default}
    source = [
        "def read(ext):",
        "    get = ext.get",
        *[f"    v{n} = get({each.wire!r})" for n, each in numbered],
        *[f"    if v{n} is None: return None" for n in required],
        "    try:",
        "        return cls(",
        *[f"            read{n}(v{n})," for n in required],
        *[f"            default{n} if v{n} is None else read{n}(v{n})," for n, _ in numbered[len(required) :]],
        "        )",
        "    except ValueError:",
        "        return None",
        "def write(header):",
        "    ext = {",
        *[f"        {each.wire!r}: header.{each.attribute}," for _, each in numbered[: len(required)]],
        "    }",
    ]
    for n, each in numbered[len(required) :]:
        source += [f"    v{n} = header.{each.attribute}", f"    if v{n} is not None: ext[{each.wire!r}] = v{n}"]
    source.append("    return ext")
    exec("\n".join(source), names)
    return _Functions(names["read"], names["write"])


_functions: Final[Callable[[Any, bool], _Functions]] = cache(_make_functions)


def _refuse_fault(cls: Any, short: bool, ext: Mapping[str, Any]) -> NoReturn:
    """Raise RequestRefused for the first field in ``ext`` that is missing or unreadable."""
    for each in header_fields(cls, short):
        value = ext.get(each.wire)
        if value is not None:
            try:
                each.read(value)
            except ValueError as error:
                _refuse(each.wire, str(error))
        elif each.is_required:
            _refuse(each.wire, "null")
    raise AssertionError(f"{cls.__name__} can be read")


def _refuse(wire: str, reason: str) -> NoReturn:
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}: the custom field <{wire}> is {reason}") from None
