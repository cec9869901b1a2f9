"""Who is connected: members of consumer groups (203) and producer groups (204), all producers (328)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.heartbeat import CONSUME_FROM_WHERE, CONSUME_TYPE, MESSAGE_MODEL, SubscriptionData
from remoting.protocol.bodies.kinds import INT, LONG, TEXT, body_of, choice, list_of, map_of
from remoting.protocol.command import LANGUAGES


@dataclass(slots=True)
class Connection(Body):
    """One client's connection."""

    client_id: str = member(TEXT, "")
    client_addr: str = member(TEXT, "")
    language: str = member(choice(*LANGUAGES), "OTHER")
    version: int = member(INT, 0)


@dataclass(slots=True)
class ConsumerConnection(Body):
    """The members of a consumer group and what they subscribe to."""

    connection_set: list[Connection] = member(list_of(body_of(Connection)))
    subscription_table: dict[str, SubscriptionData] = member(map_of(body_of(SubscriptionData)))
    consume_type: str = member(CONSUME_TYPE, "CONSUME_ACTIVELY")
    message_model: str = member(MESSAGE_MODEL, "CLUSTERING")
    consume_from_where: str = member(CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET")


@dataclass(slots=True)
class ProducerConnection(Body):
    """The members of a producer group."""

    connection_set: list[Connection] = member(list_of(body_of(Connection)))


@dataclass(slots=True)
class ProducerInfo(Body):
    """One producer's connection, and when it last sent a heartbeat."""

    client_id: str = member(TEXT, "")
    remote_ip: str = member(TEXT, "", wire="remoteIP")
    language: str = member(choice(*LANGUAGES), "OTHER")
    version: int = member(INT, 0)
    last_update_timestamp: int = member(LONG, 0)


@dataclass(slots=True)
class ProducerTableInfo(Body):
    """All connected producers by group (328)."""

    data: dict[str, list[ProducerInfo]] = member(map_of(list_of(body_of(ProducerInfo))))
