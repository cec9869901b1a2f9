"""A message as a report, under RocketMQ's names, and its body as text. Pure."""

import base64
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import OPTIONAL, named

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt


@lazy_dataclass(frozen=True, slots=True)
class MessageReport:
    """A message as tools show it. The body is there as text and as base64, or is left out."""

    msg_id: str
    offset_msg_id: str
    topic: str
    tags: str | None
    keys: str | None
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int = field(metadata=named("commitLogOffset"))
    size_bytes: int = field(metadata=named("storeSize"))
    #: How many times a group has got the message before.
    reconsume_times: int
    born_timestamp_ms: int = field(metadata=named("bornTimestamp"))
    store_timestamp_ms: int = field(metadata=named("storeTimestamp"))
    born_host: str
    store_host: str
    sys_flag: int
    flag: int
    prepared_transaction_offset: int
    properties: Mapping[str, str]
    body: str | None = field(default=None, metadata=OPTIONAL)
    body_base64: str | None = field(default=None, metadata=OPTIONAL)


def message_report(message: "MessageExt", *, charset: str = "utf-8", with_body: bool = True) -> MessageReport:
    """The report of ``message``; bytes of the body that ``charset`` does not have are replaced in its text."""
    body = body_of(message) if with_body else b""
    return MessageReport(
        message.msg_id,
        message.offset_msg_id,
        message.topic,
        message.tags,
        message.keys,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.store_size,
        message.reconsume_times,
        message.born_timestamp,
        message.store_timestamp,
        message.born_host,
        message.store_host,
        message.sys_flag,
        message.flag,
        message.prepared_transaction_offset,
        dict(message.properties),
        body_text(body, charset) if with_body else None,
        base64.b64encode(body).decode() if with_body else None,
    )


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
