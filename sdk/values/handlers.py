"""Handlers whose argument is annotated with a type: they get the value of a message, and, if they want, the message.

A handler without an annotation, or with one of `MessageExt`, is left as it is. A body that is no such value raises
`UnreadableValue` in place of the handler, and a retry policy makes a dead letter of it.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, get_args

from mqcommon.message.message import Message, MessageExt
from sdk.values.values import Values

# Names of annotations that need not be resolved: they may be imported for type checkers only.
_MESSAGES = ("MessageExt", "Message", "StreamMessage", "ReceivedMessage", "Any", "object")
AnyHandler = Callable[..., Any]
_OF_MESSAGE = inspect.Signature([inspect.Parameter("message", inspect.Parameter.POSITIONAL_ONLY)])


def reading_values(handler: AnyHandler | None) -> AnyHandler | None:
    """``handler`` for messages: itself, or one that calls it with values."""
    kind, takes_message = _wanted(handler)
    if handler is None or kind is None:
        return handler
    values, call = Values(kind), handler

    @wraps(handler)
    def handle(message: MessageExt) -> Any:
        if takes_message:
            return call(values.read(message), message)
        return call(values.read(message))

    # `wraps` would show the parameters of the handler to those who check that it can be called with a message.
    handle.__signature__ = _OF_MESSAGE  # type: ignore[attr-defined]
    return handle


def _wanted(handler: object) -> tuple[Any, bool]:
    """The type that a handler wants, None if it wants messages; and whether it wants the message, too."""
    if not callable(handler):
        return None, False
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except ValueError:
        return None, False  # a function of C that does not tell
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if not places or places[0].annotation is inspect.Parameter.empty:
        return None, False
    kind = places[0].annotation
    if isinstance(kind, str):
        kind = None if kind.rpartition(".")[2] in _MESSAGES else _found(kind, handler)
    if kind is None or kind in (Any, object) or _is_message(kind):
        return None, False
    needed = [one for one in places if one.default is inspect.Parameter.empty]
    return kind, len(needed) == 2


def _is_message(kind: Any) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, Message | MessageExt)
    return any(_is_message(arg) for arg in get_args(kind))


def _found(text: str, handler: Any) -> Any:
    """The type that an annotation names which is a text. TypeError when it cannot be found."""
    function = handler
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    names = dict(getattr(function, "__globals__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), cells or (), strict=False):
        with suppress(ValueError):  # it has no value yet, as the name of a function that is being made
            names[name] = cell.cell_contents
    try:
        return eval(text, names)
    except NameError as error:
        raise TypeError(f"the type of the handler's argument, {text!r}, cannot be found: {error}") from None
