"""Names of topics and groups in calls, checked as RocketMQ's proxy does. Pure."""

import re
from functools import lru_cache
from typing import Final

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import SYSTEM_GROUP_PREFIX, check_group, check_topic, is_system_topic
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def topic_of(resource: wire.Resource) -> str:
    """The name of a user's topic. Refused when it is not a valid name, or RocketMQ's own."""
    return _users_topic(resource.name)


@lru_cache(maxsize=4_096)
def _users_topic(name: str) -> str:
    try:
        check_topic(name)
    except RequestRefused as refusal:
        raise Refused(wire.ILLEGAL_TOPIC, refusal.remark) from None
    if is_system_topic(name):
        raise Refused(wire.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def group_of(resource: wire.Resource) -> str:
    """The name of a user's consumer group. Refused when it is not a valid name, or RocketMQ's own."""
    return _users_group(resource.name)


@lru_cache(maxsize=4_096)
def _users_group(name: str) -> str:
    try:
        check_group(name)
    except RequestRefused as refusal:
        raise Refused(wire.ILLEGAL_CONSUMER_GROUP, refusal.remark) from None
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(wire.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def has_control_character(text: str) -> bool:
    """Whether ``text`` has a character that Java calls an ISO control character."""
    # Printable text has none, and that is known much sooner.
    return not text.isprintable() and _CONTROL.search(text) is not None
