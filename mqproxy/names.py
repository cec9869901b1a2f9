"""Names of topics and groups in calls, checked as RocketMQ's proxy does. Pure."""

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import SYSTEM_GROUP_PREFIX, check_group, check_topic, is_system_topic
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire


def topic_of(resource: wire.Resource) -> str:
    """The name of a user's topic. Refused when it is not a valid name, or RocketMQ's own."""
    try:
        check_topic(resource.name)
    except RequestRefused as refusal:
        raise Refused(wire.ILLEGAL_TOPIC, refusal.remark) from None
    if is_system_topic(resource.name):
        raise Refused(wire.ILLEGAL_TOPIC, "cannot access system topic")
    return resource.name


def group_of(resource: wire.Resource) -> str:
    """The name of a user's consumer group. Refused when it is not a valid name, or RocketMQ's own."""
    try:
        check_group(resource.name)
    except RequestRefused as refusal:
        raise Refused(wire.ILLEGAL_CONSUMER_GROUP, refusal.remark) from None
    if resource.name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(wire.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return resource.name


def has_control_character(text: str) -> bool:
    """Whether ``text`` has a character that Java calls an ISO control character."""
    return any(char <= "\x1f" or "\x7f" <= char <= "\x9f" for char in text)
