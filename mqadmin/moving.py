"""Copies the unread messages of sealed queues to other queues, part by part.

Once the target has stored a part, the source records the new position. So a killed command resumes from that position,
and only the messages of one part may come twice, with the same unique keys. Messages with the same key go to one queue,
in order; so do all messages without a key of one source queue.
Neighbours: broker/admin/sealing.py answers.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.shrinking import SealedQueue
    from skylark.sdk.admin.client import Admin


class Place(NamedTuple):
    """A queue that messages are copied to."""

    addr: str
    queue_id: int


def chosen(record: Record, targets: Sequence[Place]) -> Place:
    """The target of a message: the same for all messages with its key."""
    # The sharding key decides the order; without a sharding key, messages with the same key at least stay together.
    key = find_property(record.properties, b"__SHARDINGKEY") or find_property(record.properties, b"KEYS")
    return targets[crc32(key or b"queue %d" % record.queue_id) % len(targets)]


def by_target(raw: bytes, targets: Sequence[Place]) -> dict[Place, bytes]:
    """The records in ``raw`` by target, in the order of ``raw``."""
    found: dict[Place, list[bytes]] = {}
    at = 0
    while at < len(raw):
        record = decode_record(raw, at)
        found.setdefault(chosen(record, targets), []).append(raw[at : at + record.size])
        at += record.size
    return {place: b"".join(records) for place, records in found.items()}


async def move_queues(
    admin: "Admin", addr: str, topic: str, first: int, targets: Sequence[Place], moved: Callable[[int], None]
) -> list["SealedQueue"]:
    """Seal the topic's queues from number ``first`` on at the broker ``addr``, and copy their messages past the seals.

    ``moved`` is called with the number of messages of each part. Returns the queues, with all their messages copied.
    """
    # Sealing is repeated in each run: the answer has the position that an earlier run reached.
    queues = await admin.seal_queues(addr, topic, first)
    for queue in queues:
        while queue.moved_to < queue.end:
            raw, next_offset = await admin.read_sealed(addr, topic, queue.queue_id, queue.moved_to)
            for place, records in by_target(raw, targets).items():
                await admin.store_moved(place.addr, topic, place.queue_id, records)
            if next_offset <= queue.moved_to:
                break  # the log has dropped these messages meanwhile, or they are not confirmed yet
            # Only after all targets have stored the part: a crash before repeats the part, and loses nothing.
            await admin.note_moved(addr, topic, queue.queue_id, next_offset)
            moved(next_offset - queue.moved_to)
            queue.moved_to = next_offset
    return queues
