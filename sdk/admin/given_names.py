"""Methods of `Admin` in a namespace: their arguments are plain names, requests have those that servers know.

Arguments are recognized by their names, so that a method is written once and knows nothing of namespaces.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from sdk.namespaces import Names

C = TypeVar("C", bound=type)

_CONVERT: dict[str, Callable[[Names, Any], Any]] = {
    "topic": lambda names, topic: None if topic is None else names.topic(topic),
    "group": lambda names, group: None if group is None else names.group(group),
    "source": lambda names, group: names.group(group),
    "target": lambda names, group: names.group(group),
    "mq": lambda names, mq: names.queue(mq),
    "config": lambda names, config: _renamed(names, config),
}


def takes_plain_names(cls: C) -> C:
    """Make the public methods of ``cls`` convert the topics, groups and queues given, by the object's ``names``."""
    for name, value in list(vars(cls).items()):
        if inspect.iscoroutinefunction(value) and not name.startswith("_"):
            parameters = tuple(inspect.signature(value).parameters)
            if not _CONVERT.keys().isdisjoint(parameters):
                setattr(cls, name, _converting(value, parameters))
    return cls


def _converting(method: Callable[..., Any], parameters: tuple[str, ...]) -> Callable[..., Any]:
    @wraps(method)
    async def converting(self: Any, *args: Any, **named: Any) -> Any:
        names: Names = self.names
        if names.namespace:
            given = {**dict(zip(parameters[1:], args, strict=False)), **named}
            return await method(self, **{key: _converted(names, key, value) for key, value in given.items()})
        return await method(self, *args, **named)

    return converting


def _converted(names: Names, key: str, value: Any) -> Any:
    convert = _CONVERT.get(key)
    return value if convert is None else convert(names, value)


def _renamed(names: Names, config: Any) -> Any:
    """The configuration of a topic or of a group, with the name that servers know."""
    if hasattr(config, "topic_name"):
        return replace(config, topic_name=names.topic(config.topic_name))
    return replace(config, group_name=names.group(config.group_name))
