"""The trace of a sent message, in the format that RocketMQ's clients write to the trace topic; pure."""

from mqcommon.message.ids import parse_offset_msg_id
from mqcommon.message.message import Message
from mqcommon.names import TRACE_TOPIC
from sdk.admin.render import java_value
from sdk.producer.result import SendResult
from sdk.traces.entries import DEFAULT_REGION
from sdk.traces.records import FIELD_END, NORMAL_MESSAGE, PUB, RECORD_END


def trace_of_send(message: Message, result: SendResult, group: str, sent_ms: int, cost_ms: int) -> Message:
    """The trace message for ``message``, sent at ``sent_ms``, with the keys by which queryMsgTraceById finds it."""
    host, port, _ = parse_offset_msg_id(result.offset_msg_id)
    fields = (
        PUB,
        sent_ms,
        DEFAULT_REGION,
        group,
        message.topic,
        result.msg_id,
        message.tags,
        message.keys,
        f"{host}:{port}",
        len(message.body),
        cost_ms,
        NORMAL_MESSAGE,
        result.offset_msg_id,
        True,
    )
    text = FIELD_END.join(java_value(field) for field in fields) + RECORD_END
    return Message(TRACE_TOPIC, text.encode(), keys=[result.msg_id, *(message.keys or "").split()])
