"""Which names and numbers of a registration a NameServer accepts: those that a broker accepts, too. Pure.

A registration with a bad broker name or address is refused. A bad topic is left out and the others are kept: a client
refuses the whole route when it cannot use a part of it. Neighbour: registration_handlers.py.
"""

from mqcommon.errors import RequestRefused
from mqcommon.names import MAX_PERM, MAX_QUEUE_NUMS, check_topic, system_topics
from namesrv.registration import Queues
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.routes import RegisterBrokerRequestHeader

MAX_NAME_CHARS = 255
MAX_FILTER_SERVERS = 64


def check_broker(header: RegisterBrokerRequestHeader) -> None:
    """Refuse a broker whose name, address or id clients could not use."""
    for name, value in (
        ("brokerName", header.broker_name),
        ("brokerAddr", header.broker_addr),
        ("clusterName", header.cluster_name),
    ):
        if not value.strip():
            raise _refused(f"{name} is blank")
        check_text(name, value)
    check_text("haServerAddr", header.ha_server_addr)
    if header.broker_id < 0:
        raise _refused(f"brokerId {header.broker_id} is negative")


def check_text(what: str, value: str) -> None:
    """Refuse a name or an address that is too long, or that would not stay on one line."""
    if len(value) > MAX_NAME_CHARS:
        raise _refused(f"{what} has {len(value)} characters, at most {MAX_NAME_CHARS} are taken")
    if not value.isprintable():
        raise _refused(f"{what} has characters that cannot be printed")


def topic_fault(topic: str, queues: Queues) -> str | None:
    """Why clients could not use the topic; None when they can."""
    try:
        check_topic(topic)
    except RequestRefused as error:
        return error.remark
    return queues_fault(queues)


def queues_fault(queues: Queues) -> str | None:
    """Why these queues could not be used; None when they can."""
    for number in (queues.read_queue_nums, queues.write_queue_nums):
        if not 0 <= number <= MAX_QUEUE_NUMS:
            return f"a topic has 0 to {MAX_QUEUE_NUMS} queues, not {number}"
    if not 0 <= queues.perm <= MAX_PERM:
        return f"perm is 0 to {MAX_PERM}, not {queues.perm}"
    return None


def own_topics(cluster: str, broker_name: str) -> frozenset[str]:
    """The topics that each broker names after itself and its cluster; these names may have any characters."""
    return frozenset(topic.name for topic in system_topics(cluster, broker_name, auto_create_queue_nums=None))


def _refused(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, reason)
