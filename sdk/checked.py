"""Checks the arguments of public methods against their annotations.

`Annotated` types carry bounds and checks of names. A method itself checks what its annotations cannot express, such as
a queue's topic. `Producer.send` is not wrapped, since it is the hot path: it has checks of its own.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from skylark.mqcommon.arguments import (
    INT_MAX,
    LONG_MAX,
    check_bytes,
    check_flag,
    check_int,
    check_milliseconds,
    check_text,
    shown,
    wrong_type,
)
from skylark.mqcommon.errors import InvalidArgument, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import check_group, check_topic

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
Check = Callable[[str, object], None]


@lazy_dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest allowed value of an int."""

    least: int
    most: int


Count = Annotated[int, Bounds(1, INT_MAX)]
NotNegative = Annotated[int, Bounds(0, INT_MAX)]
Offset = Annotated[int, Bounds(0, LONG_MAX)]
Milliseconds = Annotated[float, check_milliseconds]


def check_topic_name(name: str, value: object) -> None:
    """TypeError unless ``value`` is a str; InvalidArgument when it is no topic name that brokers accept."""
    _check_legal(check_topic, name, value)


def check_group_name(name: str, value: object) -> None:
    """TypeError unless ``value`` is a str; InvalidArgument when it is no group name that brokers accept."""
    _check_legal(check_group, name, value)


TopicName = Annotated[str, check_topic_name]
GroupName = Annotated[str, check_group_name]


def _check_legal(check: Callable[[str], None], name: str, value: object) -> None:
    check_text(name, value)
    try:
        check(cast(str, value))
    except RequestRefused as refused:
        raise InvalidArgument(f"{name} is {shown(value)}: {refused.remark}") from None


def check_queue(name: str, value: object, topic: str | None = None) -> None:
    """TypeError unless ``value`` is a queue; InvalidArgument when its id is negative, or it is not of ``topic``."""
    if not isinstance(value, MessageQueue):
        raise wrong_type(name, "a MessageQueue", value)
    if value.queue_id < 0:
        raise InvalidArgument(f"{name} must have a queue_id of 0 or more, not {value}")
    if topic is not None and value.topic != topic:
        raise InvalidArgument(f"{name} must be a queue of topic {topic!r}, not {value}")


def checked(function: F) -> F:
    """Wrap ``function`` so that its arguments are checked, by their annotations, before it runs."""
    # Arguments and annotations are read at the first call: at import the types that they name may not exist yet.
    names: tuple[str, ...] = ()
    checks: dict[str, Check] | None = None

    def check(args: tuple[object, ...], named: dict[str, object]) -> None:
        nonlocal names, checks
        if checks is None:
            names, checks = tuple(inspect.signature(function).parameters), _checks_of(function)
        for name, value in (*zip(names, args, strict=False), *named.items()):
            if name in checks:
                checks[name](name, value)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def checking_async(*args: Any, **named: Any) -> Any:
            check(args, named)
            return await function(*args, **named)

        return cast(F, checking_async)

    @wraps(function)
    def checking(*args: Any, **named: Any) -> Any:
        check(args, named)
        return function(*args, **named)

    return cast(F, checking)


def checked_methods(cls: C) -> C:
    """Make the constructor and the public methods of ``cls`` check their arguments."""
    for name, value in list(vars(cls).items()):
        if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, checked(value))
    return cls


def _checks_of(function: Callable[..., Any]) -> dict[str, Check]:
    hints = get_type_hints(function, include_extras=True)
    return {name: check for name, hint in hints.items() if name != "return" and (check := _check_of(hint)) is not None}


_SIMPLE: Mapping[Any, Check] = {
    str: check_text,
    bytes: check_bytes,
    bool: check_flag,
    int: check_int,
    float: check_milliseconds,
    MessageQueue: check_queue,
}


def _check_of(hint: Any) -> Check | None:
    """The check for values of this type; None when any value is allowed."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(*args)
    if origin in (Union, UnionType):
        inner = [_check_of(arg) for arg in args if arg is not NoneType]
        if len(inner) != 1 or inner[0] is None:
            return None
        some = inner[0]
        return lambda name, value: None if value is None else some(name, value)
    if origin is Literal:
        return lambda name, value: _check_one_of(args, name, value)
    if origin is Sequence and isinstance(args[0], type) and (check := _check_of(args[0])) is not None:
        return partial(_check_sequence, args[0].__name__, check)
    if origin is Mapping and args == (str, str):
        return _check_text_map
    if origin is Callable:
        return _check_callable
    if isinstance(hint, type) and hint is not object and not getattr(hint, "_is_protocol", False):
        return lambda name, value: _check_instance(hint, name, value)
    return None


def _annotated(base: Any, rule: Any) -> Check:
    if isinstance(rule, Bounds):
        return lambda name, value: check_int(name, value, rule.least, rule.most)
    return cast(Check, rule)


def _check_one_of(allowed: tuple[str, ...], name: str, value: object) -> None:
    check_text(name, value)
    if value not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, allowed))}, not {shown(value)}")


def _check_sequence(of: str, check: Check, name: str, value: object) -> None:
    # A str is a sequence of str, too, and never what was meant.
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong_type(name, f"a sequence of {of}", value)
    for number, each in enumerate(value):
        check(f"{name}[{number}]", each)


def _check_text_map(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise wrong_type(name, "a mapping of str to str", value)
    for key, each in value.items():
        check_text(f"a key of {name}", key)
        check_text(f"{name}[{key!r}]", each)


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise wrong_type(name, "a function", value)


def _check_instance(cls: type, name: str, value: object) -> None:
    if not isinstance(value, cls):
        raise wrong_type(name, f"a {cls.__name__}", value)
