"""The base of all bodies: a dataclass whose fields know their name and kind on the wire.

Reading is lenient, as clients need it: unknown members are ignored, absent and null ones keep their default, values
are read by their kind. Members are written in alphabetical order (fastjson's), without those that are None.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn, Protocol, Self

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.scalars import camel_case, read_flag, read_int, read_long, read_real, read_text


@lazy_dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of value is read and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    empty: Callable[[], Any] = lambda: None


class WireBody(Protocol):
    """A value that can be encoded as a body."""

    def to_wire(self) -> dict[str, Any]: ...


class ReadableBody(WireBody, Protocol):
    """A value that can also be decoded, as a body within a body."""

    @classmethod
    def from_wire(cls, obj: Any) -> Self: ...


TEXT: Final = Kind(read_text, empty=str)
INT: Final = Kind(read_int, empty=int)
LONG: Final = Kind(read_long, empty=int)
FLAG: Final = Kind(read_flag, empty=bool)
REAL: Final = Kind(read_real, empty=float)


def choice(*names: str) -> Kind:
    """A Java enum: written by name, read by name or ordinal."""

    def read(value: Any) -> str:
        if type(value) is int and 0 <= value < len(names):
            return names[value]
        if type(value) is str and value in names:
            return value
        raise ValueError(f"none of {', '.join(names)}")

    return Kind(read, empty=lambda: names[0])


def body_of(cls: type[ReadableBody]) -> Kind:
    """The kind of a field whose value is a ``cls``: a body within the body."""
    return Kind(cls.from_wire, lambda body: body.to_wire(), cls)


def list_of(kind: Kind) -> Kind:
    """A JSON array; nulls in it are left out."""
    read, write = kind.read, kind.write

    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("not an array")
        return [read(each) for each in value if each is not None]

    return Kind(read_list, write and (lambda values: [write(each) for each in values]), list)


def map_of(kind: Kind, read_key: Callable[[Any], Any] = read_text) -> Kind:
    """A JSON object; entries whose value is null are left out. Keys are text unless ``read_key`` says otherwise."""
    read, write = kind.read, kind.write

    def read_map(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise ValueError("not an object")
        return {read_key(key): read(each) for key, each in value.items() if each is not None}

    return Kind(read_map, write and (lambda values: {key: write(each) for key, each in values.items()}), dict)


def map_by_int(kind: Kind) -> Kind:
    """A map with numbers as keys, quoted or not."""
    return map_of(kind, read_long)


def map_by_queue(kind: Kind) -> Kind:
    """A map with MessageQueue keys, which JSON has no form for."""
    return map_of(kind, read_queue)


def read_queue(value: Any) -> MessageQueue:
    """A queue: a JSON object, or an array between Skylark and Skylark."""
    if isinstance(value, MessageQueue):
        return value
    if type(value) is dict:
        parts: Sequence[Any] = (value.get("topic"), value.get("brokerName"), value.get("queueId"))
    elif isinstance(value, list | tuple):
        parts = value
    else:
        raise ValueError("not a message queue")
    if len(parts) != 3 or type(parts[0]) is not str or type(parts[1]) is not str:
        raise ValueError("not a message queue")
    return MessageQueue(parts[0], parts[1], read_int(parts[2]))


def write_queue(queue: MessageQueue) -> dict[str, Any]:
    """A queue as a JSON object."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


@lazy_dataclass(frozen=True, slots=True)
class Member:
    """One field of a body on the wire."""

    attribute: str
    wire: str
    kind: Kind


def member(kind: Kind, default: Any = MISSING, *, wire: str | None = None, compare: bool = True) -> Any:
    """A field of a body. ``wire`` is its name there, when that is not the camel case of the attribute.

    ``compare`` false: bodies that differ in this field only are equal.
    """
    metadata = {"kind": kind, "wire": wire}
    if default is not MISSING:
        return field(default=default, metadata=metadata, compare=compare)
    return field(default_factory=kind.empty, metadata=metadata)


def _members(cls: Any) -> tuple[Member, ...]:
    found = [
        Member(each.name, each.metadata["wire"] or camel_case(each.name), each.metadata["kind"]) for each in fields(cls)
    ]
    return tuple(sorted(found, key=lambda each: each.wire))


#: The fields of a body class in the order of the wire.
members: Final[Callable[[Any], tuple[Member, ...]]] = cache(_members)


class Body:
    """Base of all bodies; subclasses are dataclasses whose fields are made by ``member``."""

    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        """Plain values for ``dumps``. Maps keep their int and MessageQueue keys."""
        return _functions(type(self)).write(self)

    @classmethod
    def from_wire(cls, obj: Any) -> Self:
        """The body in the result of ``loads``. Raises ProtocolError when that is not such a body."""
        if type(obj) is not dict:
            raise ProtocolError(f"{cls.__name__} is not an object")
        try:
            body: Self = _functions(cls).read(obj)
        except ValueError:
            _refuse_fault(cls, obj)
        return body


class _Functions(NamedTuple):
    #: Returns the body in an object of ``loads``. Raises ValueError when a member cannot be read.
    read: Callable[[dict[str, Any]], Any]
    write: Callable[[Any], dict[str, Any]]


def _make_functions(cls: Any) -> _Functions:
    """Functions without a loop, generated as header.py does it: some bodies come with every request."""
    numbered = list(enumerate(members(cls)))
    known = {each.name: each for each in fields(cls)}
    names: dict[str, Any] = {"cls": cls}
    for n, each in numbered:
        default, factory = known[each.attribute].default, known[each.attribute].default_factory
        names |= {f"read{n}": each.kind.read, f"write{n}": each.kind.write, f"default{n}": default, f"make{n}": factory}
    absent = [f"default{n}" if names[f"make{n}"] is MISSING else f"make{n}()" for n, _ in numbered]
    written = [f"v{n}" if names[f"write{n}"] is None else f"write{n}(v{n})" for n, _ in numbered]
    source = [
        "def read(obj):",
        "    get = obj.get",
        *[f"    v{n} = get({each.wire!r})" for n, each in numbered],
        "    return cls(",
        *[f"        {each.attribute}={absent[n]} if v{n} is None else read{n}(v{n})," for n, each in numbered],
        "    )",
        "def write(body):",
        "    wire = {}",
    ]
    for n, each in numbered:
        source += [f"    v{n} = body.{each.attribute}", f"    if v{n} is not None: wire[{each.wire!r}] = {written[n]}"]
    source.append("    return wire")
    exec("\n".join(source), names)
    return _Functions(names["read"], names["write"])


_functions: Final[Callable[[Any], _Functions]] = cache(_make_functions)


def _refuse_fault(cls: Any, obj: dict[str, Any]) -> NoReturn:
    """Raise ProtocolError for the first member of ``obj`` that is unreadable."""
    for each in members(cls):
        value = obj.get(each.wire)
        if value is not None:
            try:
                each.kind.read(value)
            except ValueError as error:
                raise ProtocolError(f"{cls.__name__}.{each.wire}: {error}") from None
    raise AssertionError(f"{cls.__name__} can be read")


LAST_COUNTER: Final = (1 << 63) - 1


@lazy_dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """The version of a table; two versions are equal only when all three fields agree.

    ``state_version`` is the Controllers' epoch, else 0; ``timestamp`` is in ms since 1970.
    """

    state_version: int = member(LONG, 0)
    timestamp: int = member(LONG, 0)
    counter: int = member(LONG, 0)

    def next(self, now_ms: int) -> "DataVersion":
        """The version after one more change."""
        # A peer or a file may have brought the largest number. One more has no form in 64 bits, so others would refuse
        # this broker's tables; versions are only compared for equality, and the time is another one. 0: no change yet.
        counter = 1 if self.counter >= LAST_COUNTER else self.counter + 1
        return DataVersion(self.state_version, now_ms, counter)


@lazy_dataclass(slots=True)
class KVTable(Body):
    """A table of texts by key."""

    table: dict[str, str] = member(map_of(TEXT))
