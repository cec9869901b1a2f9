"""The base of all bodies: a dataclass whose fields know their name and kind on the wire.

Reading is lenient, as clients need it: unknown members are ignored, absent and null ones keep their default, values
are read by their kind. Members are written in alphabetical order (fastjson's), without those that are None.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Final, Self

from mqcommon.errors import ProtocolError
from remoting.protocol.bodies.kinds import Kind
from remoting.protocol.scalars import camel_case


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a body on the wire."""

    attribute: str
    wire: str
    kind: Kind


def member(kind: Kind, default: Any = MISSING, *, wire: str | None = None) -> Any:
    """A field of a body. ``wire`` is its name there, when that is not the camel case of the attribute."""
    metadata = {"kind": kind, "wire": wire}
    if default is not MISSING:
        return field(default=default, metadata=metadata)
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
        wire: dict[str, Any] = {}
        for each in members(type(self)):
            value = getattr(self, each.attribute)
            if value is not None:
                write = each.kind.write
                wire[each.wire] = value if write is None else write(value)
        return wire

    @classmethod
    def from_wire(cls, obj: Any) -> Self:
        """The body in the result of ``loads``. Raises ProtocolError when that is not such a body."""
        if type(obj) is not dict:
            raise ProtocolError(f"{cls.__name__} is not an object")
        values: dict[str, Any] = {}
        for each in members(cls):
            value = obj.get(each.wire)
            if value is not None:
                try:
                    values[each.attribute] = each.kind.read(value)
                except ValueError as error:
                    raise ProtocolError(f"{cls.__name__}.{each.wire}: {error}") from None
        return cls(**values)
