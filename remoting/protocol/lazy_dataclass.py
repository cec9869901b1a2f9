"""Dataclasses for the descriptions of requests, whose constructors are generated when they are first called.

A process imports the descriptions of all requests and uses some of them. For each class `dataclasses.dataclass`
generates and compiles five functions at its import: for 200 classes that was a sixth of the start of a broker.
"""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform()
def lazy_dataclass(cls: type[T]) -> type[T]:
    """As ``dataclass(slots=True)``, for fields that are all arguments of the constructor and may all be positional."""
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    for name, method in _METHODS.items():
        setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Generate the constructor of the class, and construct this object with it."""
    cls: Any = type(self)
    like: list[Any] = [
        (each.name, Any, field(default=each.default, default_factory=each.default_factory)) for each in fields(cls)
    ]
    made: Any = make_dataclass(cls.__name__, like, repr=False, eq=False)
    cls.__init__ = made.__init__
    made.__init__(self, *args, **kwargs)


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)


def _repr(self: Any) -> str:
    values = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
    return f"{type(self).__qualname__}({', '.join(values)})"


_METHODS = {"__init__": _first_init, "__eq__": _equal, "__hash__": None, "__repr__": _repr}
