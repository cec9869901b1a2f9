"""Values of dataclasses and of the standard library's types as plain data, and back.

Plain data is what JSON and CBOR have: None, bool, int, float, text, lists, objects; CBOR also has bytes. `reader_of`
makes a reading function for a type once; that function checks all data, and its errors name the place. A member that a
dataclass does not have is left out, so that producers may add members before their consumers know them.
"""

import base64
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

# Called with plain data and its place in the body, as `.items[3].price`. Raises ValueError.
Read = Callable[[Any, str], Any]


def plain(value: Any, *, has_bytes: bool) -> Any:
    """``value`` as plain data; bytes stay if it ``has_bytes``, else they are base64. TypeError for other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    inner = partial(plain, has_bytes=has_bytes)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: inner(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
    if isinstance(value, Enum):
        return inner(value.value)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value) if has_bytes else base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {_key(key): inner(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [inner(each) for each in value]
    for cls, write in _WRITERS.items():
        if isinstance(value, cls):
            return write(value)
    raise TypeError(f"a {type(value).__name__} has no place in a message: {value!r}")


def _key(key: object) -> str:
    if isinstance(key, Enum):
        key = key.value
    if not isinstance(key, str):
        raise TypeError(f"a key of a mapping must be a str, not {key!r}")
    return key


_WRITERS: Mapping[type, Callable[[Any], Any]] = {
    date: lambda value: value.isoformat(),  # datetimes are dates, too
    time: lambda value: value.isoformat(),
    timedelta: lambda value: value.total_seconds(),
    UUID: str,
    Decimal: str,
}


def reader_of(kind: Any, makers: "dict[Any, Read] | None" = None) -> Read:
    """The reader of a type. TypeError for types that are not supported."""
    known = {} if makers is None else makers
    if (found := _lookup(known, kind)) is not None:
        return found
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return reader_of(args[0], known)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, known)
    if origin in (Union, UnionType):
        return _union(args, known)
    if origin is Literal:
        return partial(_literal, args)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_enum, kind)
    if kind in _READERS:
        return _READERS[kind]
    container = origin or kind
    if container in (list, set, frozenset, Sequence):
        return partial(_items, list if container is Sequence else container, reader_of(args[0] if args else Any, known))
    if container is tuple:
        if not args or args[-1] is Ellipsis:
            return partial(_items, tuple, reader_of(args[0] if args else Any, known))
        return partial(_tuple, [reader_of(arg, known) for arg in args])
    if container in (dict, Mapping):
        key, value = args or (str, Any)
        if key is not str:
            raise TypeError(f"{kind}: keys must be str")
        return partial(_mapping, reader_of(value, known))
    raise TypeError(
        f"values of type {getattr(kind, '__qualname__', kind)} are not supported: use dataclasses, msgspec "
        "or pydantic, or types of the standard library"
    )


def _lookup(known: dict[Any, Read], kind: Any) -> Read | None:
    try:
        return known.get(kind)
    except TypeError:  # a type that cannot be hashed, as Annotated with a list
        return None


def _dataclass(cls: type, known: dict[Any, Read]) -> Read:
    fields: list[tuple[str, Read, bool]] = []
    # Registered before the fields are read: a field may be of the same class.
    read = known[cls] = partial(_object, cls, fields)
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise TypeError(f"a type of {cls.__qualname__} cannot be found: {error}") from None
    for each in dataclasses.fields(cls):
        if each.init:
            none = dataclasses.MISSING
            is_needed = each.default is none and each.default_factory is none
            fields.append((each.name, reader_of(hints[each.name], known), is_needed))
    return read


def _object(cls: type, fields: Sequence[tuple[str, Read, bool]], data: Any, at: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(at, "an object", data)
    values = {}
    for name, read, is_needed in fields:
        if name in data:
            values[name] = read(data[name], f"{at}.{name}")
        elif is_needed:
            raise ValueError(f"{at or '.'}: {cls.__name__} needs a {name}")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # of its __post_init__
        raise ValueError(f"{at or '.'}: {error}") from error


def _union(kinds: Sequence[Any], known: dict[Any, Read]) -> Read:
    readers = [reader_of(kind, known) for kind in kinds]
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not NoneType)

    def read(data: Any, at: str) -> Any:
        reasons = []
        for one in readers:
            try:
                return one(data, at)
            except ValueError as error:
                reasons.append(str(error))
        if len(readers) == 2 and NoneType in kinds:
            # The reason why the data is not None does not help.
            raise ValueError(reasons[0] if kinds[1] is NoneType else reasons[1])
        raise ValueError(f"{at or '.'} is no {names}: {'; '.join(reasons)}")

    return read


def _literal(allowed: Sequence[Any], data: Any, at: str) -> Any:
    for value in allowed:
        if value == data and type(value) is type(data):
            return value
    raise _wrong(at, f"one of {', '.join(map(repr, allowed))}", data)


def _enum(cls: type[Enum], data: Any, at: str) -> Any:
    try:
        return cls(data)
    except ValueError:
        raise _wrong(at, f"a {cls.__name__}", data) from None


def _items(make: Callable[[Sequence[Any]], Any], read: Read, data: Any, at: str) -> Any:
    if not isinstance(data, list):
        raise _wrong(at, "a list", data)
    return make([read(each, f"{at}[{number}]") for number, each in enumerate(data)])


def _tuple(readers: Sequence[Read], data: Any, at: str) -> Any:
    if not isinstance(data, list) or len(data) != len(readers):
        raise _wrong(at, f"a list of {len(readers)}", data)
    return tuple(read(each, f"{at}[{number}]") for number, (read, each) in enumerate(zip(readers, data, strict=True)))


def _mapping(read: Read, data: Any, at: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(at, "an object", data)
    for key in data:
        if not isinstance(key, str):
            raise _wrong(f"a key of {at or '.'}", "a text", key)
    return {key: read(value, f"{at}.{key}") for key, value in data.items()}


def _exact(kinds: tuple[type, ...], name: str, data: Any, at: str) -> Any:
    # `bool` is an int to isinstance, and must not pass as a number.
    if type(data) not in kinds:
        raise _wrong(at, name, data)
    return data


def _parsed(parse: Callable[[Any], Any], kinds: tuple[type, ...], name: str, data: Any, at: str) -> Any:
    if type(data) not in kinds:
        raise _wrong(at, name, data)
    try:
        return parse(data)
    except (ValueError, InvalidOperation, OverflowError):
        raise _wrong(at, name, data) from None


def _bytes(data: Any, at: str) -> bytes:
    if isinstance(data, bytes):
        return data
    found: bytes = _parsed(lambda text: base64.b64decode(text, validate=True), (str,), "base64", data, at)
    return found


def _wrong(at: str, wanted: str, data: Any) -> ValueError:
    text = repr(data)
    return ValueError(f"{at or '.'} must be {wanted}, not {text if len(text) <= 60 else text[:57] + '...'}")


_READERS: Mapping[Any, Read] = {
    Any: lambda data, at: data,
    object: lambda data, at: data,
    NoneType: partial(_exact, (NoneType,), "null"),
    None: partial(_exact, (NoneType,), "null"),
    str: partial(_exact, (str,), "a text"),
    bool: partial(_exact, (bool,), "true or false"),
    int: partial(_exact, (int,), "a whole number"),
    float: lambda data, at: float(_exact((float, int), "a number", data, at)),
    bytes: _bytes,
    datetime: partial(_parsed, datetime.fromisoformat, (str,), "a time in ISO 8601"),
    date: partial(_parsed, date.fromisoformat, (str,), "a date in ISO 8601"),
    time: partial(_parsed, time.fromisoformat, (str,), "a time of day in ISO 8601"),
    timedelta: partial(_parsed, lambda seconds: timedelta(seconds=seconds), (int, float), "seconds"),
    UUID: partial(_parsed, UUID, (str,), "a UUID"),
    Decimal: partial(_parsed, Decimal, (str, int), "a decimal number"),
}
