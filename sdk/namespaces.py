"""Namespaces: topics and groups of several tenants in one cluster, by RocketMQ's convention of names. Pure.

In namespace ``prod`` the topic ``orders`` is ``prod%orders`` for brokers and NameServers, the retry topic of a group
``%RETRY%prod%group``. System topics and light queues belong to all. A name in the namespace already stays as it is.
Users of the SDK pass and see plain names; `Names` converts names where they enter and leave the SDK.
`takes_plain_names` does so for the arguments of a whole class.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, TypeVar

from skylark.mqcommon.arguments import check_text, shown
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.inner import may_hold_batches, unwrapped
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    is_light,
    is_system_topic,
)
from skylark.sdk.checked import check_group_name, check_topic_name

SEPARATOR = "%"
C = TypeVar("C", bound=type)
_LEGAL = re.compile(r"[a-zA-Z0-9_-]+")


def wrap(namespace: str, name: str) -> str:
    """The topic or group ``name`` as servers know it."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + SEPARATOR) else f"{prefix}{namespace}{SEPARATOR}{rest}"


def unwrap(namespace: str, name: str) -> str:
    """The plain name for the servers' ``name``; a name of another namespace stays as it is."""
    if not namespace or _is_system(name):
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + SEPARATOR)


def check_namespace(name: str, value: object) -> None:
    """TypeError unless ``value`` is a str; InvalidArgument unless it is a namespace, or empty for none."""
    check_text(name, value)
    assert isinstance(value, str)
    if value and not _LEGAL.fullmatch(value):
        raise InvalidArgument(f"{name} must consist of letters, digits, '_' and '-', not be {shown(value)}")
    if value.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX)):
        raise InvalidArgument(f"{name} is {shown(value)}: names that begin so belong to RocketMQ's brokers")


#: For `skylark.sdk.checked`: a namespace as an argument.
Namespace = Annotated[str, check_namespace]


def _is_system(name: str) -> bool:
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX) or is_light(name)


def _split(name: str) -> tuple[str, str]:
    """(%RETRY% or %DLQ% or "", the rest)."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix) and name != prefix:
            return prefix, name.removeprefix(prefix)
    return "", name


class NamedMessage(MessageExt):
    """A message whose topic is shown without its namespace."""

    __slots__ = ("_namespace",)

    def __init__(self, data: bytes, at: int, broker_name: str, namespace: str) -> None:
        super().__init__(data, at, broker_name)
        self._namespace = namespace

    @property
    def topic(self) -> str:
        return unwrap(self._namespace, self.record.topic)


class Names:
    """Maps plain names to names of servers and back, for one user of ``namespace``; empty: names do not change."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def topic(self, name: str) -> str:
        """The topic as servers know it; InvalidArgument when that name is too long for a topic."""
        if not self.namespace:
            return name
        wrapped = wrap(self.namespace, name)
        check_topic_name(f"topic {name!r} in namespace {self.namespace!r}", wrapped)
        return wrapped

    def plain(self, name: str) -> str:
        """The topic or group as users know it."""
        return unwrap(self.namespace, name)

    def group(self, name: str) -> str:
        """The group as servers know it; InvalidArgument when that name is too long for a group."""
        if not self.namespace:
            return name
        wrapped = wrap(self.namespace, name)
        check_group_name(f"group {name!r} in namespace {self.namespace!r}", wrapped)
        return wrapped

    def queue(self, mq: MessageQueue) -> MessageQueue:
        """The queue as servers know it."""
        return mq._replace(topic=self.topic(mq.topic)) if self.namespace else mq

    def plain_queue(self, mq: MessageQueue) -> MessageQueue:
        """The queue as users know it."""
        return mq._replace(topic=unwrap(self.namespace, mq.topic)) if self.namespace else mq

    def plain_queues(self, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        """The queues as users know them."""
        return tuple([self.plain_queue(mq) for mq in queues]) if self.namespace else queues

    def messages(self, data: bytes, broker_name: str, first_offset: int = 0) -> list[MessageExt]:
        """The messages of a pull's body, with plain topics; of inner batches only messages from ``first_offset`` on."""
        if not self.namespace:
            return decode_messages(data, broker_name, first_offset)
        starts = record_starts(data)
        if may_hold_batches(data, starts):
            named = unwrapped(
                data, starts, lambda at: NamedMessage(data, at, broker_name, self.namespace), first_offset
            )
            return [*named]
        return [NamedMessage(data, at, broker_name, self.namespace) for at in starts]


_CONVERT: dict[str, Callable[[Names, Any], Any]] = {
    "topic": lambda names, topic: None if topic is None else names.topic(topic),
    "group": lambda names, group: None if group is None else names.group(group),
    "source": lambda names, group: names.group(group),
    "target": lambda names, group: names.group(group),
    "mq": lambda names, mq: names.queue(mq),
    "config": lambda names, config: _renamed(names, config),
}


def takes_plain_names(cls: C) -> C:
    """Make the public methods of ``cls`` convert topics, groups and queues in arguments, by the object's ``names``.

    Arguments are recognized by their names, so that methods need no code for namespaces.
    """
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
        # Most clients have no namespace: for them this costs one check.
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
