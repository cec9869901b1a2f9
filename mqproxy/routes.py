"""Routes of NameServers as clients of the proxy read them. Pure.

All brokers of such a route have the address of the proxy: a client sends requests for a queue to the proxy, which knows
the address of the broker.
"""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from skylark.mqcommon.names import MASTER_ID, PERM_READ, PERM_WRITE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.routes import QueueData, TopicRouteData
from skylark.sdk.routes import MAX_QUEUES

# Attribute message.type of a topic → what clients may send to it.
MESSAGE_TYPES: dict[str, tuple[wire.MessageType, ...]] = {
    "UNSPECIFIED": (wire.MESSAGE_TYPE_UNSPECIFIED,),
    "NORMAL": (wire.NORMAL,),
    "FIFO": (wire.FIFO,),
    "DELAY": (wire.DELAY,),
    "TRANSACTION": (wire.TRANSACTION,),
    "PRIORITY": (wire.PRIORITY,),
    "MIXED": (wire.NORMAL, wire.FIFO, wire.DELAY, wire.TRANSACTION),
}


def endpoints_of(host: str, port: int) -> wire.Endpoints:
    """Endpoints with one address."""
    try:
        scheme = wire.IPv4 if ip_address(host).version == 4 else wire.IPv6
    except ValueError:
        scheme = wire.DOMAIN_NAME
    return wire.Endpoints(scheme=scheme, addresses=[wire.Address(host=host, port=port)])


def with_port(endpoints: wire.Endpoints, port: int) -> wire.Endpoints:
    """The hosts of ``endpoints``, with another port."""
    addresses = [wire.Address(host=address.host, port=port) for address in endpoints.addresses]
    return wire.Endpoints(scheme=endpoints.scheme, addresses=addresses)


def message_queues(
    topic: wire.Resource, route: TopicRouteData, endpoints: wire.Endpoints, types: Sequence[wire.MessageType]
) -> list[wire.MessageQueue]:
    """The queues of a topic. A broker set without a master has its lowest slave, so that clients see the set."""
    ids = {
        broker.broker_name: MASTER_ID if MASTER_ID in broker.broker_addrs else min(broker.broker_addrs)
        for broker in route.broker_datas
        if broker.broker_addrs
    }
    found: list[wire.MessageQueue] = []
    for data in route.queue_datas:
        if data.broker_name not in ids:
            continue
        broker = wire.Broker(name=data.broker_name, id=ids[data.broker_name], endpoints=endpoints)
        for number, permission in enumerate(_permissions(data)):
            found.append(
                wire.MessageQueue(
                    topic=topic, id=number, permission=permission, broker=broker, accept_message_types=types
                )
            )
    return found


def _permissions(data: QueueData) -> Iterator[wire.Permission]:
    """The permissions of the queues 0, 1, ...: queues to read and write come last, as in RocketMQ."""
    reads = min(data.read_queue_nums, MAX_QUEUES) if data.perm & PERM_READ else 0
    writes = min(data.write_queue_nums, MAX_QUEUES) if data.perm & PERM_WRITE else 0
    if not data.perm & (PERM_READ | PERM_WRITE):
        yield from [wire.NONE] * max(1, min(MAX_QUEUES, max(data.write_queue_nums, data.read_queue_nums)))
    # A topic that is growing or shrinking has other numbers of queues to read than to write.
    both = min(reads, writes)
    yield from [wire.READ] * (reads - both)
    yield from [wire.WRITE] * (writes - both)
    yield from [wire.READ_WRITE] * both


def assignments(
    topic: wire.Resource, route: TopicRouteData, endpoints: wire.Endpoints, is_ordered: bool
) -> list[wire.Assignment]:
    """What each member of a group reads: all brokers, as the brokers share messages among the members.

    For an ordered group it is each queue, so that a client consumes one message of each queue at a time.
    """
    names = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    found: list[wire.Assignment] = []
    for data in route.queue_datas:
        if data.broker_name not in names or not data.perm & PERM_READ or data.read_queue_nums <= 0:
            continue
        broker = wire.Broker(name=data.broker_name, id=MASTER_ID, endpoints=endpoints)
        permission = wire.READ_WRITE if data.perm & PERM_WRITE else wire.READ
        # -1: the broker gives messages of any of its queues, so that a group may have more members than queues.
        for number in range(min(data.read_queue_nums, MAX_QUEUES)) if is_ordered else (-1,):
            queue = wire.MessageQueue(topic=topic, id=number, permission=permission, broker=broker)
            found.append(wire.Assignment(message_queue=queue))
    return found
