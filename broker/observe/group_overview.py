"""What tools show of all groups and topics at once: members, readers, messages in and out. Each is made in steps.

317 carries these on request: they are the answers of 203, 300 and 315 for all groups and topics.
"""

from skylark.broker.meta.clients import Clients
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.meta.proxied_clients import ProxiedClients
from skylark.broker.observe.stats import BrokerStats
from skylark.remoting.net.steps import Steps
from skylark.remoting.protocol.requests.groups import GroupMembers, Traffic

# Members, groups or counters that one step handles.
ROWS = 500


def members_of_groups(clients: Clients, proxied: ProxiedClients) -> Steps[dict[str, GroupMembers]]:
    """The connected members of each group, including members at gRPC proxies."""
    found: dict[str, GroupMembers] = {}
    for number, (group, one) in enumerate(clients.all_consumers(), 1):
        if number % ROWS == 0:
            yield None
        members = found.get(group.name)
        if members is None:
            members = found[group.name] = GroupMembers({}, group.consume_type, group.message_model)
        members.versions[one.client_id] = one.version
    for number, (name, client, data) in enumerate(proxied.all_consumers(), 1):
        if number % ROWS == 0:
            yield None
        members = found.get(name)
        if members is None:
            members = found[name] = GroupMembers({}, data.consume_type, data.message_model)
        members.versions[client.client_id] = client.client.version
    return found


def readers_of_topics(clients: Clients, offsets: ConsumerOffsets) -> Steps[dict[str, list[str]]]:
    """For each topic, the groups that subscribe to the topic now, or have consumed it."""
    found: dict[str, dict[str, None]] = {}
    for number, group in enumerate(clients.consumer_groups(), 1):
        if number % ROWS == 0:
            yield None
        for topic in group.subscriptions:
            found.setdefault(topic, {})[group.name] = None
    for number, (name, topics) in enumerate((yield from offsets.topics_by_group()).items(), 1):
        if number % ROWS == 0:
            yield None
        for topic in topics:
            found.setdefault(topic, {})[name] = None
    return {topic: list(names) for topic, names in found.items()}


def traffic_of_topics(stats: BrokerStats) -> Steps[list[Traffic]]:
    """A row for each topic, and for each group of the topic, that has counted a message."""
    meters = [(topic, "", meter) for topic, meter in stats.topic_meters()]
    meters += stats.get_meters()
    rows: list[Traffic] = []
    for number, (topic, group, meter) in enumerate(meters, 1):
        if number % ROWS == 0:
            yield None
        view = stats.view_of(meter)
        rows.append(Traffic(topic, group, view.stats_minute.tps, view.stats_day.sum))
    return rows
