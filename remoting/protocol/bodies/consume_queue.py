"""Entries of a consume queue (321)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, TEXT, body_of, list_of


@dataclass(slots=True)
class ConsumeQueueData(Body):
    """One entry. ``eval``: whether the filter of the requested group accepts it; ``msg``: what is wrong with it.

    ``extend_data_json`` and ``bit_map`` come from Java brokers with extended consume queues only.
    """

    physic_offset: int = member(LONG, 0)
    physic_size: int = member(INT, 0)
    tags_code: int = member(LONG, 0)
    extend_data_json: str | None = member(TEXT, None)
    bit_map: str | None = member(TEXT, None)
    eval: bool = member(FLAG, False)
    msg: str | None = member(TEXT, None)


@dataclass(slots=True)
class ConsumeQueueEntries(Body):
    """Entries in the order of the queue, which has messages from ``min_queue_index`` to before ``max_queue_index``.

    ``subscription_data`` and ``filter_data`` belong to the requested group.
    """

    subscription_data: SubscriptionData | None = member(body_of(SubscriptionData), None)
    filter_data: str | None = member(TEXT, None)
    queue_data: list[ConsumeQueueData] = member(list_of(body_of(ConsumeQueueData)))
    max_queue_index: int = member(LONG, 0)
    min_queue_index: int = member(LONG, 0)
