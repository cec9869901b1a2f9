"""What a consumer got and when, and what may come again. Pure.

Times are by the machine's monotonic clock, which its processes share.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# Broker name and number.
Queue = tuple[str, int]
# A commit that was seen less than this before a kill of the broker may be lost: many times the broker's interval for
# writing offsets.
LOSS_NS = 5_000_000_000


class Delivery(NamedTuple):
    """One call of a handler."""

    at_ns: int
    broker_name: str
    queue_id: int
    queue_offset: int
    reconsume_times: int
    body: str

    @property
    def line(self) -> bytes:
        return ("\t".join(map(str, self)) + "\n").encode()

    @property
    def queue(self) -> Queue:
        return self.broker_name, self.queue_id


def parse(data: bytes) -> list[Delivery]:
    """The whole lines of a consumer's file; a killed consumer may leave part of a line."""
    found = []
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        at, broker_name, queue_id, offset, times, body = line.split("\t")
        found.append(Delivery(int(at), broker_name, int(queue_id), int(offset), int(times), body))
    return found


class Look(NamedTuple):
    """The group's committed offset of a queue, as a broker said it by ``at_ns``."""

    at_ns: int
    queue: Queue
    committed: int


@dataclass
class Member:
    """The deliveries to one process of a group, from its start on."""

    started_ns: int
    deliveries: list[Delivery] = field(default_factory=list)


def unexplained(members: Sequence[Member], looks: Iterable[Look], kills_ns: dict[str, list[int]]) -> list[str]:
    """Deliveries of messages that were committed before their consumer's process was started.

    Such a consumer reads the committed offset when it gets a queue, so nothing before that may come to it, unless a
    kill of the broker lost the commit: ``kills_ns`` has their times, by broker.
    """
    by_queue: dict[Queue, list[Look]] = defaultdict(list)
    for look in looks:
        if not any(look.at_ns < kill < look.at_ns + LOSS_NS for kill in kills_ns.get(look.queue[0], ())):
            by_queue[look.queue].append(look)
    found = []
    for member in members:
        committed = {
            queue: max((look.committed for look in of if look.at_ns < member.started_ns), default=0)
            for queue, of in by_queue.items()
        }
        for got in member.deliveries:
            if got.reconsume_times == 0 and got.queue_offset < committed.get(got.queue, 0):
                found.append(f"{got}: {committed[got.queue]} was committed before its consumer started")
    return found


def out_of_order(members: Sequence[Member], kills_ns: dict[str, list[int]]) -> list[str]:
    """Deliveries of an orderly group that skip a message of their queue, or go back without a reason.

    A queue may go back with a new consumer or after a kill of its broker, which forgets locks and perhaps the last
    commit; the message that came last may come again.
    """
    rows = sorted((got, number) for number, member in enumerate(members) for got in member.deliveries)
    reached: dict[Queue, int] = {}
    last: dict[Queue, tuple[int, Delivery]] = {}
    found = []
    for got, number in rows:
        if got.reconsume_times:
            continue
        end = reached.get(got.queue, 0)
        if got.queue_offset > end:
            found.append(f"{got}: the queue's message {end} has not come yet")
        who, before = last.get(got.queue, (number, got))
        killed = any(before.at_ns - LOSS_NS < kill < got.at_ns for kill in kills_ns.get(got.broker_name, ()))
        if who == number and not killed and got.queue_offset < before.queue_offset:
            found.append(f"{got}: it came after {before}, to the same consumer")
        reached[got.queue] = max(end, got.queue_offset + 1)
        last[got.queue] = number, got
    return found
