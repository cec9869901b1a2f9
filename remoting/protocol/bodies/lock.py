"""Queues that an orderly consumer locks (41) and unlocks (42)."""

from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, TEXT, Kind, list_of, read_queue, write_queue

_QUEUES = list_of(Kind(read_queue, write_queue))


@dataclass(slots=True)
class LockBatchRequestBody(Body):
    """41. ``only_this_broker``: do not ask the other members of the broker's set for the lock."""

    consumer_group: str = member(TEXT, "")
    client_id: str = member(TEXT, "")
    only_this_broker: bool = member(FLAG, False)
    mq_set: list[MessageQueue] = member(_QUEUES)


@dataclass(slots=True)
class UnlockBatchRequestBody(Body):
    """42."""

    consumer_group: str = member(TEXT, "")
    client_id: str = member(TEXT, "")
    only_this_broker: bool = member(FLAG, False)
    mq_set: list[MessageQueue] = member(_QUEUES)


@dataclass(slots=True)
class LockBatchResponseBody(Body):
    """The queues of a 41 that its client owns now."""

    lock_ok_mq_set: list[MessageQueue] = member(_QUEUES, wire="lockOKMQSet")
