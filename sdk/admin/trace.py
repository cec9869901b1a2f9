"""The trace of a sent message, in the format that RocketMQ's clients write to the trace topic; pure."""

from mqcommon.message.ids import parse_offset_msg_id
from mqcommon.message.message import Message
from mqcommon.names import TRACE_TOPIC
from sdk.admin.render import java_value
from sdk.producer.result import SendResult

_REGION = "DefaultRegion"
_NORMAL_MESSAGE = 0
_FIELD, _END = "\x01", "\x02"


def trace_of_send(message: Message, result: SendResult, group: str, sent_ms: int, cost_ms: int) -> Message:
    """The trace message for ``message``, sent at ``sent_ms``, with the keys by which queryMsgTraceById finds it."""
    host, port, _ = parse_offset_msg_id(result.offset_msg_id)
    fields = (
        "Pub",
        sent_ms,
        _REGION,
        group,
        message.topic,
        result.msg_id,
        message.tags,
        message.keys,
        f"{host}:{port}",
        len(message.body),
        cost_ms,
        _NORMAL_MESSAGE,
        result.offset_msg_id,
        True,
    )
    text = _FIELD.join(java_value(field) for field in fields) + _END
    return Message(TRACE_TOPIC, text.encode(), keys=[result.msg_id, *(message.keys or "").split()])
