"""Brokers and topics that become smaller, all Skylark's own: drains (7130, 7131), and queues that end (7132 to 7136).

A broker that is drained takes no sends from clients, and says what is left to consume. A queue that is sealed shows its
consumers no message from the seal on, so that these messages can be copied to other queues.
"""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, INT, LONG, TEXT, Body, body_of, list_of, member
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.sends import NO_MESSAGES
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class DrainBrokerRequestHeader(Header):
    """7130: drain the broker, or (false) let it take sends again.

    ``settle_ms``: how long it still takes sends of clients with old routes; RocketMQ's ask for routes every 30 s.
    """

    drain: bool = required(read_flag)
    settle_ms: int = optional(read_long, 35_000)


@lazy_dataclass(slots=True)
class GetDrainStatusRequestHeader(Header):
    """7131: how far a drain is. ``forgotten``: groups that are not waited for, separated by commas."""

    forgotten: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class UnreadQueue(Body):
    """Messages of a queue that a group must still read. ``is_online``: the group has a consumer at this broker."""

    topic: str = member(TEXT, "")
    queue_id: int = member(INT, 0)
    group: str = member(TEXT, "")
    unread: int = member(LONG, 0)
    is_online: bool = member(FLAG, False)


@lazy_dataclass(slots=True)
class UnclaimedTopic(Body):
    """A topic with messages, which no group reads: dead letters, for example."""

    topic: str = member(TEXT, "")
    messages: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class DrainStatus(Body):
    """The answer to 7131.

    ``drained_since``: ms since 1970, 0 for a broker that is not drained. ``closes_in_ms``: how long sends of clients
    with old routes are still taken. ``delayed``, ``timed``, ``half`` and ``popped``: messages (of pops: check points)
    that this broker will deliver or decide itself. ``unmoved``: messages after seals that were not copied; their rows
    in ``unread`` have no group. ``unread`` and ``unclaimed`` list the first ones only.
    """

    drained_since: int = member(LONG, 0)
    closes_in_ms: int = member(LONG, 0)
    sends_in_flight: int = member(LONG, 0)
    delayed: int = member(LONG, 0)
    timed: int = member(LONG, 0)
    half: int = member(LONG, 0)
    popped: int = member(LONG, 0)
    unmoved: int = member(LONG, 0)
    unread_total: int = member(LONG, 0)
    unread: list[UnreadQueue] = member(list_of(body_of(UnreadQueue)))
    unclaimed: list[UnclaimedTopic] = member(list_of(body_of(UnclaimedTopic)))

    @property
    def waiting(self) -> int:
        """The messages that no group can read yet: this broker or an administrator must act first."""
        return self.sends_in_flight + self.delayed + self.timed + self.half + self.popped + self.unmoved

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.drained_since > 0 and not (self.closes_in_ms or self.waiting or self.unread_total)


@lazy_dataclass(slots=True)
class SealQueuesRequestHeader(Header):
    """7132: seal the topic's queues from number ``first_queue`` on, where they are not sealed yet."""

    topic: str = required(read_text)
    first_queue: int = required(read_int)


@lazy_dataclass(slots=True)
class SealedQueue(Body):
    """A sealed queue: consumers see the messages before ``limit``.

    The messages from ``limit`` to before ``moved_to`` have been copied to another queue; ``end`` is the offset after
    the last message.
    """

    queue_id: int = member(INT, 0)
    limit: int = member(LONG, 0)
    moved_to: int = member(LONG, 0)
    end: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class SealedQueues(Body):
    """The answer to 7132: all sealed queues of the topic from ``first_queue`` on."""

    queues: list[SealedQueue] = member(list_of(body_of(SealedQueue)))


@lazy_dataclass(slots=True)
class ReadSealedRequestHeader(Header):
    """7133: messages of a sealed queue from an offset on, at or after the seal."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    offset: int = required(read_long)


@lazy_dataclass(slots=True)
class ReadSealedResponseHeader(Header):
    """The answer to 7133, whose body has the records: the offset after the last of them."""

    next_offset: int = required(read_long)


@lazy_dataclass(slots=True)
class StoreMovedRequestHeader(Header):
    """7134: store the records in the body, which come from another queue or broker, in this queue."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)


@lazy_dataclass(slots=True)
class NoteMovedRequestHeader(Header):
    """7135: the messages of a sealed queue before ``moved_to`` are stored elsewhere."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    moved_to: int = required(read_long)


@lazy_dataclass(slots=True)
class GetClosedQueuesRequestHeader(Header):
    """7136: what is left of the topic's queues from number ``first_queue`` on, which nobody reads or writes any more.

    ``forgotten``: groups that are not waited for, separated by commas.
    """

    topic: str = required(read_text)
    first_queue: int = required(read_int)
    forgotten: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ClosedQueues(Body):
    """The answer to 7136. ``unread`` has a row without a group for messages after a seal that were not copied.

    ``popped``: open check points of pops, whose messages may be read again in their queues.
    """

    unread: list[UnreadQueue] = member(list_of(body_of(UnreadQueue)))
    popped: int = member(LONG, 0)


DRAIN_BROKER = Request(
    7130,
    DrainBrokerRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
GET_DRAIN_STATUS = Request(
    7131,
    GetDrainStatusRequestHeader,
    NOTHING,
    NOTHING,
    DrainStatus,
    right=GET_CLUSTER,
    on_slave=NO_MESSAGES,
)
SEAL_QUEUES = Request(
    7132,
    SealQueuesRequestHeader,
    NOTHING,
    NOTHING,
    SealedQueues,
    right=UPDATE_CLUSTER,
    on_slave=NO_MESSAGES,
)
READ_SEALED = Request(
    7133,
    ReadSealedRequestHeader,
    NOTHING,
    ReadSealedResponseHeader,
    bytes,
    right=UPDATE_CLUSTER,
    on_slave=NO_MESSAGES,
)
STORE_MOVED = Request(
    7134,
    StoreMovedRequestHeader,
    bytes,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=NO_MESSAGES,
)
NOTE_MOVED = Request(
    7135,
    NoteMovedRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=NO_MESSAGES,
)
GET_CLOSED_QUEUES = Request(
    7136,
    GetClosedQueuesRequestHeader,
    NOTHING,
    NOTHING,
    ClosedQueues,
    right=GET_CLUSTER,
    on_slave=NO_MESSAGES,
)
