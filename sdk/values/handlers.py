"""Handlers whose first parameter is annotated with a type, and which get values of that type instead of messages.

A second parameter without a default gets the message that the value was read from. A handler whose first parameter has
no annotation, or is annotated with a message, `Any` or `object`, is left as it is. A body that cannot be read as the
type raises `UnreadableValue` before the handler is called, which a retry policy can answer with a dead letter.
"""

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, get_args

from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.values.values import Values

# An annotation that is a text is not evaluated when it names one of these, often imported for type checkers only.
_MESSAGE_CLASSES = frozenset({"MessageExt", "Message", "StreamMessage", "ReceivedMessage"})
_ANYTHING = frozenset({"Any", "typing.Any", "object"})
AnyHandler = Callable[..., Any]
_ONE_MESSAGE = inspect.Signature([inspect.Parameter("message", inspect.Parameter.POSITIONAL_ONLY)])


def reading_values(handler: AnyHandler | None) -> AnyHandler | None:
    """``handler`` itself if it takes messages; else a handler of messages that reads the value and calls ``handler``.

    The result of ``handler`` is returned unchanged, so the caller awaits a coroutine, as it would without values.
    TypeError when the type cannot be read, or ``handler`` cannot be called with a value.
    """
    value_type, takes_message = _annotated(handler)
    if handler is None or value_type is None:
        return handler
    values, call = Values(value_type), handler

    @wraps(handler)
    def handle(message: MessageExt) -> Any:
        if takes_message:
            return call(values.read(message), message)
        return call(values.read(message))

    # The consumer checks that its handler takes one message, and would otherwise see the parameters of the wrapped
    # handler.
    handle.__signature__ = _ONE_MESSAGE  # type: ignore[attr-defined]
    return handle


def _annotated(handler: object) -> tuple[Any, bool]:
    """The type of the values that a handler takes, None if it takes messages; and whether it takes the message, too."""
    if not callable(handler):
        return None, False
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return None, False  # a function in C whose parameters Python does not know
    positional = [
        each
        for each in signature.parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if not positional or positional[0].annotation is inspect.Parameter.empty:
        return None, False
    annotation = positional[0].annotation
    if isinstance(annotation, str):
        if annotation in _ANYTHING or _MESSAGE_CLASSES.intersection(re.findall(r"\w+", annotation)):
            return None, False
        annotation = _evaluated(annotation, handler)
    if annotation is None or annotation in (Any, object) or _is_message(annotation):
        return None, False
    takes_message = len([each for each in positional if each.default is inspect.Parameter.empty]) > 1
    try:
        signature.bind(*[None] * (1 + takes_message))
    except TypeError as error:
        raise TypeError(f"a handler of values takes the value, or the value and its message: {error}") from None
    return annotation, takes_message


def _is_message(annotation: Any) -> bool:
    """Whether this is a class of messages, or contains one: a union, or a list as batch handlers take it."""
    if isinstance(annotation, type):
        return issubclass(annotation, Message | MessageExt)
    return any(_is_message(arg) for arg in get_args(annotation))


def _evaluated(annotation: str, handler: Any) -> Any:
    """The type that ``annotation`` of the handler's parameter names. TypeError when it names no type."""
    # The function whose names the text uses: within partials, methods, objects with `__call__`, and decorators.
    function = handler
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    names = dict(getattr(function, "__globals__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    # `typing.get_type_hints` does not search closures, where types defined in a function are.
    for name, cell in zip(getattr(code, "co_freevars", ()), cells or (), strict=False):
        with suppress(ValueError):  # the name has no value yet
            names[name] = cell.cell_contents
    try:
        return eval(annotation, names)  # the user's own source, as Python would have evaluated it
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise TypeError(f"the type of the handler's argument, {annotation!r}, cannot be found: {error}") from None
