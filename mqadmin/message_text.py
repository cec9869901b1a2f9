"""A message as mqadmin prints it: the detail block, and RocketMQ's one-line toString.

The line and the block have the names and widths of RocketMQ's tool. Bodies are printed as text with control characters
escaped; the unchanged body is written to a file, as RocketMQ's tool does.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from skylark.mqadmin.render import java_object, java_value, time_text
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.reports.message_report import body_of, body_text

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt

_LINE = "%-20s %s"
_NO_BODY = "NOT PRINT BODY"


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
        yield _LINE % ("Message Body:", visible(body_text(body_of(message), charset)))


def print_line(message: "MessageExt", *, charset: str = "utf-8", with_body: bool = True) -> str:
    """RocketMQ's line of consumeMessage and printMsg."""
    text = visible(body_text(body_of(message), charset)) if with_body else _NO_BODY
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
    # Windows lacks the first flag, and all others lack the second.
    flags: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o600), "wb") as file:
        file.write(body_of(message))
    return path
