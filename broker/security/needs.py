"""What each request needs, by the descriptions of requests (remoting/protocol/rights.py). Pure.

Neighbours: users/ (ACL 2.0) and accounts/ (ACL 1.0) decide with it.
"""

from typing import Final

from remoting.protocol.command import Command
from remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from remoting.protocol.requests.table import BY_CODE
from remoting.protocol.rights import PUB, SUB, TOPIC, UPDATE_CLUSTER, Need, need_topic

#: Requests of NameServers, which have no account here. The broker only asks the NameServers then.
FROM_NAMESERVERS: Final = (NOTIFY_MIN_BROKER_ID_CHANGE.code,)


def needs_of(request: Command) -> list[Need]:
    """What ``request`` needs. Raises RequestRefused when its body cannot be read."""
    described = BY_CODE.get(request.code)
    return UPDATE_CLUSTER.of_ext(request.ext) if described is None else described.needs(request)


def needs_about(code: int, topic: str, group: str) -> list[Need]:
    """What a request ``code`` about the topic and the group needs; one of the two may be empty, and is left out."""
    described = BY_CODE.get(code)
    right = described.right if described else None
    return (right or UPDATE_CLUSTER).about(topic, group)


def needs_to_consume(topic: str) -> list[Need]:
    """What consuming the topic needs of it. Messages are read, so a retry topic is that of its whole name."""
    return [need_topic(topic, SUB)]


def needs_to_send(topic: str) -> list[Need]:
    """What a send to the topic needs."""
    return [Need(TOPIC, topic, PUB)]
