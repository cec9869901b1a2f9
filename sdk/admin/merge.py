"""Merges the answers of several brokers into one. Pure. Each queue is on one broker, so entries never conflict."""

from collections.abc import Sequence

from remoting.protocol.requests.clients import Connection, ConsumerConnection, ProducerConnection
from remoting.protocol.requests.groups import ConsumeStats
from remoting.protocol.requests.topics import TopicStatsTable


def merge_topic_stats(parts: Sequence[TopicStatsTable]) -> TopicStatsTable:
    """The queues of all brokers; rates add up."""
    merged = TopicStatsTable()
    for part in parts:
        merged.offset_table.update(part.offset_table)
        merged.topic_put_tps += part.topic_put_tps
    return merged


def merge_consume_stats(parts: Sequence[ConsumeStats]) -> ConsumeStats:
    """The queues of all brokers; rates add up."""
    merged = ConsumeStats()
    for part in parts:
        merged.offset_table.update(part.offset_table)
        merged.consume_tps += part.consume_tps
    return merged


def merge_consumers(parts: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """All members, each once. Subscriptions and settings are the same for a whole group: the first answer is used."""
    merged = parts[0]
    merged.connection_set = _each_once(parts)
    for part in parts:
        for topic, subscription in part.subscription_table.items():
            merged.subscription_table.setdefault(topic, subscription)
    return merged


def merge_producers(parts: Sequence[ProducerConnection]) -> ProducerConnection:
    """All producers, each once."""
    return ProducerConnection(connection_set=_each_once(parts))


def _each_once(parts: Sequence[ConsumerConnection] | Sequence[ProducerConnection]) -> list[Connection]:
    members = {member.client_id: member for part in parts for member in part.connection_set}
    return [members[client_id] for client_id in sorted(members)]
