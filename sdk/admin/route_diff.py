"""Differences between the answers of NameServers. Pure.

The answers of one NameServer become facts: a key (kind, name, what) and a plain value. Two NameServers agree when they
have the same facts, so differences are found key by key; None stands for a fact that a NameServer does not have. The
order of lists does not matter, and a fact that explains others stands alone: the addresses of a set are left out of
the routes of its topics when the sets differ, and the brokers of a topic when a NameServer does not know the topic.
Neighbour: mqadmin/commands/route_diff.py asks the NameServers.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo, TopicRouteData


class Fact(NamedTuple):
    """The key of a value that NameServers have."""

    kind: str
    name: str
    what: str


class Difference(NamedTuple):
    """A fact with different values at different NameServers: NameServer address → value."""

    fact: Fact
    values: Mapping[str, str | None]


Facts = Mapping[Fact, str]


def cluster_facts(info: ClusterInfo) -> dict[Fact, str]:
    """The facts in an answer to request 106: brokers, sets, clusters, and addresses that claim another's place."""
    found: dict[Fact, str] = {}
    for name, data in info.broker_addr_table.items():
        found |= _set_facts("set", name, data)
    for cluster, names in info.cluster_addr_table.items():
        found |= {Fact("set", name, f"listed in {cluster}"): "yes" for name in names}
    for name, places in (info.contested or {}).items():
        for broker_id, addr in places.items():
            found[Fact("set", name, f"broker {broker_id} is claimed by")] = addr
    return found


def route_facts(topic: str, route: TopicRouteData | None, differing_sets: Collection[str] = ()) -> dict[Fact, str]:
    """The facts in an answer to request 105; ``route`` is None where the topic is unknown.

    ``differing_sets``: sets whose brokers are known to differ.
    """
    if route is None:
        return {}
    found = {
        Fact("topic", topic, f"queues of {each.broker_name}"): (
            f"read={each.read_queue_nums} write={each.write_queue_nums} perm={each.perm} flag={each.topic_sys_flag}"
        )
        for each in route.queue_datas
    }
    for data in route.broker_datas:
        if data.broker_name not in differing_sets:
            set_facts = _set_facts("topic", topic, data)
            found |= {fact._replace(what=f"{data.broker_name} {fact.what}"): value for fact, value in set_facts}
    for addr, servers in route.filter_server_table.items():
        found[Fact("topic", topic, f"filter servers of {addr}")] = " ".join(sorted(servers))
    if route.order_topic_conf:
        found[Fact("topic", topic, "order conf")] = route.order_topic_conf
    return found


def order_facts(table: Mapping[str, str]) -> dict[Fact, str]:
    """The key-value pairs that say the order of topics' queues."""
    return {Fact("orderConf", topic, "value"): value for topic, value in table.items()}


def _set_facts(kind: str, name: str, data: BrokerData) -> Iterator[tuple[Fact, str]]:
    yield Fact(kind, name, "cluster"), data.cluster
    yield Fact(kind, name, "enableActingMaster"), str(data.enable_acting_master).lower()
    if data.zone_name:
        yield Fact(kind, name, "zoneName"), data.zone_name
    for broker_id, addr in data.broker_addrs.items():
        yield Fact(kind, name, f"broker {broker_id}"), addr


def differences(answers: Mapping[str, Facts]) -> list[Difference]:
    """Each fact whose values differ between NameServers, sorted. ``answers``: facts by NameServer address."""
    facts = {fact for own in answers.values() for fact in own}
    found = (Difference(fact, {addr: own.get(fact) for addr, own in answers.items()}) for fact in sorted(facts))
    return [each for each in found if len(set(each.values.values())) > 1]


def set_differences(answers: Mapping[str, ClusterInfo]) -> list[Difference]:
    """The differences in brokers. A set that a NameServer does not know at all is one difference."""
    by_set: dict[str, dict[str, dict[Fact, str]]] = {}
    for addr, info in answers.items():
        for fact, value in cluster_facts(info).items():
            by_set.setdefault(fact.name, {each: {} for each in answers})[addr][fact] = value
    return [each for name in sorted(by_set) for each in _known_or_differences(Fact("set", name, "known"), by_set[name])]


def topic_differences(
    topic: str, answers: Mapping[str, TopicRouteData | None], differing_sets: Collection[str] = ()
) -> list[Difference]:
    """The differences in the route of one topic."""
    facts = {addr: route_facts(topic, route, differing_sets) for addr, route in answers.items()}
    return _known_or_differences(Fact("topic", topic, "known"), facts)


def _known_or_differences(known: Fact, answers: Mapping[str, Facts]) -> list[Difference]:
    """A difference if only some NameServers have ``known``; and the differences between these NameServers."""
    those = {addr: facts for addr, facts in answers.items() if facts}
    if len(those) in (0, len(answers)):
        return differences(those)
    return [Difference(known, {addr: "yes" if addr in those else None for addr in answers}), *differences(those)]


def confirmed(first: Sequence[Difference], second: Sequence[Difference]) -> list[Difference]:
    """The differences found both times, with the second values: the others were registrations under way."""
    facts = {each.fact for each in first}
    return [each for each in second if each.fact in facts]
