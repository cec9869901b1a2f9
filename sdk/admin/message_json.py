"""A message as plain data for JSON, under RocketMQ's names, and its body as text."""

import base64
from typing import TYPE_CHECKING, Any

from skylark.mqcommon.errors import ProtocolError

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt


def message_json(message: "MessageExt", *, charset: str = "utf-8", with_body: bool = True) -> dict[str, Any]:
    """All fields with RocketMQ's names; the body both as text and as base64."""
    body = body_of(message) if with_body else b""
    texts = {"body": body_text(body, charset), "bodyBase64": base64.b64encode(body).decode()}
    return {
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "topic": message.topic,
        "tags": message.tags,
        "keys": message.keys,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.store_size,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": dict(message.properties),
        **(texts if with_body else {}),
    }


def body_of(message: "MessageExt") -> bytes:
    """The body; the stored bytes when it cannot be decompressed, see `body_error`."""
    try:
        return message.body
    except ProtocolError:
        return bytes(message.record.body)


def body_error(message: "MessageExt") -> ProtocolError | None:
    """Why the body is shown as it is stored."""
    try:
        message.body  # noqa: B018  reading it raises
    except ProtocolError as error:
        return error
    return None


def body_text(body: bytes, charset: str) -> str:
    """A body as text. Some charsets (UTF-7) decode to lone surrogates, which terminals cannot print."""
    return body.decode(charset, "replace").encode("utf-8", "replace").decode()
