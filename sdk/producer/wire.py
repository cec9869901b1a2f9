"""Encodes send requests and decodes their answers."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mqcommon.errors import ProtocolError
from mqcommon.message.batch import decode_offsets, encode_batch
from mqcommon.message.ids import split_offset_msg_id
from mqcommon.message.queue import MessageQueue
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command

AUTO_CREATE_TOPIC_QUEUES = 4
DEFAULT_TOPIC = "TBW102"

Row = tuple[int, bytes, bytes]


def unique_key(row: Row) -> str:
    """The unique key in a row's properties; it is the last property of its name."""
    properties = row[2]
    return properties[properties.rindex(b"UNIQ_KEY\x01") + 9 : -1].decode()


def send_request(
    group: str, queue: MessageQueue, rows: Sequence[Row], born_timestamp: int, sys_flag: int = 0
) -> Command:
    """The request to store (flag, body, encoded properties) rows in one queue, as a batch if there are several."""
    flag, body, properties = rows[0]
    batch = len(rows) > 1
    return Command(
        RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2,
        {
            "a": group,
            "b": queue.topic,
            "c": DEFAULT_TOPIC,
            "d": AUTO_CREATE_TOPIC_QUEUES,
            "e": queue.queue_id,
            "f": sys_flag,
            "g": born_timestamp,
            "h": 0 if batch else flag,
            "i": "" if batch else properties.decode(),
            "j": 0,
            "k": False,
            "m": batch,
            "n": queue.broker_name,
        },
        encode_batch(rows) if batch else body,
    )


@dataclass(slots=True)
class Stored:
    """Where a broker stored the messages of one request."""

    code: int
    host: bytes
    queue_id: int
    queue_offset: int
    physical_offsets: tuple[int, ...]
    #: Of a timed message.
    recall_handle: str = ""


def stored(answer: Command, count: int) -> Stored:
    """Decode the answer to a send; ProtocolError when it does not have ``count`` offsets."""
    ext = answer.ext or {}
    try:
        ids = str(ext["msgId"]).split(",")
        host, first = split_offset_msg_id(ids[0])
        if answer.body:
            offsets = decode_offsets(answer.body)
        elif len(ids) == 1:
            offsets = (first,)
        else:
            offsets = tuple([split_offset_msg_id(each)[1] for each in ids])
        found = Stored(answer.code, host, int(ext["queueId"]), int(ext["queueOffset"]), offsets)
        if "recallHandle" in ext:
            found.recall_handle = str(ext["recallHandle"])
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ProtocolError(f"the answer to a send cannot be decoded: {error!r}") from None
    if len(offsets) != count:
        raise ProtocolError(f"the answer has {len(offsets)} offsets for {count} messages")
    return found
