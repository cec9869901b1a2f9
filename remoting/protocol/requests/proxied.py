"""The clients of a gRPC proxy, Skylark's own (7140): brokers list them, and ask them through the proxy."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import INT, TEXT, Body, body_of, choice, list_of, member
from skylark.remoting.protocol.command import LANGUAGES
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.clients import ConsumerData
from skylark.remoting.protocol.rights import LARGE, SUB, Need, need_group, need_topic, of_body, on_both


@lazy_dataclass(slots=True)
class ProxiedClient(Body):
    """One client, as the proxy knows it. ``producer_groups`` of gRPC clients are the topics that they send to."""

    client_id: str = member(TEXT, "")
    client_addr: str = member(TEXT, "")
    language: str = member(choice(*LANGUAGES), "OTHER")
    version: int = member(INT, 0)
    producer_groups: list[str] = member(list_of(TEXT))
    consumer_data_set: list[ConsumerData] = member(list_of(body_of(ConsumerData)))


@lazy_dataclass(slots=True)
class ProxyHeartbeatData(Body):
    """Some connected clients, and the ids of some that left. A broker forgets a client that no heartbeat names."""

    clients: list[ProxiedClient] = member(list_of(body_of(ProxiedClient)))
    left: list[str] = member(list_of(TEXT))


def _needs(body: ProxyHeartbeatData) -> list[Need]:
    found: dict[Need, None] = {}
    for client in body.clients:
        for consumer in client.consumer_data_set:
            found[need_group(consumer.group_name, SUB)] = None
            for each in consumer.subscription_data_set:
                found[need_topic(each.topic, SUB, consumer.group_name)] = None
    return list(found)


PROXY_HEART_BEAT = Request(
    7140,
    NOTHING,
    ProxyHeartbeatData,
    NOTHING,
    NOTHING,
    right=of_body(_needs, like=on_both(SUB), limits=LARGE),
)
