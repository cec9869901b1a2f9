"""The copy of a message that was popped and not acknowledged in time. Pure.

It goes to the group's retry topic for the message's topic, or to the group's dead letter topic after as many deliveries
as the group allows. RocketMQ leaves dead letters of popped messages to its proxy; here the broker makes them.
"""

from broker.delivery.retry.messages import given_back
from broker.writing.writer import Incoming
from mqcommon.message.properties import find_property, replace_properties
from mqcommon.message.record import Record
from mqcommon.names import RETRY_PREFIX
from remoting.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic

_FIRST_POP, _HANDLE = b"1ST_POP_TIME", b"POP_CK"


def retry_topic_of(topic: str, group: str, v2: bool) -> str:
    """The topic for messages of ``topic`` that come back; those of a retry topic come back there."""
    return topic if topic.startswith(RETRY_PREFIX) else pop_retry_topic(topic, group, RETRY_V2 if v2 else RETRY_V1)


def revived(record: Record, topic: str, pop_ms: int) -> Incoming:
    """``record`` for the retry topic. ``pop_ms``: when it was popped this time."""
    properties = record.properties
    first = find_property(properties, _FIRST_POP) or b"%d" % pop_ms
    values = {_FIRST_POP: first, _HANDLE: None}
    return Incoming(
        topic, 0, record.body, replace_properties(properties, values), record.flag, record.sys_flag,
        record.born_timestamp, record.born_host, record.reconsume_times + 1,
    )  # fmt: skip


def dead_letter(record: Record, origin: str, topic: str) -> Incoming:
    """``record``, which was sent to ``origin``, for the dead letter topic ``topic``."""
    return given_back(record._replace(topic=origin), topic, 0, None)
