"""A message as mqadmin prints it: the detail block, RocketMQ's one-line toString, and JSON.

The line and the block have the names and widths of RocketMQ's tool. Bodies are printed as text with control characters
escaped; the unchanged body is written to a file, as RocketMQ's tool does.
"""

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skylark.mqcommon.errors import ProtocolError
from skylark.sdk.admin.render import java_object, java_value, time_text, visible

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt

_LINE = "%-20s %s"
_NO_BODY = "NOT PRINT BODY"


def message_json(message: "MessageExt", *, charset: str = "utf-8", with_body: bool = True) -> dict[str, Any]:
    """All fields with RocketMQ's names; the body both as text and as base64."""
    body = body_of(message) if with_body else b""
    texts = {"body": _text(body, charset), "bodyBase64": base64.b64encode(body).decode()}
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


def _text(body: bytes, charset: str) -> str:
    """A body as text. Some charsets (UTF-7) decode to lone surrogates, which terminals cannot print."""
    return body.decode(charset, "replace").encode("utf-8", "replace").decode()


def detail_lines(
    message: "MessageExt", body_path: str, *, with_id: bool = True, charset: str | None = None
) -> Iterator[str]:
    """RocketMQ's block of one message; ``charset`` adds the body itself."""
    if with_id:
        yield _LINE % ("OffsetID:", message.offset_msg_id)
    yield _LINE % ("Topic:", message.topic)
    yield _LINE % ("Tags:", f"[{visible(java_value(message.tags))}]")
    yield _LINE % ("Keys:", f"[{visible(java_value(message.keys))}]")
    yield _LINE % ("Queue ID:", message.queue_id)
    yield _LINE % ("Queue Offset:", message.queue_offset)
    yield _LINE % ("CommitLog Offset:", message.physical_offset)
    yield _LINE % ("Reconsume Times:", message.reconsume_times)
    yield _LINE % ("Born Timestamp:", time_text(message.born_timestamp))
    yield _LINE % ("Store Timestamp:", time_text(message.store_timestamp))
    yield _LINE % ("Born Host:", message.born_host)
    yield _LINE % ("Store Host:", message.store_host)
    yield _LINE % ("System Flag:", message.sys_flag)
    yield _LINE % ("Properties:", visible(java_value(message.properties)))
    yield _LINE % ("Message Body Path:", body_path)
    if charset is not None:
        yield _LINE % ("Message Body:", visible(_text(body_of(message), charset)))


def print_line(message: "MessageExt", *, charset: str = "utf-8", with_body: bool = True) -> str:
    """RocketMQ's line of consumeMessage and printMsg."""
    text = visible(_text(body_of(message), charset)) if with_body else _NO_BODY
    return f"MSGID: {visible(message.msg_id)} {to_string(message, with_body=with_body)} BODY: {text}"


def to_string(message: "MessageExt", *, with_body: bool = True) -> str:
    """RocketMQ's ``MessageExt.toString``, with the bytes of the body if ``with_body``."""
    body = java_value([byte - 256 if byte > 127 else byte for byte in body_of(message)]) if with_body else _NO_BODY
    inner = (
        f"Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={visible(java_value(message.properties))}, body={body}, transactionId='null'}}"
    )
    members = {
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "storeSize": message.store_size,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": f"/{message.born_host}",
        "storeTimestamp": message.store_timestamp,
        "storeHost": f"/{message.store_host}",
        "msgId": message.offset_msg_id,
        "commitLogOffset": message.physical_offset,
        "bodyCRC": message.record.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "toString()": inner,
    }
    return java_object("MessageExt", members)


def save_body(message: "MessageExt", folder: Path, index: int = 0) -> Path:
    """Write the body to a new file of ``folder``, named after the message; raises OSError.

    The producer chooses the id, so the name must not lead to another folder.
    """
    name = re.sub(r"[^0-9A-Za-z_-]", "_", message.msg_id) + (f"_{index}" if index else "")
    path = folder / name
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(body_of(message))
    return path
